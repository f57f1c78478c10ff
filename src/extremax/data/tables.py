"""Features as they are read, behind one contract: texts, sequences, a sparse matrix, an array."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy import sparse

from extremax.data.sequences import Sequences
from extremax.errors import DataError

Kind: TypeAlias = Literal["dense", "sparse", "text", "sequences"]


class Table(ABC):
    """Rows of features, one per example.

    kind, name:  one word for programs, and what messages call the rows.
    """

    kind: Kind
    name: str

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_features(self) -> int | None:
        """Columns, or None for texts and sequences."""
        return int(self.values.shape[1])

    @property
    @abstractmethod
    def bytes_per_row(self) -> float:
        """What a row takes in memory."""

    @abstractmethod
    def content(self, step: int) -> bytes:
        """Every ``step``-th row, for a checksum."""

    def take(self, numbers: np.ndarray) -> Any:
        """The values of these rows."""
        return self.values[numbers]

    def matched(self, name: str, width: int, path: Path, first_row: int = 0) -> Any:
        """The values in the form of the training data, which messages call ``name``.

        width:      their number of features.
        first_row:  number of rows before these in the file.
        """
        if name != self.name and {name, self.name} & {TextTable.name, SequenceTable.name}:
            raise DataError(
                f"this file contains {self.name}, but the training data are {name}", path
            )
        return self.values


class ArrayTable(Table):
    kind, name = "dense", "dense rows"

    @property
    def bytes_per_row(self) -> float:
        return float(self.values.shape[1] * self.values.dtype.itemsize)

    def content(self, step: int) -> bytes:
        return np.ascontiguousarray(self.values[::step], dtype=np.float32).tobytes()


class MatrixTable(Table):
    kind, name = "sparse", "sparse rows"

    @property
    def bytes_per_row(self) -> float:
        return 8.0 * self.values.nnz / max(1, len(self)) + 4.0

    def content(self, step: int) -> bytes:
        rows = self.values[::step]
        return np.ascontiguousarray(rows.indices).tobytes() + rows.data.tobytes()

    def matched(self, name: str, width: int, path: Path, first_row: int = 0) -> Any:
        """A sparse file may use fewer features than the training data; missing columns are zero."""
        values = super().matched(name, width, path, first_row)
        beyond = (values.indices >= width).nonzero()[0]
        if len(beyond):
            row = first_row + int(values.indptr.searchsorted(beyond[0], side="right"))
            feature = int(values.indices[beyond[0]]) + 1
            raise DataError(
                f"row {row:,} has a value for feature {feature:,} (counted from 1), but the "
                f"training data have {width:,} features",
                path,
            )
        arrays = values.data, values.indices, values.indptr
        return sparse.csr_matrix(arrays, shape=(len(self), width), copy=False)


class TextTable(Table):
    kind, name = "text", "texts"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n_features(self) -> None:
        return None

    @property
    def bytes_per_row(self) -> float:
        return 8 + sum(map(sys.getsizeof, self.values)) / max(1, len(self))

    def content(self, step: int) -> bytes:
        return "\n".join(self.values[::step]).encode()

    def take(self, numbers: np.ndarray) -> list[str]:
        return [self.values[i] for i in numbers]


class SequenceTable(Table):
    kind, name = "sequences", "sequences"

    @property
    def n_features(self) -> None:
        return None

    @property
    def bytes_per_row(self) -> float:
        """Items are shared by the prefixes of a session."""
        return 24.0 + self.values.items.nbytes / max(1, len(self))

    def content(self, step: int) -> bytes:
        return repr(self.values[::step].tolist()).encode()


def as_table(features: Any) -> Table:
    """The table of what a reader returns, or of what a user passes."""
    if isinstance(features, Sequences):
        return SequenceTable(features)
    if isinstance(features, (list, tuple)):
        return TextTable(features)
    return MatrixTable(features) if sparse.issparse(features) else ArrayTable(features)
