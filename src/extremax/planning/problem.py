"""The size of a training problem."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.data.dataset import Dataset, Kind
    from extremax.features import Encoder


@dataclass(frozen=True)
class Problem:
    """Rows, classes and features as they come, and as the head sees them.

    features:  columns of the data; for texts, buckets they are hashed to.
    width:     columns the head sees: those of dense data, else the components projected to.
    nonzeros:  entries a row, for sparse rows and hashed texts.
    row_bytes: what a row takes in memory as it was read.
    """

    rows: int
    features: int
    classes: int
    width: int
    row_bytes: float
    kind: Kind = "dense"
    nonzeros: float = 0.0

    @classmethod
    def dense(cls, rows: int, features: int, classes: int, number_bytes: int = 4) -> Problem:
        return cls(rows, features, classes, features, float(number_bytes * features))

    @classmethod
    def of(cls, data: Dataset, classes: int, encoder: Encoder, rows: int | None = None) -> Problem:
        """The problem that these rows are, or of which they are the first of ``rows``."""
        n = len(data) if rows is None else rows
        if data.kind == "dense":
            return cls.dense(n, data.features.shape[1], classes, data.features.dtype.itemsize)
        if data.kind == "sparse":
            features = data.features.shape[1]
            nonzeros = data.features.nnz / len(data)
            bytes_each = csr_bytes(nonzeros)
        else:
            features = encoder.buckets
            nonzeros, bytes_each = _text_sizes(data.features, encoder)
        width = min(encoder.n_components, features, n)
        return cls(n, features, classes, width, bytes_each, data.kind, nonzeros)


def csr_bytes(nonzeros: float) -> float:
    """Bytes of a row of a CSR matrix: float32 values, int32 indices, its place."""
    return 8 * nonzeros + 4


def _text_sizes(texts: list[str], encoder: Encoder) -> tuple[float, float]:
    """(n-grams a text, bytes a text in a list) of the first few thousand."""
    from extremax.features import HashedText

    few: list[Any] = texts[:2000]
    hashed = HashedText(encoder.analyzer, encoder.ngrams, encoder.buckets).fit_transform(few)
    held = sum(sys.getsizeof(text) for text in few)
    return hashed.nnz / len(few), 8 + held / len(few)
