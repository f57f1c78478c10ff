"""Where a head starts: at the class means, at the class frequencies, or at zero.

For classes that are clouds of equal, round shape, log p(x|y) is linear in x:

    f_y(x) = (m_y − m)·x − ½(‖m_y‖² − ‖m‖²),

m_y the mean of class y, shrunk toward the mean m of all rows by n_y/(n_y + κ), κ = within-class
over between-class variance (one-way random-effects ANOVA). The head starts at ξ = τ f + c, where τ
and c minimize the objective itself on a sample, with each example left out of its own class mean.
From zero, every class would first have to find its own mean, a few examples at a time. Where scores
are to become log p(y|x) rather than log p/q, the log frequency of each class is added:
noise-contrastive estimation learns nothing without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar

from extremax.heads import BagHead, Head, LinearHead, SupportHead, TiedHead
from extremax.heads.blocks import BYTES_PER_SCORE, eighths, row_slices
from extremax.kernels.cpu.threads import limit, one_torch_thread, parallel
from extremax.memory import trim_heap
from extremax.model import Model
from extremax.noise import Noise, UniformNoise
from extremax.objectives import Objective, Pairs
from extremax.random import Purpose, Stream
from extremax.training.data import Examples
from extremax.training.loop import HELD_OUT_BYTES

# Rows, and draws for each at most, on which two numbers are fitted.
_SAMPLE, _DRAWS = 8_192, 20
# Classes, and bytes of rows, taken at a time.
_BLOCK = 1_024
_BLOCK_BYTES = 1 << 20
# Scores computed to choose a sharpness.
_CHOICE_SCORES = 30_000_000
# Share of the scores that start below `Objective.least_score`, of classes so unlikely that their
# |ξ| does not matter. On 500 classes the likelihood was that of plain softmax to 1e-5; with a share
# of 0, kernels saw less difference between classes, and training at m = 5 lost 0.06 nats more.
_BELOW = 0.05
# The range in which log τ is sought, on rows of unit mean square length.
_LOG_TAU = (-3.0, 7.0)


class Start(NamedTuple):
    """A model whose head is to be set, and the examples to set it by. Weights of examples play no
    part: this is only a place to start from."""

    model: Model
    examples: Examples
    train: np.ndarray
    held_out: np.ndarray
    n_negatives: int
    seed: int

    @property
    def counts(self) -> np.ndarray:
        """Training examples per class."""
        return np.bincount(self.examples.labels[self.train], minlength=self.model.n_classes)


def start_at_class_means(start: Start) -> None:
    """Set weights and biases of a `LinearHead`, and the sharpness of its noise."""
    model, examples, train, held_out, n_negatives, seed = start
    head, noise, objective = cast(LinearHead, model.head), model.noise, model.objective
    counts = start.counts
    squares = _sum_classes(head, examples, train)
    mean = head.weight.numpy().sum(0, dtype=np.float64) / len(train)
    kappa = _shrinkage(head.weight.numpy(), counts, mean, squares)
    means = ClassMeans(head.weight.numpy(), counts, mean, kappa)
    prior = objective.start_scores(_log_frequency(counts))
    sample = np.random.default_rng([seed, Purpose.START]).permutation(train)[:_SAMPLE]
    sharpnesses = _sharpnesses_to_try(noise, objective, len(held_out) > 0)
    choices = []
    for sharpness in sharpnesses or (1.0,):
        if sharpnesses:
            noise.temper(sharpness)
        with one_torch_thread():
            pairs = _sample_scores(
                model, examples, sample, min(n_negatives, _DRAWS), seed, means, prior
            )
        # The order in which torch adds depends on its number of threads.
        with limit(1):
            choices.append((sharpness, *_best_scale(objective, *pairs)))
    _write_means(head, means)
    del counts, means
    trim_heap()
    sharpness, tau, offset = choices[0]
    if len(choices) > 1:
        sharpness, tau, offset = _likeliest(model, examples, held_out, choices)
    if sharpnesses:
        noise.temper(sharpness)
    head.weight.mul_(tau)
    head.bias.mul_(tau).add_(prior + offset)


def start_at_zeros(start: Start) -> None:
    """Leave weights and biases at zero, where a head is made, and set the sharpness of the noise.
    The feature vectors of a `BagHead` are random: at zero they would never learn."""
    noise, objective, held_out = start.model.noise, start.model.objective, start.held_out
    choices = [(s, 0.0, 0.0) for s in _sharpnesses_to_try(noise, objective, len(held_out) > 0)]
    if choices:
        best = choices[0]
        if len(choices) > 1:
            best = _likeliest(start.model, start.examples, held_out, choices)
        noise.temper(best[0])


def start_at_frequencies(start: Start) -> None:
    """Set the biases to what the objective makes of the log frequencies, and the sharpness of the
    noise. Where logits are ξ + log q, the biases are log frequency − log q if q ignores x; a q that
    reads x knows the frequencies, and biases stay at zero."""
    start_at_zeros(start)
    objective, noise = start.model.objective, start.model.noise
    log_frequency = _log_frequency(start.counts)
    bias = objective.start_scores(log_frequency)
    if objective.adds_log_q and not noise.reads_rows:
        bias = log_frequency - noise.log_prob_all(noise.context(start.examples.rows[:1]))[0]
    start.model.head.bias.copy_(bias)


def start_late(start: Callable[[Start], None], model: Model, is_fresh: np.ndarray) -> None:
    """Set the biases of fresh classes, which had no examples before, to what the objective makes of
    their log frequencies, unless the head started at zeros."""
    if start is not start_at_zeros:
        bias = model.objective.start_scores(_log_frequency(model.labels.counts))
        fresh = torch.from_numpy(np.flatnonzero(is_fresh))
        model.head.bias[fresh] = bias[fresh]


def start_at_sparse_means(start: Start) -> None:
    """ξ_y = τ m_y·x + log frequency on a `SupportHead`, m_y of unit length, with the τ under which
    held-out rows are likeliest. Those are in no class mean: none votes for its own."""
    head, chosen = cast(SupportHead, start.model.head), start.held_out[:_SAMPLE]
    start_at_frequencies(start)
    if not len(chosen):
        return
    rows, labels = start.examples.rows[chosen], start.examples.labels[chosen]
    head.set_means(start.examples.rows, start.examples.labels, start.train)
    means = head.weight.copy()

    def loss(log_tau: float) -> float:
        np.multiply(means, np.float32(math.exp(log_tau)), out=head.weight)
        return -float(head.log_probs(rows, labels[:, None], 1.0, 0).double().sum())

    bias = head.bias.double()
    loss_of_frequencies = -float((bias[labels] - bias.logsumexp(0)).sum())
    best = minimize_scalar(loss, bounds=_LOG_TAU, method="bounded", options={"xatol": 0.05})
    tau = math.exp(best.x) if best.fun < loss_of_frequencies else 0.0
    np.multiply(means, np.float32(tau), out=head.weight)


#: The starts that each head has, by name.
STARTS: dict[type[Head], dict[str, Callable[[Start], None]]] = {
    LinearHead: {
        "class_means": start_at_class_means,
        "frequencies": start_at_frequencies,
        "zeros": start_at_zeros,
    },
    # Its feature vectors are random at the start, and so would be class means of them.
    BagHead: {"frequencies": start_at_frequencies, "zeros": start_at_zeros},
    TiedHead: {"frequencies": start_at_frequencies, "zeros": start_at_zeros},
    SupportHead: {
        "class_means": start_at_sparse_means,
        "frequencies": start_at_frequencies,
        "zeros": start_at_zeros,
    },
}


def _sharpnesses_to_try(noise: Noise, objective: Objective, held_out: bool) -> tuple[float, ...]:
    """All where held-out rows can choose among them, which is where log q is part of the logits."""
    every = noise.sharpnesses()
    if not every or (objective.adds_log_q and held_out):
        return every
    return (noise.default_sharpness(objective.adds_log_q),)


def _log_frequency(counts: np.ndarray) -> torch.Tensor:
    """log of each class's share of the examples; a class without any counts as half of one."""
    share = np.maximum(counts, 0.5)
    return torch.from_numpy(np.log(share / share.sum()).astype(np.float32))


