"""Sparse rows as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse


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
    def n_features(self) -> int:
        return self.matrix.shape[1]

    def __getitem__(self, rows: Any) -> SparseRows:
        return SparseRows(self.matrix[np.asarray(rows) if isinstance(rows, torch.Tensor) else rows])

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.indptr, self.indices, self.values
