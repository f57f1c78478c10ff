"""The size of a training job before it starts."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.data import Dataset
from extremax.features import Encoder, HashedText
from extremax.features.encoder import EncoderPlan
from extremax.labels import LabelLists
from extremax.rows import DenseRows, Needs, Sizes, SparseRows

_MOST_TEXTS, _MOST_CHARACTERS = 20_000, 2_000_000


@dataclass(frozen=True)
class Workload:
    """Rows, classes and features as they are read, and what the encoder makes of them.

    rows:       examples; a row with several labels counts once per label.
    features:   columns of the data; for texts, buckets that hashing fills.
    nonzeros:   values per row.
    row_bytes:  what a row takes in memory as it was read.
    kind:       "dense", "sparse" or "text", as messages call it.
    """

    rows: int
    features: int
    classes: int
    nonzeros: float
    row_bytes: float
    kind: str
    encoded: EncoderPlan
    multilabel: bool = False

    @classmethod
    def dense(cls, rows: int, features: int, classes: int, number_bytes: int = 4) -> Workload:
        encoded = EncoderPlan(DenseRows, features, float(features), 0.0, Needs())
        row_bytes = float(number_bytes * features)
        return cls(rows, features, classes, float(features), row_bytes, "dense", encoded)

    @classmethod
    def of(
        cls,
        sample: Dataset,
        n_classes: int,
        encoder: Encoder,
        n_rows: int | None = None,
        n_features: int | None = None,
    ) -> Workload:
        """The job on these rows, or on ``n_rows`` rows of which these are the first.

        n_features:  columns of the whole data, which the first rows need not all use.
        """
        n = len(sample) if n_rows is None else n_rows
        measured = _MEASURES[sample.kind](sample.features, encoder, n)
        features, nonzeros, row_bytes = measured
        features = max(features, n_features or 0)
        multilabel = isinstance(sample.labels, LabelLists)
        # The rows are read once; each label of a row makes an example.
        per_row = len(sample.label_values) / len(sample) if multilabel else 1.0
        examples = round(n * per_row)
        plan = encoder.plan(sample.features, examples, features, nonzeros, multilabel)
        return cls(
            examples, features, n_classes, nonzeros, row_bytes / per_row, sample.kind, plan,
            multilabel,
        )  # fmt: skip

    @property
    def sizes(self) -> Sizes:
        """As heads and noises see it."""
        return Sizes(self.rows, self.encoded.width, self.classes, self.encoded.nonzeros)


def few_texts(texts: list[Any]) -> list[Any]:
    """The first texts, as many as can be hashed in about a second."""
    ends = np.cumsum([len(text) for text in texts[:_MOST_TEXTS]])
    return texts[: max(1, int(np.searchsorted(ends, _MOST_CHARACTERS)))]


def _measure_dense(array: Any, encoder: Encoder, n_rows: int) -> tuple[int, float, float]:
    """(features, values per row, bytes per row) of a sample."""
    width = array.shape[1]
    return width, float(width), float(width * array.dtype.itemsize)


def _measure_sparse(matrix: Any, encoder: Encoder, n_rows: int) -> tuple[int, float, float]:
    nonzeros = matrix.nnz / matrix.shape[0]
    return matrix.shape[1], nonzeros, SparseRows.bytes_per_row(nonzeros)


def _measure_texts(texts: list[str], encoder: Encoder, n_rows: int) -> tuple[int, float, float]:
    few = few_texts(texts)
    hashed = HashedText(encoder.analyzer, encoder.ngrams, encoder.buckets).fit_transform(few)
    string_bytes = sum(sys.getsizeof(text) for text in few) / len(few)
    half = len(np.unique(hashed[: -(-len(few) // 2)].indices))
    used = _extrapolated(half, hashed.shape[1], n_rows / len(few), encoder.buckets)
    return used, hashed.nnz / len(few), 8 + string_bytes


_MEASURES = {"dense": _measure_dense, "sparse": _measure_sparse, "text": _measure_texts}


def _extrapolated(half: int, whole: int, times: float, buckets: int) -> int:
    """Buckets that ``times`` as many texts fill, if half of the texts fill ``half`` of them.

    A vocabulary grows as a power of the number of texts (Heaps' law); the power falls slowly with
    it, so the estimate errs on the high side. Some n-grams share a bucket.
    """
    if times <= 1.0:
        return whole
    power = math.log2(whole / max(half, 1)) if whole > half else 0.0
    words = whole * times ** min(power, 1.0)
    return max(whole, round(buckets * -math.expm1(-words / buckets)))
