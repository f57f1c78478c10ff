"""Sparse rows as kernels read them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import sparse

from extremax.random import Stream

# Rows looked at together.
_PART = 1 << 16

#: Rows as heads and noises take them: an array or memmap (n, K), or `SparseRows`.
Rows: TypeAlias = Any


class SparseRows:
    """CSR rows with rising indices: int64 offsets, int32 indices, float32 values.

    Some of them, ``rows[numbers]`` or ``rows[start:stop]``, are sparse rows again.
    """

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix = matrix
        self.indptr = matrix.indptr.astype(np.int64)
        self.indices = matrix.indices.astype(np.int32, copy=False)
        self.values = matrix.data.astype(np.float32, copy=False)

    @classmethod
    def of(cls, features: Any) -> SparseRows:
        """Of a sparse matrix, or of the numbers other than zero of a dense one."""
        if isinstance(features, SparseRows):
            return features
        matrix = sparse.csr_matrix(features)
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        return cls(matrix)

    def __len__(self) -> int:
        return self.matrix.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def n_features(self) -> int:
        return self.matrix.shape[1]

    def __getitem__(self, rows: Any) -> SparseRows:
        return SparseRows(self.matrix[np.asarray(rows) if isinstance(rows, torch.Tensor) else rows])

    def unit_scale(self, rows: np.ndarray | None = None) -> float:
        """1 / root mean square length of these rows, by default of all."""
        n, total = len(self) if rows is None else len(rows), 0.0
        # In parts: rows may be more than memory has.
        for start in range(0, n, _PART):
            part = slice(start, start + _PART)
            values = self[part if rows is None else rows[part]].values
            total += float(np.square(values, dtype=float).sum())
        return (n / total) ** 0.5 if total > 0 else 1.0

    def dropped(self, share: float, stream: Stream) -> SparseRows:
        """The same rows, each value zero with this probability, and larger where it is not."""
        from extremax.kernels.cpu.bag import drop
        from extremax.kernels.cpu.threads import parallel

        out = np.empty_like(self.values)
        parallel(
            drop, len(self), 256, self.indptr, self.values, stream.key, stream.rows, share, out
        )
        shape = self.matrix.shape
        return SparseRows(sparse.csr_matrix((out, self.matrix.indices, self.matrix.indptr), shape))

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.indptr, self.indices, self.values
