"""Dense rows: an array or memory map, never copied as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import issparse

from extremax.checks import check_matrix, refusing
from extremax.kernels.cpu.threads import parallel
from extremax.rows.base import LARGEST_SCALE, Rows, as_array, first_refused, refusal
from extremax.rows.sparse import SparseRows

_BLOCK_BYTES = 8 << 20
_SYNTHETIC_FLOATS = 1 << 25


class DenseRows(Rows):
    """An (n, K) array of real numbers of any type, in memory or mapped from a file."""

    name = "dense rows"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @classmethod
    def read(cls, X: Any, min_rows: int = 1) -> DenseRows:
        """Real numbers in two dimensions, uncopied where they are an array; NaN and what is too
        large for models is refused."""
        from sklearn.utils import check_array

        X = as_array(X)
        if issparse(X):
            check_matrix("X", X)
            X = X.toarray()
        is_array = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "biuf"
        if not (is_array and len(X) >= min_rows and X.shape[1]):
            with refusing("X"):
                X = check_array(
                    X, dtype="numeric", ensure_all_finite=False, ensure_min_samples=min_rows
                )
        if X.dtype.kind == "f" or X.dtype.itemsize > 4:  # smaller integers are in range
            _check_values(X)
        return cls(X)

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[0], self.array.shape[1]

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def nonzeros(self) -> float:
        return float(self.n_features)

    def __getitem__(self, numbers: Any) -> DenseRows:
        return DenseRows(self.array[numbers])

    def dense(self) -> DenseRows:
        return self

    def sparse(self) -> SparseRows:
        return SparseRows.of(np.asarray(self.array, dtype=np.float32))

    def joined(self, other: Rows) -> DenseRows:
        return DenseRows(np.concatenate([self.array, other.dense().array]))

    def unit_scale(self, numbers: np.ndarray | None = None) -> float:
        """1 / root mean square of all features."""
        chosen = self.array if numbers is None else self.array[numbers]
        size = _block_rows(chosen)
        squares = np.zeros(-(-len(chosen) // size))

        def add_up(start: int, stop: int) -> None:
            for i in range(start, stop):
                block = np.asarray(chosen[i * size : (i + 1) * size], np.float32)
                # In float64: squares of large float32 numbers overflow, those of small ones vanish.
                squares[i] = np.square(block, dtype=np.float64).sum()

        parallel(add_up, len(squares), 1)
        total = float(squares.sum())
        return min(float((chosen.size / total) ** 0.5), LARGEST_SCALE) if total > 0 else 1.0

    @classmethod
    def synthetic(
        cls, n_rows: int, n_features: int, nonzeros: float, rng: np.random.Generator
    ) -> DenseRows:
        n_rows = max(64, min(n_rows, _SYNTHETIC_FLOATS // n_features))
        return cls(rng.standard_normal((n_rows, n_features), dtype=np.float32))

    def fingerprint(self) -> bytes:
        few = self.array[:: max(1, len(self) // 16)]
        return np.ascontiguousarray(few, dtype=np.float32).tobytes()

    def float32(self) -> np.ndarray:
        """A contiguous, writable float32 array; the rows themselves where they are one."""
        return np.require(self.array, np.float32, ["C", "W", "E"])

    @property
    def readable(self) -> bool:
        """Whether kernels can read the array in place."""
        return bool(self.array.dtype == np.float32 and self.array.flags.c_contiguous)

    def batch(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float32 features and the places of these rows in them; the whole array if readable."""
        if self.readable:
            return np.asarray(self.array), numbers
        chosen = np.array(self.array[numbers], dtype=np.float32, order="C")
        return chosen, np.arange(len(numbers))


def row_blocks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, float32 block) over an array or memory map, a few tens of MB at a time."""
    size = _block_rows(array)
    for start in range(0, len(array), size):
        yield start, np.ascontiguousarray(array[start : start + size], dtype=np.float32)


def _block_rows(array: np.ndarray) -> int:
    return max(1, _BLOCK_BYTES // max(4 * array.shape[1], 1))


def _check_values(array: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        for start, block in row_blocks(array):
            place = first_refused(block)
            if place is not None:
                row, column = divmod(place, block.shape[1])
                raise refusal(block[row, column], start + row, column)