class ClassMeans(NamedTuple):
    """Sums of the rows of each class, their numbers, the mean of all rows, and κ."""

    sums: np.ndarray
    counts: np.ndarray
    mean: np.ndarray
    kappa: float


def _write_means(head: LinearHead, means: ClassMeans) -> None:
    """Write f to the head in place of the class sums: no second head is needed."""
    center = means.mean.astype(np.float32)
    for start in range(0, head.n_classes, _BLOCK):
        block = slice(start, start + _BLOCK)
        size = means.counts[block, None].astype(np.float32)
        deviation = means.sums[block] - size * center
        deviation /= size + np.float32(means.kappa)
        # einsum and not BLAS, which adds in an order that depends on its number of threads.
        linear = np.einsum("ij,j->i", deviation, center)
        bias = -linear - 0.5 * np.einsum("ij,ij->i", deviation, deviation)
        head.bias[block] = torch.from_numpy(bias)
        means.sums[block] = deviation


def _likeliest(
    model: Model,
    examples: Examples,
    held_out: np.ndarray,
    choices: list[tuple[float, float, float]],
) -> tuple[float, float, float]:
    """The (sharpness, τ, c) under which the head at its start predicts held-out rows best.

    This is measured before training, but only the order of sharpnesses matters, and training
    hardly changes that.
    """
    head, noise = model.head, model.noise
    held_out = held_out[: max(64, _CHOICE_SCORES // head.n_classes)]
    total = np.zeros(len(choices))
    # Fewer rows than an evaluation takes: while a tree is tempered, there are two copies of it.
    budget = max(HELD_OUT_BYTES, 2 * BYTES_PER_SCORE * head.n_classes)
    for block in row_slices(len(held_out), head.n_classes, budget, more=BYTES_PER_SCORE):
        numbers = held_out[block]
        scores = head.scores_all(examples.rows[numbers])
        context = examples.context_of(noise, numbers)
        truth = torch.from_numpy(examples.labels[numbers])[:, None]
        for i, (sharpness, tau, _) in enumerate(choices):
            noise.temper(sharpness)
            for part in eighths(len(numbers)):
                logits = noise.log_prob_all(context[part]).add_(scores[part], alpha=tau)
                log_p = logits.gather(1, truth[part])[:, 0] - logits.logsumexp(1)
                total[i] += float(log_p.double().sum())
                del logits
        del scores
    return choices[int(total.argmax())]


def _sum_classes(head: LinearHead, examples: Examples, train: np.ndarray) -> float:
    """Sum the scaled features of each class into the head's weights; returns Σ‖x‖²."""
    from extremax.kernels.cpu.means import add_class_sums

    squares = 0.0
    size = max(1, min(_BLOCK, _BLOCK_BYTES // (4 * max(1, head.weight.shape[1]))))
    for start in range(0, len(train), size):
        numbers = train[start : start + size]
        features, places = head.inputs(examples.rows, numbers)
        labels = examples.labels[numbers]
        order = np.argsort(labels, kind="stable")
        classes, offsets = np.unique(labels[order], return_index=True)
        parallel(
            add_class_sums, len(classes), max(1, len(classes) // 32), features, places[order],
            classes, np.append(offsets, len(numbers)), head.table(),
        )  # fmt: skip
        x = features[places]
        squares += float(np.einsum("ij,ij->", x, x, dtype=np.float64)) * head.scale**2
    head.weight.mul_(head.scale)
    return squares


def _shrinkage(sums: np.ndarray, counts: np.ndarray, mean: np.ndarray, squares: float) -> float:
    """κ = s²_within / s²_between by the method of moments."""
    n, filled = counts.sum(), counts > 0
    n_classes = int(filled.sum())
    explained = 0.0
    for start in range(0, len(counts), _BLOCK):
        block = slice(start, start + _BLOCK)
        norms = np.einsum("ij,ij->i", sums[block], sums[block], dtype=np.float64)
        explained += float((norms / np.maximum(counts[block], 1)).sum())
    overall = n * float(mean @ mean)
    within = max(squares - explained, 1e-12 * squares + 1e-30) / max(n - n_classes, 1)
    spread = n - float((counts.astype(np.float64) ** 2).sum()) / n
    between = (explained - overall - (n_classes - 1) * within) / max(spread, 1.0)
    return float(np.clip(within / max(between, 1e-30), 1e-3, 1e3))


def _sample_scores(
    model: Model,
    examples: Examples,
    sample: np.ndarray,
    n_negatives: int,
    seed: int,
    means: ClassMeans,
    prior: torch.Tensor,
) -> tuple[Pairs, torch.Tensor]:
    """f of the true class and of some negatives of sampled rows, and their log frequency."""
    # Room for the results is allocated first: small arrays between large temporary ones would
    # leave holes in memory.
    shape = len(sample), 1 + n_negatives
    scores, log_q, log_frequency = torch.empty(shape), torch.empty(shape), torch.empty(shape)
    hits = torch.empty((len(sample), n_negatives), dtype=torch.bool)
    center = torch.from_numpy(means.mean).float()
    sums, counts = torch.from_numpy(means.sums), torch.from_numpy(means.counts)
    noise = _start_noise(model)
    scale = model.head.options.scale
    step = max(1, min(512, _BLOCK_BYTES // (4 * (1 + n_negatives) * max(1, len(center)))))
    for start in range(0, len(sample), step):
        part = slice(start, start + step)
        numbers = sample[part]
        x = torch.from_numpy(examples.rows[numbers].dense().float32()) * scale
        context = examples.context_of(noise, numbers)
        truth = torch.from_numpy(examples.labels[numbers])[:, None]
        stream = Stream.of(seed, Purpose.START, rows=numbers)
        if model.objective.start_objective().draws_others:
            draw = noise.sample_others(context, truth, n_negatives, stream)
        else:
            draw = noise.sample(context, n_negatives, stream)
        classes = torch.cat([truth, draw.labels], 1)
        is_true = (classes == truth).float()
        # An example must not vote for its own class.
        seen = counts[classes].float() - is_true
        deviation = sums[classes]
        deviation -= is_true[..., None] * x[:, None]
        deviation -= seen[..., None] * center
        deviation /= (seen + means.kappa)[..., None]
        linear = (deviation * (x - center)[:, None]).sum(2)
        scores[part] = linear - 0.5 * deviation.square_().sum(2)
        log_q[part] = torch.cat([noise.log_prob(context, truth), draw.log_q], 1)
        log_frequency[part], hits[part] = prior[classes], draw.labels == truth
    return Pairs(scores, log_q, hits, torch.empty((len(hits), 0))), log_frequency


def _start_noise(model: Model) -> Noise:
    """The noise itself, unless it follows the head that is being set, or there is none, or unlikely
    classes must be seen too."""
    sees_all = math.isfinite(model.objective.least_score)
    if model.objective.samples and not model.noise.follows_head and not sees_all:
        return model.noise
    uniform = UniformNoise()
    uniform.extend(model.n_classes)
    return uniform


def _best_scale(objective: Objective, pairs: Pairs, prior: torch.Tensor) -> tuple[float, float]:
    """(τ, c) that minimize the mean objective of τ f + log frequency + c; where only scores above a
    least one are logits, c puts nearly all there."""
    least_score, objective = objective.least_score, objective.start_objective()
    unit = float(pairs.scores.double().std()) or 1.0
    f = pairs.scores.double() / max(unit, 1e-12)
    pairs, prior = pairs._replace(log_q=pairs.log_q.double()), prior.double()

    def mean_loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.tensor(at, requires_grad=True)
        scores = theta[0] * f + prior + theta[1]
        loss = objective.loss(pairs._replace(scores=scores)).mean()
        return float(loss.detach()), torch.autograd.grad(loss, theta)[0].numpy()

    # Not torch.optim: its first use loads torch's compiler, 50 MB.
    found = minimize(mean_loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-7})
    tau, offset = found.x.tolist()
    if not np.isfinite(tau + offset) or tau < 0:
        tau, offset = 0.0, 0.0
    if math.isfinite(least_score):
        offset = least_score - float(np.quantile((tau * f + prior)[:, 1:].numpy(), _BELOW))
    return tau / max(unit, 1e-12), offset
