"""Sparse rows times a dense matrix, in numba: scipy's product uses one core."""

from __future__ import annotations

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST


@kernel(fastmath=FAST)
def add_product(start, stop, indptr, indices, data, dense, out):
    """out[i] += Σ_p data[p] · dense[indices[p]] over the entries of sparse row i; rows of ``dense``
    may go on after the width of ``out``."""
    width = out.shape[1]
    for i in range(start, stop):
        for p in range(indptr[i], indptr[i + 1]):
            f, value = indices[p], data[p]
            for k in range(width):
                out[i, k] += value * dense[f, k]
