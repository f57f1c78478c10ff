"""Draws from the log-uniform distribution by inverting its distribution function, in numba."""

from __future__ import annotations

import math

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.random import row_state, uniform


@kernel
def draw_log_uniform(start, stop, by_rank, key, rows, labels):
    """P(rank ≤ r) = log(r + 2) / log(C + 1), so rank = ⌊(C + 1)^u⌋ − 1."""
    n = by_rank.size
    log_size = math.log(n + 1.0)
    for i in range(start, stop):
        state = row_state(key, rows[i])
        for j in range(labels.shape[1]):
            rank = int(math.exp(uniform(state, j) * log_size)) - 1
            # The largest u may round to rank C.
            labels[i, j] = by_rank[min(rank, n - 1)]
