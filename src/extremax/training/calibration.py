"""What held-out rows say about the logits: temperature, and the weights of a product of experts.

Head and noise were fitted to other rows, so that neither is taken for better than it is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.heads.blocks import BYTES_PER_SCORE, over_rows, row_slices
from extremax.kernels.cpu.threads import active, each
from extremax.model import Model
from extremax.prediction.blend import START, Blend, log_counts
from extremax.random import Purpose, Stream
from extremax.rows import Needs, Rows
from extremax.search.base import Searcher
from extremax.training.temperature import best_temperature

# Newton's method stops when a step gains less than `_ENOUGH` per row.
_STEPS, _ENOUGH = 20, 1e-5
# Rows at most, where log q of a tree is part of the evidence, which takes long to gather, and
# elsewhere: all that are held out.
_TREE_ROWS, _ROWS = 6_000, 10_000
# How strongly weights are pulled to where they start: a few held-out rows cannot move them far.
_PULL = 10.0
# The weight c/T of class frequency at most, up or down.
_MOST_PRIOR = 1.0
# Classes per row that the noise's search proposes, and that are drawn at random; with no more
# classes than that in all, every class is used.
_PROPOSED, _DRAWN = 128, 128
_BLOCK = 256
# Scores, or rows at least, that a temperature is fitted to.
_TEMPERATURE_SCORES, _TEMPERATURE_ROWS = 10_000_000, 500
# Memory to find the likeliest classes in, where no search does.
_BEST_BYTES = 2**26


def blend_rows(n_levels: int) -> int:
    """Rows that a blend is fitted to at most; levels are those of a tree."""
    return _TREE_ROWS if n_levels else _ROWS


def temperature_rows(n_classes: int) -> int:
    """Rows that a temperature is fitted to: some seconds of work."""
    return max(_TEMPERATURE_ROWS, _TEMPERATURE_SCORES // n_classes)


class Evidence(NamedTuple):
    """Some classes of each row, its label first: f = (ξ, log q_l, log(1 + v_e/ε_e), log n) of each,
    (n, j, f), and the logarithm of how many classes each stands for; the weight of each row (n,),
    None for ones."""

    features: torch.Tensor
    log_weights: torch.Tensor
    row_weights: torch.Tensor | None = None


def fit_temperature(
    model: Model,
    rows: Rows,
    labels: np.ndarray,
    budget: int,
    numbers: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> float:
    """The T that makes the labels likeliest when the model's logits are divided by it.

    labels:   class numbers; rows of −1, a class the model does not have, are left out.
    numbers:  the rows to use, by default all.
    weights:  of the rows to use, by default ones.
    """
    labels = np.asarray(labels, np.int64)
    numbers = np.arange(len(labels)) if numbers is None else numbers
    is_known = labels[numbers] >= 0
    known = numbers[is_known]
    weights = np.ones(len(numbers)) if weights is None else weights
    row_weights = torch.from_numpy(weights[is_known])
    if not len(known):
        raise ArgumentError("a temperature needs held-out rows of known classes")

    kept: dict[int, torch.Tensor] = {}
    keeps = 8 * len(known) * model.n_classes <= budget

    def logits_of(block: slice) -> torch.Tensor:
        """Computed once, where all fit in half of the budget."""
        logits = kept.get(block.start)
        if logits is None:
            logits = model.logits(rows[known[block]])
            if keeps:
                kept[block.start] = logits
        return logits

    def log_likelihoods(temperatures: np.ndarray) -> np.ndarray:
        totals = np.zeros((len(known), len(temperatures)))

        def score(block: slice) -> None:
            logits, truth = logits_of(block), torch.from_numpy(labels[known[block]])[:, None]
            for i, temperature in enumerate(temperatures):
                log_p = model.log_normalize(logits / float(temperature))
                totals[block, i] = log_p.gather(1, truth)[:, 0].double() * row_weights[block]
                del log_p

        # Besides the logits, those divided by T and what normalizing them takes.
        if model.blend.levels:
            over_rows(score, len(known), model.n_classes, budget, more=4)
        else:
            for block in row_slices(len(known), model.n_classes, budget, more=12):
                score(block)
        return totals.sum(0)

    return best_temperature(log_likelihoods)


def fit_blend(
    model: Model,
    rows: Rows,
    labels: np.ndarray,
    numbers: np.ndarray,
    counts: np.ndarray,
    weights: np.ndarray | None = None,
) -> Blend:
    """The blend that makes the labels of these held-out rows likeliest, to four digits.

    With weights w = (1, a, d, c)/T of features f = (ξ, log q_l, log(1 + v_e/ε_e), log n), the
    log-likelihood

        Σ_i w·f_{y_i} − log Σ_y exp(w·f_y)

    is concave in w, and Newton's method finds its maximum: the gradient is the features of the
    label minus their mean under the model, the Hessian minus their covariance. Of very many classes
    the sum has the label, those that the noise's search proposes, and for all others some drawn at
    random, each of which stands for many: the cost is that of a search, whatever the number of
    classes.

    counts:   training examples of each class. They must exclude the held-out rows, whose labels
              they would leak; |c|/T is at most one for the same reason.
    weights:  of the numbered rows in the sum, by default ones.
    """
    most = blend_rows(len(model.blend.levels))
    numbers = numbers[:most]
    evidence = gather_evidence(model, rows, labels, numbers, log_counts(counts))
    if weights is not None:
        evidence = evidence._replace(row_weights=torch.from_numpy(weights[:most]))
    blend, n_levels = model.blend, len(model.blend.levels)
    start = np.array([1.0, *blend.levels, *blend.experts, blend.prior]) / blend.temperature
    # No expert may be turned against itself.
    low, high = np.zeros(len(start)), np.full(len(start), np.inf)
    low[: 1 + n_levels] = 1e-3
    low[-1], high[-1] = -_MOST_PRIOR, _MOST_PRIOR
    weights = start
    value, gradient, curvature = log_likelihood(evidence, weights, start)
    for _ in range(_STEPS):
        # Of the weights at a bound, only those that would leave it move.
        free = np.where(gradient > 0.0, weights < high, weights > low)
        step = np.zeros(len(weights))
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        proposal = np.clip(weights + step, low, high)
        result = log_likelihood(evidence, proposal, start)
        while result[0] < value and np.abs(proposal - weights).max() > 1e-4:
            proposal = (proposal + weights) / 2.0
            result = log_likelihood(evidence, proposal, start)
        gain = result[0] - value
        if gain > 0.0:
            weights, (value, gradient, curvature) = proposal, result
        if gain < _ENOUGH * len(numbers):
            break
    rounded = (1.0 / weights[0], *weights[1:] / weights[0])
    temperature, *others = (float(f"{number:.4g}") for number in rounded)
    return Blend(temperature, tuple(others[:n_levels]), tuple(others[n_levels:-1]), others[-1])


def blend_needs(n_rows: float, n_classes: int, n_levels: int) -> Needs:
    """Bytes that `fit_blend` takes: all evidence in float32, and a block of it three times in
    float64."""
    n_rows = min(n_rows, blend_rows(n_levels))
    classes = 1 + min(n_classes, _PROPOSED + _DRAWN)
    # Of the blocks that threads work on at the same time.
    block = 24.0 * (n_levels + 2) * min(n_rows, _BLOCK * active())
    return Needs(passing=classes * (4.0 * (n_levels + 3) * n_rows + block))


def gather_evidence(
    model: Model, rows: Rows, labels: np.ndarray, numbers: np.ndarray, log_n: torch.Tensor
) -> Evidence:
    """What `fit_blend` reads of the numbered rows."""
    head, noise, n_levels = model.head, model.noise, len(model.blend.levels)
    n_columns = 1 + min(model.n_classes, _PROPOSED + _DRAWN)
    features = torch.empty((len(numbers), n_columns, 2 + n_levels + len(model.experts)))
    log_weights = torch.zeros((len(numbers), n_columns))

    def gather(i: int) -> None:
        part = slice(i * _BLOCK, (i + 1) * _BLOCK)
        block = rows[numbers[part]]
        truth = torch.from_numpy(labels[numbers[part]])[:, None]
        others, log_weights[part, 1:] = _other_classes(model, block, truth, numbers[part])
        classes = torch.cat([truth, others], 1)
        scores = head.scores(head.inputs(block), classes)
        features[part, :, 0] = model.objective.link(scores)
        if n_levels:
            levels = noise.level_log_probs(noise.context(block), classes)
            features[part, :, 1 : 1 + n_levels] = levels
        for i, expert in enumerate(model.experts):
            features[part, :, 1 + n_levels + i] = expert.at(block, classes)
        features[part, :, -1] = log_n[classes]

    searcher, n_blocks = model.searcher, -(-len(numbers) // _BLOCK)
    if searcher is not None and searcher.searches_alone:
        each(gather, n_blocks)
    else:
        for i in range(n_blocks):
            gather(i)
    return Evidence(features, log_weights)


def _other_classes(
    model: Model, block: Rows, truth: torch.Tensor, numbers: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes besides the label, and the logarithm of how many classes each stands for: −∞ for the
    label itself and for repetitions."""
    n_classes, searcher = model.n_classes, model.searcher
    if n_classes <= _PROPOSED + _DRAWN:
        every = torch.arange(n_classes).repeat(len(truth), 1)
        return every, torch.zeros(every.shape).masked_fill_(every == truth, -math.inf)
    if searcher is None or not searcher.preferred:
        proposed = _best_by_all(model, block)
        unused = torch.zeros(proposed.shape, dtype=torch.bool)
    else:
        proposed, unused = _proposed(searcher, model, block)
    uniform = torch.from_numpy(Stream.of(0, Purpose.BLEND, rows=numbers).uniform(_DRAWN))
    drawn = (uniform * n_classes).long()
    repeated = (drawn == truth) | (drawn[:, :, None] == proposed[:, None]).any(2)
    unused |= proposed == truth
    n_left = n_classes - 1 - (~unused).sum(1, keepdim=True)
    share = (n_left / (~repeated).sum(1, keepdim=True).clamp(min=1)).log()
    log_weights = [
        torch.zeros(proposed.shape).masked_fill_(unused, -math.inf),
        share.expand(drawn.shape).masked_fill(repeated, -math.inf),
    ]
    return torch.cat([proposed.clamp(min=0), drawn], 1), torch.cat(log_weights, 1)


