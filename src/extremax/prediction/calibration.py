"""Temperature scaling: one number by which logits are divided, fitted on held-out rows.

Guo, Pleiss, Sun & Weinberger, "On calibration of modern neural networks", ICML 2017: p_T is the
softmax of logits/T. T > 1 makes a model that is too sure of itself less so; the order of classes
does not change. For logits ξ + log q the sum is divided, as it is the sum that is the logit.
"""

from __future__ import annotations

import numpy as np
import torch

from extremax.prediction.blocks import Scorer, blocks, taken

# T is sought between 1/30 and 30. A model that is right on every held-out row ends at the one.
_LOWEST, _HIGHEST = -3.4, 3.4
_POINTS = 9
_PASSES = 3


def fit_temperature(
    scorer: Scorer,
    features: np.ndarray,
    labels: np.ndarray,
    budget: int,
    rows: np.ndarray | None = None,
) -> float:
    """The T that makes the labels likeliest when ``scorer.logits`` are divided by it.

    labels:  integers; rows of −1, a class the model has not, are left out.
    budget:  bytes; rows go in blocks that fit, three times over.
    rows:    those to look at, by default all.

    The log-likelihood is concave in 1/T, so it has one maximum in log T. Each pass tries nine
    values in the bracket that the one before left; a parabola through the last three ends it. Four
    digits: more are not known, and the last bits of sums depend on how many threads add.
    """
    labels = np.asarray(labels, np.int64)
    known = np.flatnonzero(labels >= 0) if rows is None else rows[labels[rows] >= 0]
    if not len(known):
        raise ValueError("a temperature needs held-out rows of known classes")
    low, high = _LOWEST, _HIGHEST
    for _ in range(_PASSES):
        grid = np.linspace(low, high, _POINTS + 2)
        value = _log_likelihoods(scorer, features, labels, known, grid, budget)
        # Of equals the one nearest to T = 1: where T does not matter it stays 1.
        best = np.flatnonzero(value >= value.max() - 1e-12 * abs(value.max()))
        at = int(best[np.abs(grid[best]).argmin()])
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    return float(f"{np.exp(_top(grid, value, at)):.4g}")


def _log_likelihoods(
    scorer: Scorer,
    features: np.ndarray,
    labels: np.ndarray,
    known: np.ndarray,
    log_t: np.ndarray,
    budget: int,
) -> np.ndarray:
    """Sum of log p of the labels at each temperature."""
    total = np.zeros(len(log_t))
    # Beside the logits, those divided by T and what normalising them takes.
    for part in blocks(known, scorer.bytes_a_row() + 12 * scorer.head.n_classes, budget):
        some = known[part]
        logits = scorer.logits(taken(features, some))
        truth = torch.from_numpy(labels[some])[:, None]
        for i, t in enumerate(np.exp(log_t)):
            log_p = scorer.objective.log_normalise(logits / float(t))
            total[i] += float(log_p.gather(1, truth).double().sum())
            del log_p
    return total


def _top(x: np.ndarray, y: np.ndarray, at: int) -> float:
    """Where the parabola through a maximum and its neighbours has its top."""
    if at in (0, len(x) - 1):
        return float(x[at])
    left, middle, right = y[at - 1 : at + 2]
    bend = left - 2.0 * middle + right
    # Flat to rounding: the middle is as good as any.
    shift = 0.5 * (left - right) / bend if bend < 0.0 else 0.0
    return float(x[at] + np.clip(shift, -1.0, 1.0) * (x[1] - x[0]))
