"""Centered rows times a few directions, in numba.

The last bits of a BLAS matrix product depend on its number of threads and on the other rows of the
block; this product takes as long and depends on neither.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST


@kernel(fastmath=FAST)
def project(start, stop, features, mean, directions, out):
    """out[i, j] = (features[i] − mean)·directions[j]."""
    n_features = mean.size
    centered = np.empty(n_features, np.float32)
    for i in range(start, stop):
        x = features[i]
        for f in range(n_features):
            centered[f] = x[f] - mean[f]
        for j in range(directions.shape[0]):
            direction = directions[j]
            total = np.float32(0.0)
            for f in range(n_features):
                total += centered[f] * direction[f]
            out[i, j] = total
