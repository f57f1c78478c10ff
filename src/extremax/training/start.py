"""Where the head starts: at the class means.

For classes that are clouds of equal, round shape, log p(x|y) is linear in x:

    f_y(x) = (m_y − m)·x − ½(‖m_y‖² − ‖m‖²),

m_y the mean of class y, shrunk to the mean m of all by n_y/(n_y + κ), κ = within-class over
between-class variance (one-way random-effects ANOVA). The head starts at ξ = τ f + c, with τ and
c minimising the objective itself on a sample, each example left out of its own class mean. From
zero, every class would first have to find its own mean, a few examples at a time. Where scores
are to become log p(y|x) rather than log p/q, the log frequency of each class is added: noise-
contrastive estimation learns nothing without it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar

from extremax.head import LinearHead
from extremax.kernels.cpu.means import add_class_sums
from extremax.kernels.cpu.threads import limit, one_torch_thread, parallel
from extremax.memory import return_the_rest
from extremax.noise.base import Noise
from extremax.noise.mixture import MixtureNoise
from extremax.noise.uniform import UniformNoise
from extremax.objectives.base import Objective, Pairs
from extremax.prediction.blocks import Head, Scorer, blocks, parts
from extremax.random import Stream
from extremax.training.loop import HELD_OUT_BYTES, Examples

# Rows, and draws for each at most, by which two numbers are fitted.
_SAMPLE, _DRAWS = 8_192, 20
# Classes, and bytes of rows, taken at a time.
_BLOCK = 1_024
_BLOCK_BYTES = 1 << 20
_START = 5
# Scores computed to choose a sharpness.
_CHOICE_SCORES = 30_000_000
# Where log τ is looked for, on rows of unit mean square length.
_LOG_TAU = (-3.0, 7.0)


def start_at_class_means(
    scorer: Scorer,
    examples: Examples,
    rows: np.ndarray,
    held_out: np.ndarray,
    n_negatives: int,
    seed: int,
) -> None:
    """Set the weights and biases of an untrained head, and the sharpness of its noise.

    Weights of examples play no part: this is a place to start from.
    """
    head = scorer.head
    counts = np.bincount(examples.labels[rows], minlength=head.n_classes)
    squares = _sum_classes(head, examples, rows)
    mean = head.weight.numpy().sum(0, dtype=np.float64) / len(rows)
    kappa = _shrinkage(head.weight.numpy(), counts, mean, squares)
    means = ClassMeans(head.weight.numpy(), counts, mean, kappa)
    prior = scorer.objective.start_scores(_log_frequency(counts))
    some = np.random.default_rng([seed, _START]).permutation(rows)[:_SAMPLE]
    sharpnesses = _sharpnesses_worth_trying(scorer, len(held_out) > 0)
    choices = []
    for sharpness in sharpnesses or (1.0,):
        if sharpnesses:
            scorer.noise.temper(sharpness)
        with one_torch_thread():
            sample = _sample_scores(
                scorer, examples, some, min(n_negatives, _DRAWS), seed, means, prior
            )
        # torch adds up in an order that depends on its threads.
        with limit(1):
            choices.append((sharpness, *_best_scale(scorer.objective, *sample)))
    _write_means(head, means)
    del counts, means
    return_the_rest()
    sharpness, tau, offset = choices[0]
    if len(choices) > 1:
        sharpness, tau, offset = _likeliest(scorer, examples, held_out, choices)
    if sharpnesses:
        scorer.noise.temper(sharpness)
    head.weight *= tau
    head.bias *= tau
    head.bias += prior + offset


def start_at_frequencies(scorer: Scorer, labels: np.ndarray) -> None:
    """Set the biases of an untrained head to what the objective makes of the log frequencies."""
    counts = np.bincount(labels, minlength=scorer.head.n_classes)
    scorer.head.bias.copy_(scorer.objective.start_scores(_log_frequency(counts)))


def start_at_sparse_means(
    scorer: Scorer, examples: Examples, rows: np.ndarray, held_out: np.ndarray
) -> None:
    """ξ_y = τ m_y·x + log frequency on a head with weights where class and feature met, m_y of unit
    length, with the τ that makes held-out rows likeliest. Those are in no class mean: none votes
    for its own."""
    head, some = scorer.head, held_out[:_SAMPLE]
    start_at_frequencies(scorer, examples.labels[rows])
    if not len(some):
        return
    features, labels = examples.features[some], examples.labels[some]
    head.set_means(examples.features, examples.labels, rows)
    means = head.entry_weight.copy()

    def loss(log_tau: float) -> float:
        np.multiply(means, np.float32(math.exp(log_tau)), out=head.entry_weight)
        return -float(head.log_probs(features, labels[:, None]).double().sum())

    zero = -_likelihood_of_frequencies(head, labels)
    best = minimize_scalar(loss, bounds=_LOG_TAU, method="bounded", options={"xatol": 0.05})
    tau = math.exp(best.x) if best.fun < zero else 0.0
    np.multiply(means, np.float32(tau), out=head.entry_weight)


def _likelihood_of_frequencies(head: Head, labels: np.ndarray) -> float:
    bias = head.bias.double()
    return float((bias[labels] - bias.logsumexp(0)).sum())


def _sharpnesses_worth_trying(scorer: Scorer, held_out: bool) -> tuple[float, ...]:
    """All where held-out rows can choose among them: where log q is a part of the logits.

    Elsewhere q had best be p itself (Blanc & Rendle 2018), so a tree that is one part of a mixture
    stays as sharp as it is: with 200 draws of 22,649 subjects of titles that left sampled softmax
    0.02 nats behind exact softmax instead of 0.16. A tree alone gets the middle of them: what it
    deems impossible, but is not, would enter with a huge weight.
    """
    every = scorer.noise.sharpnesses()
    if scorer.objective.adds_log_q and held_out:
        return every
    if isinstance(scorer.noise, MixtureNoise) and not scorer.objective.adds_log_q:
        return every[:1]
    return every[len(every) // 2 :][:1]


def _log_frequency(counts: np.ndarray) -> torch.Tensor:
    """log of each class's share, half an example for a class without."""
    share = np.maximum(counts, 0.5)
    return torch.from_numpy(np.log(share / share.sum()).astype(np.float32))