def _best_by_all(model: Model, block: Rows) -> torch.Tensor:
    """The likeliest classes where every expert counts half as much as the head."""
    halves = replace(model.blend, experts=(START,) * len(model.experts))
    budget = _BEST_BYTES + BYTES_PER_SCORE * model.n_classes
    return replace(model, blend=halves).topk(block, _PROPOSED, budget).labels


def _proposed(searcher: Searcher, model: Model, block: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that the noise alone finds likeliest, and which places are unused."""
    ones = np.ones(model.noise.n_levels)
    classes, unused = [], []
    # Sparse trees propose twice as many classes as they are asked for, best first.
    found = searcher.candidates(
        block, _PROPOSED // 2, searcher.default_width, ones, model.objective.link
    )
    for candidates in found:
        sums = candidates.sums[:, :_PROPOSED]
        classes.append(candidates.classes(torch.arange(sums.shape[1]).expand(sums.shape)))
        unused.append(sums.isneginf())
    return torch.cat(classes), torch.cat(unused)


def log_likelihood(
    evidence: Evidence, weights: np.ndarray, start: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Log-likelihood at these weights minus (pull/2)‖w − start‖², its gradient and minus its
    Hessian."""
    value = -0.5 * _PULL * float(np.square(weights - start).sum())
    gradient, curvature = -_PULL * (weights - start), _PULL * np.eye(len(weights))
    w, n_blocks = torch.from_numpy(weights), -(-len(evidence.features) // _BLOCK)
    # Threads must not add up: the order would depend on them.
    parts: list[Any] = [None] * n_blocks

    def add_up(i: int) -> None:
        part = slice(i * _BLOCK, (i + 1) * _BLOCK)
        features = evidence.features[part].double()
        log_p = (features @ w + evidence.log_weights[part]).log_softmax(1)
        p = log_p.exp()
        means = torch.einsum("nj,njf->nf", p, features)
        surprise, centered = features[:, 0] - means, features - means[:, None]
        of_label = log_p[:, 0]
        if evidence.row_weights is not None:
            of_row = evidence.row_weights[part, None]
            of_label, surprise, p = of_label * of_row[:, 0], surprise * of_row, p * of_row
        products = torch.einsum("nj,njf,njg->fg", p, centered, centered)
        parts[i] = float(of_label.sum()), surprise.sum(0).numpy(), products.numpy()

    each(add_up, n_blocks)
    for of_labels, surprises, products in parts:
        value, gradient, curvature = (
            value + of_labels, gradient + surprises, curvature + products
        )  # fmt: skip
    return value, gradient, curvature
