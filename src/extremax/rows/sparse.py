"""Sparse rows in CSR layout, as kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse

from extremax.checks import check_matrix, refusing
from extremax.errors import ArgumentError
from extremax.kernels.cpu.threads import parallel
from extremax.random import Stream
from extremax.rows.base import LARGEST_SCALE, Rows, as_array, first_refused, refusal

if TYPE_CHECKING:
    from extremax.rows.dense import DenseRows

# Rows whose squares are summed at a time.
_BLOCK_ROWS = 1 << 16
_SYNTHETIC_FEATURES, _SYNTHETIC_VALUES = 1 << 16, 1 << 22


class SparseRows(Rows):
    """CSR rows with rising indices: int64 offsets, int32 indices, float32 values."""

    name = "sparse rows"

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix = matrix
        self.indptr = matrix.indptr.astype(np.int64)
        self.indices = matrix.indices.astype(np.int32, copy=False)
        self.values = matrix.data.astype(np.float32, copy=False)

    @classmethod
    def read(cls, X: Any, min_rows: int = 1) -> SparseRows:
        from sklearn.utils import check_array

        X = as_array(X)
        check_matrix("X", X)
        with np.errstate(over="ignore"), refusing("X"):
            matrix = check_array(
                X,
                accept_sparse="csr",
                dtype=np.float32,
                ensure_all_finite=False,
                ensure_min_samples=min_rows,
            )
        # Sum duplicates before checking: their sum may overflow.
        rows = cls.of(matrix)
        place = first_refused(rows.values)
        if place is not None:
            row = int(np.searchsorted(rows.indptr, place, side="right")) - 1
            raise refusal(rows.values[place], row, int(rows.indices[place]))
        return rows

    @classmethod
    def of(cls, matrix: Any) -> SparseRows:
        """From a valid scipy matrix, or from the nonzero values of an array."""
        matrix = sparse.csr_matrix(matrix)
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        return cls(matrix)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @staticmethod
    def bytes_per_row(nonzeros: float) -> float:
        """Bytes of a row of a CSR matrix: float32 values, int32 indices, its offset."""
        return 8 * nonzeros + 4

    @property
    def nonzeros(self) -> float:
        return len(self.values) / max(1, len(self))

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets, indices and values, for kernels."""
        return self.indptr, self.indices, self.values

    def __getitem__(self, numbers: Any) -> SparseRows:
        if isinstance(numbers, slice) and numbers.indices(len(self)) == (0, len(self), 1):
            return self
        return SparseRows(self.matrix[np.asarray(numbers) if torch.is_tensor(numbers) else numbers])

    def dense(self) -> DenseRows:
        raise ArgumentError(
            f"these rows are sparse ({self.n_features:,} features) and this needs dense ones; "
            "project them with encoder=Encoder(n_components=256)"
        )

    def sparse(self) -> SparseRows:
        return self

    def joined(self, other: Rows) -> SparseRows:
        return SparseRows.of(sparse.vstack([self.matrix, other.sparse().matrix], format="csr"))

    def unit_scale(self, numbers: np.ndarray | None = None) -> float:
        """1 / root mean square length of the rows."""
        n, total = len(self) if numbers is None else len(numbers), 0.0
        # In blocks: the values may be mapped from a file larger than memory.
        for start in range(0, n, _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            values = self[block if numbers is None else numbers[block]].values
            total += float(np.square(values, dtype=float).sum())
        return min((n / total) ** 0.5, LARGEST_SCALE) if total > 0 else 1.0

    @classmethod
    def synthetic(
        cls, n_rows: int, n_features: int, nonzeros: float, rng: np.random.Generator
    ) -> SparseRows:
        """Features as frequent as words are, P(f) ∝ 1/f."""
        n_features = min(n_features, _SYNTHETIC_FEATURES)
        per_row = max(1, round(nonzeros))
        n_rows = max(64, min(n_rows, _SYNTHETIC_VALUES // per_row))
        indices = (n_features ** rng.random((n_rows, per_row))).astype(np.int64) - 1
        values = np.ones(n_rows * per_row, np.float32)
        indptr = np.arange(0, n_rows * per_row + 1, per_row)
        return cls.of(sparse.csr_matrix((values, indices.ravel(), indptr), (n_rows, n_features)))

    def fingerprint(self) -> bytes:
        few = self[:: max(1, len(self) // 16)]
        numbers = np.concatenate([few.indptr, few.indices, few.values])
        return np.ascontiguousarray(numbers, dtype=np.float32).tobytes()

    def with_dropout(self, share: float, stream: Stream) -> SparseRows:
        """Each value is zero with probability ``share``, otherwise divided by 1 − share."""
        from extremax.kernels.cpu.bag import drop

        out = np.empty_like(self.values)
        parallel(
            drop, len(self), 256, self.indptr, self.values, stream.key, stream.rows, share, out
        )
        matrix = (out, self.matrix.indices, self.matrix.indptr)
        return SparseRows(sparse.csr_matrix(matrix, self.matrix.shape))
