"""Text to sparse rows: hashed n-grams weighted by inverse document frequency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse

from extremax.checks import LARGEST_COUNT, is_number
from extremax.errors import ArgumentError

#: Buckets that n-grams are hashed to.
BUCKETS = 2**24
_MOST_TEXTS, _MOST_CHARACTERS = 20_000, 2_000_000


class HashedText:
    """TF-IDF over hashed n-grams. It stores no vocabulary, only one weight per bucket in use.

    An n-gram that occurs t times in a text gets the weight (1 + log t) · idf with
    idf = log((1 + N) / (1 + df)) + 1, where df of the N training texts contain it. Rows are
    scaled to unit length.

    analyzer:  "word", or "char_wb" for character n-grams within words.
    ngrams:    smallest and largest n.
    buckets:   number of hash buckets. Only those filled in training become columns. A word that
               training never saw is taken for another if it falls into the bucket of one: with
               40,000 words in 2¹⁸ buckets this happens to 15% of them, in 2²⁴ to 0.2%.
    """

    def __init__(
        self, analyzer: str = "word", ngrams: tuple[int, int] = (1, 1), buckets: int = BUCKETS
    ) -> None:
        if analyzer not in ("word", "char_wb"):
            raise ArgumentError(f"analyzer must be 'word' or 'char_wb', got {analyzer!r}")
        two = isinstance(ngrams, (tuple, list)) and len(ngrams) == 2
        whole = two and all(is_number(n, integer=True) for n in ngrams)
        if not (whole and 1 <= ngrams[0] <= ngrams[1]):
            raise ArgumentError(f"ngrams must be two integers, 1 <= first <= last, got {ngrams!r}")
        if not (is_number(buckets, integer=True) and 1 <= buckets <= LARGEST_COUNT):
            raise ArgumentError(
                f"buckets must be an integer from 1 to {LARGEST_COUNT}, got {buckets!r}"
            )
        self.analyzer, self.buckets = analyzer, int(buckets)
        self.ngrams = (ngrams[0], ngrams[1])

    def count(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Count the n-grams of each text per bucket."""
        from sklearn.feature_extraction.text import HashingVectorizer

        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise ArgumentError(f"the text of row {row} is {text!r}, expected a string")
        return HashingVectorizer(
            analyzer=self.analyzer,
            ngram_range=self.ngrams,
            n_features=self.buckets,
            alternate_sign=False,
            norm=None,
            dtype=np.float32,
        ).transform(texts)

    def fit_transform(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Learn the inverse document frequencies of the texts and return the weighted rows."""
        counts = self.count(texts)
        used, frequencies = np.unique(counts.indices, return_counts=True)
        if not len(used):
            # At least one column, so that texts without any word become rows of zeros.
            used, frequencies = np.zeros(1, np.int64), np.zeros(1, np.int64)
        idf = np.log((1 + len(texts)) / (1 + frequencies)) + 1.0
        self.used_ = torch.from_numpy(used.astype(np.int64))
        self.idf_ = torch.from_numpy(idf.astype(np.float32))
        return self._weight(counts)

    def transform(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Weight the n-grams of new texts; n-grams in buckets not used in training are ignored."""
        return self._weight(self.count(texts))

    def _weight(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        counts = _columns(counts, self.used_.numpy())
        counts.data = (1.0 + np.log(counts.data)) * self.idf_.numpy()[counts.indices]
        norm = np.sqrt(np.asarray(counts.multiply(counts).sum(1)).ravel())
        counts.data /= np.repeat(np.maximum(norm, 1e-12), np.diff(counts.indptr))
        return counts


def _columns(matrix: sparse.csr_matrix, used: np.ndarray) -> sparse.csr_matrix:
    """The columns ``used``, rising, of a sparse matrix; scipy's own way takes memory and time in
    proportion to all columns."""
    place = np.searchsorted(used, matrix.indices)
    known = used[np.minimum(place, len(used) - 1)] == matrix.indices
    before = np.concatenate([[0], np.cumsum(known)])
    indices = place[known].astype(np.int32)
    arrays = matrix.data[known], indices, before[matrix.indptr]
    return sparse.csr_matrix(arrays, shape=(matrix.shape[0], len(used)))


def is_text(X: Any) -> bool:
    """Whether X is a sequence of strings, one per row, or a data frame with a column of them,
    rather than an array of numbers."""
    X = _only_column(X)
    # A column of polars has a shape but no ``ndim``.
    if hasattr(X, "__array__") and getattr(X, "ndim", len(getattr(X, "shape", ()))) == 1:
        # An array of strings, or a column of a data frame.
        X = np.asarray(X)
        if X.dtype.kind not in "UOT":
            return False
    elif not isinstance(X, (list, tuple)):
        return False
    return any(isinstance(text, str) for text in X)


def texts_of(X: Any) -> list[str]:
    """The texts of what `is_text` takes for texts; some may be missing."""
    return list(_only_column(X))


def _only_column(X: Any) -> Any:
    """The column of a data frame that has one."""
    return np.asarray(X)[:, 0] if len(getattr(X, "columns", ())) == 1 else X


def few_texts(texts: Sequence[str]) -> Sequence[str]:
    """The first texts, as many as can be hashed in about a second."""
    ends = np.cumsum([len(text) for text in texts[:_MOST_TEXTS]])
    return texts[: max(1, int(np.searchsorted(ends, _MOST_CHARACTERS)))]


def extrapolated_buckets(half: int, whole: int, times: float, buckets: int) -> int:
    """Buckets that ``times`` as many texts fill, if half of the texts fill ``half`` of them.

    A vocabulary grows as a power of the number of texts (Heaps' law); the power falls slowly with
    it, so the estimate errs on the high side. Some n-grams share a bucket.
    """
    if times <= 1.0:
        return whole
    power = math.log2(whole / max(half, 1)) if whole > half else 0.0
    words = whole * times ** min(power, 1.0)
    return max(whole, round(buckets * -math.expm1(-words / buckets)))
