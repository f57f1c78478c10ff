"""log Σ_p w_p q_p, in numba. torch's vectorized loops round differently at the end of a row than
within it, so that log q of a row would depend on the other rows."""

from __future__ import annotations

import math

from extremax.kernels.cpu.jit import kernel


@kernel
def mix_log_probs(start, stop, log_weights, log_q, out):
    """out[i, j] = log Σ_p exp(log_weights[p] + log_q[p, i, j])."""
    for i in range(start, stop):
        for j in range(out.shape[1]):
            top = -math.inf
            for p in range(log_q.shape[0]):
                top = max(top, log_weights[p] + log_q[p, i, j])
            total = 0.0
            for p in range(log_q.shape[0]):
                total += math.exp(log_weights[p] + log_q[p, i, j] - top)
            out[i, j] = top + math.log(total)
