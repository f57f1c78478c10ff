"""log Σ_i w_i q_i, in numba: torch's own vectors round otherwise at the end of a row than within,
so that a row's log q would depend on its company."""

from __future__ import annotations

import math

from numba import njit


@njit(nogil=True, cache=True)
def mix_log_probs(start, stop, log_weights, parts, out):
    """out[i, j] = log Σ_p exp(log_weights[p] + parts[p, i, j])."""
    for i in range(start, stop):
        for j in range(out.shape[1]):
            top = -math.inf
            for p in range(parts.shape[0]):
                top = max(top, log_weights[p] + parts[p, i, j])
            total = 0.0
            for p in range(parts.shape[0]):
                total += math.exp(log_weights[p] + parts[p, i, j] - top)
            out[i, j] = top + math.log(total)
