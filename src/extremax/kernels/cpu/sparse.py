"""Sparse rows times a dense matrix, in numba: scipy's product uses one core."""

from __future__ import annotations

from numba import njit

from extremax.kernels.cpu.lines import FAST


@njit(nogil=True, cache=True, fastmath=FAST)
def add_product(start, stop, indptr, indices, data, dense, out):
    """out[i] += Σ_p data[p] · dense[indices[p]] over the entries of sparse row i."""
    width = dense.shape[1]
    for i in range(start, stop):
        row = out[i]
        for p in range(indptr[i], indptr[i + 1]):
            value = data[p]
            other = dense[indices[p]]
            for f in range(width):
                row[f] += value * other[f]
