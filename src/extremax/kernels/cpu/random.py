"""Counter-based uniform random numbers: a pure function of (key, row, draw), in numba."""

from __future__ import annotations

import numpy as np
from numba import uint64

from extremax.kernels.cpu.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


@kernel(inline="always")
def mix(x):
    """The finalizer of SplitMix64 (Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> uint64(30))) * _M1
    x = (x ^ (x >> uint64(27))) * _M2
    return x ^ (x >> uint64(31))


@kernel(inline="always")
def row_state(key, row):
    """The state from which `uniform` computes the numbers of one row."""
    return mix(uint64(key) + uint64(row) * _GOLDEN)


@kernel(inline="always")
def uniform(state, draw):
    """A float64 in the open interval (0, 1): 52 random bits, centered.

    With 53 bits, adding one half would not fit in the mantissa, and the largest would round to 1.
    """
    bits = mix(state + uint64(draw + 1) * _GOLDEN)
    return (float(bits >> uint64(12)) + 0.5) * (1.0 / 4503599627370496.0)


@kernel
def fill_uniform(start, stop, key, rows, out):
    """out[i, j] = the j-th uniform of row rows[i]."""
    for i in range(start, stop):
        state = row_state(key, rows[i])
        for j in range(out.shape[1]):
            out[i, j] = uniform(state, j)
