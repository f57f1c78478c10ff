"""The contract of rows: the examples a head scores, whatever their layout in memory.

Everything after the encoder works on `Rows`. A part that needs one layout says so by calling
`Rows.dense` or `Rows.sparse`; the recipe (`extremax.recipes`) pairs parts with rows that have it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from extremax.errors import ArgumentError

if TYPE_CHECKING:
    from extremax.rows.dense import DenseRows
    from extremax.rows.sparse import SparseRows

# The largest |x| of a feature. Models work in float32, which ends at 3.4e38. With x² <= 1e30, sums
# of squares stay within that over the 3e8 features of a row, and so do covariances, which sum
# (x − mean)² <= 4e30 over the 8e6 numbers of a block.
LARGEST = 1e15
# The largest scale: rows of smaller numbers than this can lift count as zeros. Weights that absorb
# the scale, up to 3e4 before, stay within float32.
LARGEST_SCALE = 1e34


class Sizes(NamedTuple):
    """The size of a training problem as heads and noises see it.

    nonzeros:  stored values per row; for dense rows the number of features.
    """

    rows: int
    features: int
    classes: int
    nonzeros: float


class Needs(NamedTuple):
    """Bytes that one part of a model takes, for planning.

    kept:     in memory for the whole run.
    passing:  on top of that while the part is being fitted or started.
    saved:    on disk.
    accumulators:  the share of ``kept`` that only training needs.
    """

    kept: float = 0.0
    passing: float = 0.0
    saved: float = 0.0
    accumulators: float = 0.0


class Rows(ABC):
    """n examples of K features each."""

    #: What messages call such rows.
    name: str
    #: What each row is a part of, where parts of one whole must not be told apart in training and
    #: held-out rows.
    groups: np.ndarray | None = None
    #: Whether features are the classes, as the items of sequences are.
    consists_of_classes = False

    @classmethod
    @abstractmethod
    def read(cls, X: Any, min_rows: int = 1) -> Rows:
        """Rows of this kind from an array, a tensor or a scipy matrix, checked."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def n_features(self) -> int:
        return self.shape[1]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in memory or, for a memory map, on disk."""

    @property
    @abstractmethod
    def nonzeros(self) -> float:
        """Stored values per row."""

    @abstractmethod
    def __getitem__(self, numbers: Any) -> Rows:
        """Some of the rows, by slice, mask or array of row numbers."""

    @abstractmethod
    def dense(self) -> DenseRows:
        """The same rows as an array; sparse rows refuse, because that may not fit in memory."""

    @abstractmethod
    def sparse(self) -> SparseRows:
        """The same rows in CSR layout."""

    @abstractmethod
    def joined(self, other: Rows) -> Rows:
        """These rows followed by others of the same kind."""

    @abstractmethod
    def unit_scale(self, numbers: np.ndarray | None = None) -> float:
        """The factor that gives rows a standard size: 1 / root mean square of all values on dense
        rows, 1 / root mean square length of a row on sparse ones."""

    @classmethod
    @abstractmethod
    def synthetic(
        cls, n_rows: int, n_features: int, nonzeros: float, rng: np.random.Generator
    ) -> Rows:
        """Rows of this kind on which training is as fast as on real ones, for timing; of very many
        sparse features they may use fewer."""

    @abstractmethod
    def fingerprint(self) -> bytes:
        """Bytes of about 16 rows, for a checksum that tells one data set from another."""


def as_array(X: Any) -> Any:
    """X, or the array of a tensor of torch or of `numpy.matrix`, whose slices keep two dimensions.
    What numpy would convert to numbers silently, such as dates, is refused."""
    if isinstance(X, np.matrix):
        X = np.asarray(X)
    for name, value in zip(getattr(X, "columns", ()), _first_row(X), strict=False):
        if isinstance(value, str):
            raise ArgumentError(
                f"X has text in column {name!r}; pass that column alone, or make numbers of it "
                "first, as by sklearn.compose.ColumnTransformer"
            )
    if torch.is_tensor(X):
        X = X.detach().cpu()
        X = X.float().numpy() if X.dtype == torch.bfloat16 else X.numpy()
    if isinstance(X, np.ndarray) and X.dtype.kind not in "biufcOUST":
        raise ArgumentError(f"X cannot be used: it has dtype {X.dtype}, expected numbers")
    return X


def _first_row(X: Any) -> Any:
    """The values of the first row of a data frame."""
    return np.asarray(X[:1])[0] if len(getattr(X, "columns", ())) and len(X) else ()


def first_refused(values: np.ndarray) -> int | None:
    """The place of the first value, of all in order, that is NaN or beyond ±LARGEST."""
    # A comparison with NaN is false.
    if not values.size or (values.min() >= -LARGEST and values.max() <= LARGEST):
        return None
    return int(np.argmin(np.abs(values.ravel()) <= LARGEST))


def refusal(value: float, row: int, column: int) -> ArgumentError:
    what = f"{value:g}, beyond ±{LARGEST:g},"
    if not np.isfinite(value):
        what = "NaN" if np.isnan(value) else "infinity or a value too large for float32"
    return ArgumentError(
        f"Input X contains {what} in row {row}, column {column}; remove, impute or rescale it"
    )