class ClassMeans(NamedTuple):
    sums: np.ndarray
    counts: np.ndarray
    mean: np.ndarray
    kappa: float


def _write_means(head: LinearHead, means: ClassMeans) -> None:
    """f as a head, in place of the class sums: no second head is needed."""
    centre = means.mean.astype(np.float32)
    for start in range(0, head.n_classes, _BLOCK):
        block = slice(start, start + _BLOCK)
        size = means.counts[block, None].astype(np.float32)
        away = means.sums[block] - size * centre
        away /= size + np.float32(means.kappa)
        # einsum and not BLAS, which adds in an order that depends on its threads.
        lean = -np.einsum("ij,j->i", away, centre) - 0.5 * np.einsum("ij,ij->i", away, away)
        head.bias[block] = torch.from_numpy(lean)
        means.sums[block] = away


def _likeliest(
    scorer: Scorer,
    examples: Examples,
    held_out: np.ndarray,
    choices: list[tuple[float, float, float]],
) -> tuple[float, float, float]:
    """The (sharpness, τ, c) under which the head at its start predicts held-out rows best.

    Measured before any training, but the order of sharpnesses is what counts, and that is much
    the same after it.
    """
    head, noise = scorer.head, scorer.noise
    held_out = held_out[: max(64, _CHOICE_SCORES // head.n_classes)]
    total = np.zeros(len(choices))
    # Fewer rows than a look takes: while a tree is tempered, there are two of it.
    each = 2 * scorer.bytes_a_row()
    for block in blocks(held_out, each, max(HELD_OUT_BYTES, each)):
        rows = held_out[block]
        x = np.array(examples.features[rows], dtype=np.float32, order="C")
        scores = head.scores_all(torch.from_numpy(x))
        context = examples.context_of(noise, rows)
        truth = torch.from_numpy(examples.labels[rows])[:, None]
        for i, (sharpness, tau, _) in enumerate(choices):
            noise.temper(sharpness)
            for part in parts(len(rows)):
                logits = noise.log_prob_all(context[part]).add_(scores[part], alpha=tau)
                own = logits.gather(1, truth[part])[:, 0] - logits.logsumexp(1)
                total[i] += float(own.double().sum())
                del logits
        del scores
    return choices[int(total.argmax())]


def _sum_classes(head: LinearHead, examples: Examples, rows: np.ndarray) -> float:
    """Sums of the scaled features of each class into the head's weights; returns Σ‖x‖²."""
    squares = 0.0
    size = max(1, min(_BLOCK, _BLOCK_BYTES // (4 * max(1, head.weight.shape[1]))))
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        features, at = examples.batch(block)
        labels = examples.labels[block]
        order = np.argsort(labels, kind="stable")
        classes, offsets = np.unique(labels[order], return_index=True)
        parallel(
            add_class_sums, len(classes), max(1, len(classes) // 32),
            features, at[order], classes, np.append(offsets, len(block)), head.table(),
        )  # fmt: skip
        x = features[at]
        squares += float(np.einsum("ij,ij->", x, x, dtype=np.float64)) * head.scale**2
    head.weight *= head.scale
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
    scorer: Scorer,
    examples: Examples,
    rows: np.ndarray,
    n_negatives: int,
    seed: int,
    means: ClassMeans,
    prior: torch.Tensor,
) -> tuple[Pairs, torch.Tensor]:
    """f of the true class and of some negatives of sampled rows, and their log frequency."""
    # The place of the results is made before: small ones between large passing arrays would
    # leave holes in memory.
    shape = len(rows), 1 + n_negatives
    scores, log_q, log_frequency = torch.empty(shape), torch.empty(shape), torch.empty(shape)
    hits = torch.empty((len(rows), n_negatives), dtype=torch.bool)
    centre = torch.from_numpy(means.mean).float()
    sums, counts = torch.from_numpy(means.sums), torch.from_numpy(means.counts)
    noise = _start_noise(scorer)
    size = 4 * (1 + n_negatives) * max(1, len(centre))
    step = max(1, min(512, _BLOCK_BYTES // size))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        block = rows[part]
        x = torch.from_numpy(np.array(examples.features[block], dtype=np.float32))
        x *= scorer.head.scale
        context = examples.context_of(noise, block)
        truth = torch.from_numpy(examples.labels[block])[:, None]
        draw = noise.sample(context, n_negatives, Stream.of(seed, _START, rows=block))
        classes = torch.cat([truth, draw.labels], 1)
        own = (classes == truth).float()
        # An example must not vote for its own class.
        seen = counts[classes].float() - own
        away = sums[classes]
        away -= own[..., None] * x[:, None]
        away -= seen[..., None] * centre
        away /= (seen + means.kappa)[..., None]
        scores[part] = (away * (x - centre)[:, None]).sum(2) - 0.5 * away.square_().sum(2)
        log_q[part] = torch.cat([noise.log_prob(context, truth), draw.log_q], 1)
        log_frequency[part], hits[part] = prior[classes], draw.labels == truth
    return Pairs(scores, log_q, hits, torch.empty((len(hits), 0))), log_frequency


def _start_noise(scorer: Scorer) -> Noise:
    """The noise itself, unless it waits for the head that is being made, or there is none."""
    if scorer.objective.samples and not scorer.noise.follows_head:
        return scorer.noise
    uniform = UniformNoise()
    uniform.extend(scorer.head.n_classes)
    return uniform


def _best_scale(objective: Objective, pairs: Pairs, prior: torch.Tensor) -> tuple[float, float]:
    """(τ, c) that minimise the mean objective of τ f + log frequency + c: two numbers."""
    objective = objective.start_objective()
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
        return 0.0, 0.0
    return tau / max(unit, 1e-12), offset
