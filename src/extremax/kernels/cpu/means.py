"""Sums of the rows of each class, in numba."""

from __future__ import annotations

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST


@kernel(fastmath=FAST)
def add_class_sums(start, stop, features, rows, classes, offsets, out):
    """out[classes[c]] += Σ features[rows[offsets[c]:offsets[c+1]]]; one thread sums a class."""
    n_features = features.shape[1]
    for c in range(start, stop):
        total = out[classes[c]]
        for i in range(offsets[c], offsets[c + 1]):
            x = features[rows[i]]
            for f in range(n_features):
                total[f] += x[f]
