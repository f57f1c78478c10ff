"""Truncated SVD of sparse rows, fitted in streaming passes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy import sparse

from extremax.kernels.cpu.threads import limit, parallel
from extremax.rows import Needs

_BLOCK_ROWS = 32_768
_MAX_ROWS = 200_000
# Passes of `fit` over its rows: two products per iteration and one for the eigenvectors.
_PASSES = 9


def csr_product(rows: sparse.csr_matrix, dense: np.ndarray) -> np.ndarray:
    """Compute ``rows @ dense`` in float32 on all threads."""
    out = np.zeros((rows.shape[0], dense.shape[1]), np.float32)
    _add_product(rows, dense, out)
    return out


def _add_product(rows: sparse.csr_matrix, dense: np.ndarray, out: np.ndarray) -> None:
    """Add ``rows @ dense`` to ``out`` in place."""
    from extremax.kernels.cpu.sparse import add_product

    data = rows.data.astype(np.float32, copy=False)
    parallel(add_product, rows.shape[0], 1024, rows.indptr, rows.indices, data, dense, out)


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    # The last bits of LAPACK's result depend on its number of threads.
    with limit(1):
        return torch.linalg.qr(torch.from_numpy(columns))[0].numpy()


class SparseSVD:
    """Project sparse rows onto the top right singular vectors V of the uncentered data: x ↦ x V.

    Subspace iteration Q ← orth(Xᵀ(X Q)) (Halko, Martinsson & Tropp 2011, algorithm 4.4), then the
    eigenvectors of (XQ)ᵀ(XQ). For D features, memory is D × (n_components + 10) numbers plus one
    block of rows.

    n_components:  number of singular vectors; at most the number of rows and of features.
    iterations:    number of subspace iterations.
    max_rows:      ``fit`` reads at most this many evenly spaced rows.
    """

    def __init__(
        self, n_components: int = 256, iterations: int = 4, max_rows: int = _MAX_ROWS
    ) -> None:
        self.n_components, self.iterations, self.max_rows = n_components, iterations, max_rows

    def fit(self, rows: sparse.csr_matrix, seed: int = 0) -> SparseSVD:
        """Find the singular vectors, starting from a random subspace drawn with ``seed``."""
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
        """Return x V as (n, n_components) float32."""
        return csr_product(rows, self.components_.numpy())

    @staticmethod
    def needs(
        n_rows: int, n_features: int, n_components: int, row_bytes: float, text_bytes: float
    ) -> Needs:
        """Bytes of an encoder that projects this many rows, for planning.

        row_bytes:   bytes of a CSR row.
        text_bytes:  bytes of the weights of hashed texts; 0 if the rows are not texts.
        """
        sketch = min(n_components + 10, n_features)
        # QR holds four copies of the sketch. Hashing holds the texts twice.
        hashed = 2.0 * row_bytes * n_rows if text_bytes else 0.0
        passing = 16.0 * n_features * sketch + 4.0 * _BLOCK_ROWS * sketch + hashed
        size = 4.0 * n_features * n_components + text_bytes
        return Needs(kept=size, passing=passing, saved=size)

    @staticmethod
    def visits(n_rows: int) -> float:
        """Rows read by ``fit`` and one projection of all rows, in units of all passes of a fit."""
        return min(n_rows, _MAX_ROWS) + n_rows / _PASSES
