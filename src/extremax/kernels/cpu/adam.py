"""Adam on the rows of a table that a step touches; see `extremax.heads.adam_table`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel


class AdamRows(NamedTuple):
    """values, means, squares: (n, width) float32. last: (n,) int64, the step each row is at."""

    values: np.ndarray
    means: np.ndarray
    squares: np.ndarray
    last: np.ndarray


class Rates(NamedTuple):
    """step: of the whole table. rate, beta1, beta2, epsilon: of Adam."""

    step: int
    rate: float
    beta1: float
    beta2: float
    epsilon: float


@kernel
def catch_up(start, stop, rows, table, rates):
    """Bring rows[start:stop] to ``rates.step`` as if every step since had a gradient of zero.

    j steps later the mean is β₁ʲ and the square β₂ʲ times as large, so the steps form a geometric
    series of ratio ρ = β₁/√β₂, but for ε and the slow change of rate and bias correction.
    """
    ratio = rates.beta1 / math.sqrt(rates.beta2)
    correction = math.sqrt(1.0 - rates.beta2**rates.step) / (1.0 - rates.beta1**rates.step)
    for i in range(start, stop):
        row = rows[i]
        behind = rates.step - table.last[row]
        if behind <= 0:
            continue
        table.last[row] = rates.step
        if table.last[row] == behind:
            continue  # Never touched: all moments are zero.
        reach = ratio * (1.0 - ratio**behind) / (1.0 - ratio)
        size = np.float32(rates.rate * correction * reach)
        fade1, fade2 = np.float32(rates.beta1**behind), np.float32(rates.beta2**behind)
        epsilon = np.float32(rates.epsilon)
        value, mean, square = table.values[row], table.means[row], table.squares[row]
        for k in range(len(value)):
            value[k] -= size * mean[k] / (math.sqrt(square[k]) + epsilon)
            mean[k] *= fade1
            square[k] *= fade2


@kernel
def update(start, stop, rows, gradients, table, rates):
    """One step of Adam on rows[start:stop], which are at the step before ``rates.step``."""
    beta1, beta2 = np.float32(rates.beta1), np.float32(rates.beta2)
    rest1, rest2 = np.float32(1.0 - rates.beta1), np.float32(1.0 - rates.beta2)
    size = np.float32(rates.rate / (1.0 - rates.beta1**rates.step))
    correction = np.float32(1.0 / math.sqrt(1.0 - rates.beta2**rates.step))
    epsilon = np.float32(rates.epsilon)
    for i in range(start, stop):
        row = rows[i]
        table.last[row] = rates.step
        value, mean, square = table.values[row], table.means[row], table.squares[row]
        gradient = gradients[i]
        for k in range(len(value)):
            mean[k] = beta1 * mean[k] + rest1 * gradient[k]
            square[k] = beta2 * square[k] + rest2 * gradient[k] * gradient[k]
            value[k] -= size * mean[k] / (math.sqrt(square[k]) * correction + epsilon)
