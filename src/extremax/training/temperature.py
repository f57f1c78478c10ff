"""Temperature scaling: one number by which logits are divided, fitted on held-out rows.

Guo, Pleiss, Sun & Weinberger, "On calibration of modern neural networks", ICML 2017: p_T is the
softmax of logits/T. T > 1 makes an overconfident model less so; the order of classes does not
change. For logits ξ + log q the sum is divided, since the sum is the logit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# T is sought between 1/30 and 30. A model that is right on every held-out row ends at the first.
_LOWEST, _HIGHEST = -3.4, 3.4
_POINTS = 9
_PASSES = 3


def best_temperature(log_likelihoods: Callable[[np.ndarray], np.ndarray]) -> float:
    """The T of the highest log-likelihood, given a function that computes it at several T.

    The log-likelihood is concave in 1/T, so it has one maximum in log T. Each pass tries nine
    values in the bracket that the previous pass left; a parabola through the last three ends it.
    The result has four digits: more are not known, and the last bits of sums depend on the number
    of threads.
    """
    low, high = _LOWEST, _HIGHEST
    for _ in range(_PASSES):
        grid = np.linspace(low, high, _POINTS + 2)
        value = log_likelihoods(np.exp(grid))
        # Of equals the one nearest to T = 1: where T does not matter it stays 1.
        best = np.flatnonzero(value >= value.max() - 1e-12 * abs(value.max()))
        i = int(best[np.abs(grid[best]).argmin()])
        low, high = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
    return float(f"{np.exp(_peak(grid, value, i)):.4g}")


def _peak(x: np.ndarray, y: np.ndarray, i: int) -> float:
    """Where the parabola through a maximum and its neighbors peaks."""
    if i in (0, len(x) - 1):
        return float(x[i])
    left, middle, right = y[i - 1 : i + 2]
    curvature = left - 2.0 * middle + right
    # Flat to rounding: the middle is as good as any.
    shift = 0.5 * (left - right) / curvature if curvature < 0.0 else 0.0
    return float(x[i] + np.clip(shift, -1.0, 1.0) * (x[1] - x[0]))
