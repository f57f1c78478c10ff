"""exp in a loop without calls, which the compiler vectorizes, and sums of it, in numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST


@intrinsic
def _float_of_bits(typing_context, bits):
    """The float32 that has these 32 bits. numba's ``view`` of an array takes a quarter of a second
    to compile."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@kernel(fastmath=FAST, inline="always")
def exp_below_zero(x):
    """exp(x) of a float32 of at most 0, to about 1e-7: 2^k e^r with a polynomial for e^r (the
    coefficients of Cephes' expf, Moshier 1989) and 2^k assembled from its bits. No less than
    exp(−80)."""
    x = max(x, np.float32(-80.0))
    k = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - k * np.float32(0.693359375) + k * np.float32(2.12194440e-4)
    q = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    q = q * r + np.float32(8.3334519073e-3)
    q = q * r + np.float32(4.1665795894e-2)
    q = q * r + np.float32(1.6666665459e-1)
    q = q * r + np.float32(5.0000001201e-1)
    power = _float_of_bits((np.int32(k) + np.int32(127)) << np.int32(23))
    return (q * r * r + r + np.float32(1.0)) * power


@kernel(fastmath=FAST)
def log_sums(start, stop, values, out):
    """out[i] = (log Σ exp, 2 log Σ √exp, mean) of values[i], float32, −∞ left out of all three.

    A row of nothing but −∞ has −∞, −∞ and 0.
    """
    least = np.float32(-3.0e38)
    for i in range(start, stop):
        top = np.float32(-np.inf)
        for j in range(values.shape[1]):
            top = max(top, values[i, j])
        if not top > least:
            out[i, 0], out[i, 1], out[i, 2] = -np.inf, -np.inf, 0.0
            continue
        whole = half = total = n = np.float32(0.0)
        for j in range(values.shape[1]):
            used = values[i, j] > least
            value = values[i, j] if used else top
            root = exp_below_zero(np.float32(0.5) * (value - top))
            root = root if used else np.float32(0.0)
            half += root
            whole += root * root
            total += value if used else np.float32(0.0)
            n += np.float32(used)
        out[i, 0] = top + math.log(whole)
        out[i, 1] = top + 2.0 * math.log(half)
        out[i, 2] = total / n
