"""Gradients on what sparse rows sum up to, and dropout of their values, in numba."""

from __future__ import annotations

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.random import row_state, uniform


@kernel(fastmath=FAST)
def pull(start, stop, table, classes, gradient, scale, out):
    """out[i] = scale · Σ_j gradient[i, j] w[classes[i, j]]: the gradient on what was scored."""
    width = out.shape[1]
    for i in range(start, stop):
        for k in range(width):
            out[i, k] = 0.0
        for j in range(classes.shape[1]):
            c, g = classes[i, j], scale * gradient[i, j]
            if g != 0.0:
                for k in range(width):
                    out[i, k] += g * table[c, k]


@kernel
def drop(start, stop, indptr, values, key, rows, share, out):
    """Each value is zero with probability ``share``, else 1/(1 − share) times as large."""
    larger = np.float32(1.0 / (1.0 - share))
    for i in range(start, stop):
        state = row_state(key, rows[i])
        first = indptr[i]
        for entry in range(first, indptr[i + 1]):
            kept = uniform(state, entry - first) >= share
            out[entry] = values[entry] * larger if kept else np.float32(0.0)
