"""What a noise that is a good classifier adds to a head: logits (ξ + Σ_l a_l log q_l + c log n)/T.

A tree fitted to sparse rows and a head trained beside it err in different places; the product of
the two experts (Hinton, "Training products of experts by minimizing contrastive divergence", 2002)
errs less than either. log q_l is the part of log q that level l of the tree has: some levels can be
trusted more than others. n is how many examples a class had, plus one: both experts know which
classes are frequent, and together they may say it too loudly. |c|/T is one at most.

With weights w = (1, a, c)/T of features f = (ξ, log q_l, log n), the log-likelihood of held-out
rows,

    Σ_i w·f_{y_i} − log Σ_y exp(w·f_y),

is concave in w, and Newton's method finds its top: the gradient is what the label has more of than
the model expects, the Hessian minus the covariance of f under the model. Head and tree were trained
on other rows, so that neither is taken for better than it is.

Of very many classes the sum has the label, those that the tree finds likeliest, and for all others
some drawn at random, each for many: the cost is that of a search, whatever the number of classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from extremax.features.rows import Rows
from extremax.noise.base import Noise
from extremax.objectives.base import Objective
from extremax.prediction.blocks import Scorer, taken
from extremax.prediction.tree_search import WIDTH
from extremax.random import Stream

# The search begins at half of each expert. It ends when a step gains less than `_ENOUGH` a row.
START = 0.5
_STEPS, _ENOUGH = 20, 1e-5
# How strongly weights are held there: a few held-out rows cannot move them far.
_PULL = 10.0
# The weight c/T of class frequency at most, up or down.
_PRIOR = 1.0
# Classes of a row that the tree proposes, and those drawn; up to that many in all are taken as
# they are.
_FOUND, _DRAWN = 128, 128
_BLOCK, _BLEND = 1024, 11


def blends(noise: Noise, objective: Objective) -> bool:
    """Whether the noise is heard beside the head: a classifier of its own, where scores are softmax
    logits and do not have its log q already."""
    softmax = type(objective).log_normalise is Objective.log_normalise
    return noise.predicts and softmax and not objective.adds_log_q


class Weights(NamedTuple):
    """T, the a_l and c."""

    temperature: float
    levels: tuple[float, ...]
    prior: float


class Classes(NamedTuple):
    """Classes of each row, its label first: what is known of them, (n, j, f), and the logarithm of
    how many each stands for."""

    known: torch.Tensor
    log_times: torch.Tensor


def fit_blend(
    scorer: Scorer, features: Rows, labels: np.ndarray, rows: np.ndarray, counts: np.ndarray
) -> Weights:
    """What makes the labels of these held-out rows likeliest, to four digits; ``counts`` are the
    examples of each class."""
    classes = _classes(scorer, features, labels, rows, log_counts(counts))
    start = np.full(scorer.noise.n_levels_ + 2, START)
    start[-1] = 0.0
    # Neither expert is turned against itself. Where classes have equally many examples, those with
    # one held out have fewer left, and a large weight on n would be a way to recognise them.
    least = np.where(start > 0.0, 1e-3, -_PRIOR)
    most = np.where(start > 0.0, np.inf, _PRIOR)
    at = start
    value, gradient, bend = _likelihood(classes, at, start)
    for _ in range(_STEPS):
        # Of those that are at a bound, only what would leave it moves.
        free = np.where(gradient > 0.0, at < most, at > least)
        step = np.zeros(len(at))
        step[free] = np.linalg.solve(bend[np.ix_(free, free)], gradient[free])
        ahead = np.clip(at + step, least, most)
        found = _likelihood(classes, ahead, start)
        while found[0] < value and np.abs(ahead - at).max() > 1e-4:
            ahead = (ahead + at) / 2.0
            found = _likelihood(classes, ahead, start)
        gain = found[0] - value
        if gain > 0.0:
            at, (value, gradient, bend) = ahead, found
        if gain < _ENOUGH * len(rows):
            break
    temperature, *others = (float(f"{v:.4g}") for v in (1.0 / at[0], *at[1:] / at[0]))
    return Weights(temperature, tuple(others[:-1]), others[-1])


def log_counts(counts: np.ndarray) -> torch.Tensor:
    """log n of each class."""
    return torch.from_numpy(np.log1p(counts)).float()


def _classes(
    scorer: Scorer, features: Rows, labels: np.ndarray, rows: np.ndarray, log_n: torch.Tensor
) -> Classes:
    n_classes = 1 + min(scorer.head.n_classes, _FOUND + _DRAWN)
    known = torch.empty((len(rows), n_classes, scorer.noise.n_levels_ + 2))
    log_times = torch.zeros((len(rows), n_classes))
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        some = rows[part]
        block = taken(features, some)
        context = scorer.noise.context(block)
        truth = torch.from_numpy(labels[some])[:, None]
        others, log_times[part, 1:] = _others(scorer, context, truth, some)
        every = torch.cat([truth, others], 1)
        xi = scorer.head.scores(scorer.head.inputs(block), np.arange(len(some)), every)
        known[part, :, 0] = scorer.objective.logits(xi, xi[:0])
        known[part, :, 1:-1] = scorer.noise.level_log_probs(context, every)
        known[part, :, -1] = log_n[every]
    return Classes(known, log_times)


def _others(
    scorer: Scorer, context: Rows, truth: torch.Tensor, rows: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes besides the label, and the logarithm of how many each stands for: −∞ for the label
    itself and for what was drawn in vain."""
    n_classes = scorer.head.n_classes
    if n_classes <= _FOUND + _DRAWN:
        every = torch.arange(n_classes).repeat(len(truth), 1)
        return every, torch.zeros(every.shape).masked_fill_(every == truth, -math.inf)
    ones = np.ones(scorer.noise.n_levels_)
    found = scorer.noise.search(context, _FOUND, WIDTH, ones).labels
    chance = torch.from_numpy(Stream.of(0, _BLEND, rows=rows).uniform(_DRAWN))
    drawn = (chance * n_classes).long()
    again = (drawn == truth) | (drawn[:, :, None] == found[:, None]).any(2)
    nothing = (found == truth) | (found < 0)
    n_left = n_classes - 1 - (~nothing).sum(1, keepdim=True)
    times = (n_left / (~again).sum(1, keepdim=True).clamp(min=1)).log()
    log_times = torch.cat(
        [
            torch.zeros(found.shape).masked_fill_(nothing, -math.inf),
            times.expand(drawn.shape).masked_fill(again, -math.inf),
        ],
        1,
    )
    return torch.cat([found.clamp(min=0), drawn], 1), log_times


def _likelihood(
    classes: Classes, at: np.ndarray, start: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Log-likelihood at these weights less (pull/2)‖w − start‖², its gradient and minus its
    Hessian."""
    value = -0.5 * _PULL * float(np.square(at - start).sum())
    gradient, bend = -_PULL * (at - start), _PULL * np.eye(len(at))
    weights = torch.from_numpy(at)
    for first in range(0, len(classes.known), _BLOCK):
        known = classes.known[first : first + _BLOCK].double()
        logits = known @ weights + classes.log_times[first : first + _BLOCK]
        log_p = logits.log_softmax(1)
        value += float(log_p[:, 0].sum())
        p = log_p.exp()
        means = torch.einsum("nj,njf->nf", p, known)
        gradient += (known[:, 0] - means).sum(0).numpy()
        away = known - means[:, None]
        bend += torch.einsum("nj,njf,njg->fg", p, away, away).numpy()
    return value, gradient, bend
