"""Walker's alias method: draws from any fixed distribution in O(1), in numba."""

from __future__ import annotations

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.random import row_state, uniform


@kernel
def build_alias(probabilities):
    """Vose's O(C) construction: column c yields c with probability threshold[c], else alias[c]."""
    n = probabilities.size
    threshold = probabilities * n
    alias = np.arange(n)
    small = np.empty(n, np.int64)
    large = np.empty(n, np.int64)
    n_small, n_large = 0, 0
    for c in range(n):
        if threshold[c] < 1.0:
            small[n_small] = c
            n_small += 1
        else:
            large[n_large] = c
            n_large += 1
    while n_small and n_large:
        n_small -= 1
        low, high = small[n_small], large[n_large - 1]
        alias[low] = high
        threshold[high] -= 1.0 - threshold[low]
        if threshold[high] < 1.0:
            n_large -= 1
            small[n_small] = high
            n_small += 1
    # The remaining thresholds differ from one only by rounding.
    for i in range(n_small):
        threshold[small[i]] = 1.0
    for i in range(n_large):
        threshold[large[i]] = 1.0
    return threshold, alias


@kernel
def draw_alias(start, stop, threshold, alias, key, rows, labels):
    """labels[i, j] from the distribution of the alias table."""
    n = threshold.size
    for i in range(start, stop):
        state = row_state(key, rows[i])
        for j in range(labels.shape[1]):
            c = int(uniform(state, 2 * j) * n)
            labels[i, j] = c if uniform(state, 2 * j + 1) < threshold[c] else alias[c]
