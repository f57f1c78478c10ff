"""The size of a training problem."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from extremax.data.dataset import Dataset, Kind
    from extremax.features import Encoder


_MOST_TEXTS, _MOST_CHARACTERS = 20_000, 2_000_000


@dataclass(frozen=True)
class Problem:
    """Rows, classes and features as they come, and as the head sees them.

    features:  columns of the data; for texts, buckets they are hashed to.
    width:     columns the head sees: the components that rows are projected to, else all features.
    nonzeros:  entries a row, for sparse rows and hashed texts.
    row_bytes: what a row takes in memory as it was read.
    stays_sparse:  whether the head sees sparse rows.
    several:   whether a row stands for one of several labels: training copies it for each.
    """

    rows: int
    features: int
    classes: int
    width: int
    row_bytes: float
    kind: Kind = "dense"
    nonzeros: float = 0.0
    stays_sparse: bool = False
    several: bool = False

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
            features = used = data.features.shape[1]
            nonzeros = data.features.nnz / len(data)
            bytes_each = csr_bytes(nonzeros)
        else:
            features = encoder.buckets
            nonzeros, bytes_each, used = _text_sizes(data.features, encoder, n)
        if encoder.n_components is None:
            return cls(n, used, classes, used, bytes_each, data.kind, nonzeros, True)
        width = min(encoder.n_components, features, n)
        return cls(n, features, classes, width, bytes_each, data.kind, nonzeros)


def csr_bytes(nonzeros: float) -> float:
    """Bytes of a row of a CSR matrix: float32 values, int32 indices, its place."""
    return 8 * nonzeros + 4


def few_texts(texts: list[Any]) -> list[Any]:
    """The first of them, as many as are hashed in a second or so."""
    ends = np.cumsum([len(text) for text in texts[:_MOST_TEXTS]])
    return texts[: max(1, int(np.searchsorted(ends, _MOST_CHARACTERS)))]


def _text_sizes(texts: list[str], encoder: Encoder, rows: int) -> tuple[float, float, int]:
    """(n-grams a text, bytes a text in a list) of `few_texts`, and the buckets that ``rows`` of
    them would fill."""
    from extremax.features import HashedText

    few = few_texts(texts)
    hashed = HashedText(encoder.analyzer, encoder.ngrams, encoder.buckets).fit_transform(few)
    held = sum(sys.getsizeof(text) for text in few)
    half = len(np.unique(hashed[: -(-len(few) // 2)].indices))
    used = _grown(half, hashed.shape[1], rows / len(few), encoder.buckets)
    return hashed.nnz / len(few), 8 + held / len(few), used


def _grown(half: int, whole: int, times: float, buckets: int) -> int:
    """Buckets that so many times as many texts fill, if half of the texts fill ``half`` of them.

    A vocabulary grows as a power of the number of texts (Heaps' law); the power falls slowly with
    it, so that this is rather too much than too little. Some n-grams share a bucket.
    """
    if times <= 1.0:
        return whole
    power = math.log2(whole / max(half, 1)) if whole > half else 0.0
    words = whole * times ** min(power, 1.0)
    return max(whole, round(buckets * -math.expm1(-words / buckets)))
