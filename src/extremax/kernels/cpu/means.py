"""Sums of the rows of each class, in numba."""

from __future__ import annotations

from numba import njit

from extremax.kernels.cpu.head import FAST


@njit(nogil=True, cache=True, fastmath=FAST)
def add_class_sums(start, stop, features, rows, offsets, out):
    """out[c] += Σ features[rows[offsets[c]:offsets[c+1]]]; a class belongs to one thread."""
    n_features = features.shape[1]
    for c in range(start, stop):
        total = out[c]
        for i in range(offsets[c], offsets[c + 1]):
            x = features[rows[i]]
            for f in range(n_features):
                total[f] += x[f]
