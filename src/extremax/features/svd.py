"""Truncated SVD of sparse rows, fitted in streaming passes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy import sparse

from extremax.kernels.cpu.threads import limit

_BLOCK_ROWS = 32_768


def csr_product(rows: sparse.csr_matrix, dense: np.ndarray) -> np.ndarray:
    """rows @ dense as float32, on every core."""
    out = np.zeros((rows.shape[0], dense.shape[1]), np.float32)
    _add_product(rows, dense, out)
    return out


def _add_product(rows: sparse.csr_matrix, dense: np.ndarray, out: np.ndarray) -> None:
    from extremax.kernels.cpu.sparse import add_product
    from extremax.kernels.cpu.threads import parallel

    data = rows.data.astype(np.float32, copy=False)
    parallel(add_product, rows.shape[0], 1024, rows.indptr, rows.indices, data, dense, out)


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    # LAPACK's last bits depend on its number of threads; with one they are the same everywhere.
    with limit(1):
        return torch.linalg.qr(torch.from_numpy(columns))[0].numpy()


class SparseSVD:
    """x ↦ x V: the top right singular vectors of the (uncentred) data.

    Subspace iteration Q ← orth(Xᵀ(X Q)) (Halko, Martinsson & Tropp 2011, algorithm 4.4), then the
    eigenvectors of (XQ)ᵀ(XQ). Only D × (n_components + 10) numbers are kept besides one block
    of rows. ``fit`` reads at most ``max_rows`` rows, evenly spaced.
    """

    def __init__(
        self, n_components: int = 256, iterations: int = 4, max_rows: int = 200_000
    ) -> None:
        self.n_components, self.iterations, self.max_rows = n_components, iterations, max_rows

    def fit(self, rows: sparse.csr_matrix, seed: int = 0) -> SparseSVD:
        n, width = rows.shape
        rank = min(self.n_components, n, width)
        sketch = min(rank + 10, width)
        start = np.random.default_rng(seed).standard_normal((width, sketch), dtype=np.float32)
        basis = _orthonormal(start)
        for _ in range(self.iterations):
            image = np.zeros((width, sketch), np.float32)
            for block in self._blocks(rows):
                _add_product(block.T.tocsr(), csr_product(block, basis), image)
            basis = _orthonormal(image)
        gram = torch.zeros((sketch, sketch), dtype=torch.float64)
        for block in self._blocks(rows):
            scores = torch.from_numpy(csr_product(block, basis))
            with limit(1):
                gram += (scores.T @ scores).double()
        with limit(1):
            vectors = torch.linalg.eigh(gram)[1].flip(1)[:, :rank].float()
            self.components_ = (torch.from_numpy(basis) @ vectors).contiguous()
        return self

    def _blocks(self, rows: sparse.csr_matrix) -> Iterator[sparse.csr_matrix]:
        stride = -(-rows.shape[0] // self.max_rows)
        for first in range(0, rows.shape[0], _BLOCK_ROWS * stride):
            yield rows[first : first + _BLOCK_ROWS * stride : stride]

    def transform(self, rows: sparse.csr_matrix) -> np.ndarray:
        """(n, n_components) float32."""
        return csr_product(rows, self.components_.numpy())
