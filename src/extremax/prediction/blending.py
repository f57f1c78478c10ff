"""What a noise that is a good classifier adds to a head: logits (ξ + Σ_l a_l log q_l + c log n)/T.

A tree fitted to sparse rows and a head trained beside it err in different places; the product of
the two experts (Hinton, "Training products of experts by minimizing contrastive divergence", 2002)
errs less than either. log q_l is the part of log q that level l of the tree has: some levels can be
trusted more than others. n is how many examples a class had, plus one: both experts know which
classes are frequent, and together they may say it too loudly.

With weights w = (1, a, c)/T of features f = (ξ, log q_l, log n), the log-likelihood of held-out
rows,

    Σ_i w·f_{y_i} − log Σ_y exp(w·f_y),

is concave in w, and Newton's method finds its top: the gradient is what the label has more of than
the model expects, the Hessian minus the covariance of f under the model. Head and tree were trained
on other rows, so that neither is taken for better than it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from extremax.features.rows import Rows
from extremax.prediction.blocks import Scorer, blocks, parts, taken

# The search begins at half of each expert. It ends when a step gains less than `_ENOUGH` a row.
START = 0.5
_STEPS, _ENOUGH = 20, 1e-5
# How strongly weights are held there: a few held-out rows cannot move them far.
_PULL = 10.0


class Weights(NamedTuple):
    """T, the a_l and c."""

    temperature: float
    levels: tuple[float, ...]
    prior: float


def fit_blend(
    scorer: Scorer,
    features: Rows,
    labels: np.ndarray,
    budget: int,
    rows: np.ndarray,
    counts: np.ndarray,
) -> Weights:
    """What makes the labels of these held-out rows likeliest, to four digits; ``counts`` are the
    examples of each class."""
    given = scorer, features, labels, budget, rows, log_counts(counts)
    start = np.full(scorer.noise.n_levels_ + 2, START)
    start[-1] = 0.0
    # Neither expert is turned against itself.
    least = np.where(start > 0.0, 1e-3, -np.inf)
    at = start
    value, gradient, bend = _likelihood(*given, at, start)
    for _ in range(_STEPS):
        ahead = np.maximum(at + np.linalg.solve(bend, gradient), least)
        found = _likelihood(*given, ahead, start)
        while found[0] < value and np.abs(ahead - at).max() > 1e-4:
            ahead = (ahead + at) / 2.0
            found = _likelihood(*given, ahead, start)
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


def _likelihood(
    scorer: Scorer,
    features: Rows,
    labels: np.ndarray,
    budget: int,
    rows: np.ndarray,
    log_n: torch.Tensor,
    at: np.ndarray,
    start: np.ndarray,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Log-likelihood at these weights less (pull/2)‖w − start‖², its gradient and minus its
    Hessian."""
    n = len(at)
    value = -0.5 * _PULL * float(np.square(at - start).sum())
    gradient, bend = -_PULL * (at - start), _PULL * np.eye(n)
    weights = torch.from_numpy(at).float()
    every_level = np.eye(n - 2)
    # Beside the logits the features, and three of their size in passing.
    for part in blocks(rows, scorer.bytes_a_row() + 4 * (n + 3) * scorer.head.n_classes, budget):
        some = rows[part]
        block = taken(features, some)
        scores = scorer.head.scores_all(block)
        context = scorer.noise.context(block)
        for piece in parts(len(some)):
            levels = scorer.noise.weighted_log_probs(context[piece], every_level)
            known = [scores[piece], *levels, log_n.expand(levels.shape[1:])]
            log_p = sum(w * f for w, f in zip(weights, known, strict=True)).log_softmax(1)
            truth = torch.from_numpy(labels[some][piece])[:, None]
            value += float(log_p.gather(1, truth).double().sum())
            p = log_p.exp_()
            means = torch.stack([(p * f).sum(1) for f in known], 1)
            own = torch.cat([f.gather(1, truth) for f in known], 1)
            gradient += (own - means).double().sum(0).numpy()
            for i in range(n):
                away = p * (known[i] - means[:, i : i + 1])
                for j in range(i, n):
                    bend[i, j] += float((away * known[j]).sum(1).double().sum())
    return value, gradient, np.triu(bend) + np.triu(bend, 1).T
