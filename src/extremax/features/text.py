"""Text to sparse rows: hashed n-grams with inverse document frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse


class HashedText:
    """TF-IDF over hashed n-grams: no vocabulary to keep, only one weight a bucket.

    analyzer: "word", or "char_wb" for n-grams of characters inside words.
    """

    def __init__(
        self, analyzer: str = "word", ngrams: tuple[int, int] = (1, 1), buckets: int = 2**18
    ) -> None:
        self.analyzer, self.buckets = analyzer, buckets
        self.ngrams = (ngrams[0], ngrams[1])

    def _count(self, texts: Sequence[str]) -> sparse.csr_matrix:
        from sklearn.feature_extraction.text import HashingVectorizer

        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"the text of row {row} is {text!r}, expected a string")
        return HashingVectorizer(
            analyzer=self.analyzer,
            ngram_range=self.ngrams,
            n_features=self.buckets,
            alternate_sign=False,
            norm=None,
            dtype=np.float32,
        ).transform(texts)

    def fit_transform(self, texts: Sequence[str]) -> sparse.csr_matrix:
        counts = self._count(texts)
        seen = np.bincount(counts.indices, minlength=self.buckets)
        # One at least: texts without a word are rows of zeros, not of nothing.
        used = np.flatnonzero(seen) if seen.any() else np.zeros(1, np.int64)
        idf = np.log((1 + len(texts)) / (1 + seen[used])) + 1.0
        self.used_ = torch.from_numpy(used)
        self.idf_ = torch.from_numpy(idf.astype(np.float32))
        return self._weigh(counts)

    def transform(self, texts: Sequence[str]) -> sparse.csr_matrix:
        return self._weigh(self._count(texts))

    def _weigh(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        # Only the buckets that training filled: the SVD need not carry the empty ones.
        counts = counts[:, self.used_.numpy()]
        counts.data = (1.0 + np.log(counts.data)) * self.idf_.numpy()[counts.indices]
        norm = np.sqrt(np.asarray(counts.multiply(counts).sum(1)).ravel())
        counts.data /= np.repeat(np.maximum(norm, 1e-12), np.diff(counts.indptr))
        return counts


def is_text(X: Any) -> bool:
    """A sequence of strings (one a row), as opposed to an array of numbers."""
    if getattr(X, "ndim", None) == 1 and hasattr(X, "__array__"):
        # A column of a data frame is one too.
        X = np.asarray(X)
        return X.dtype.kind in "UOT" and len(X) > 0 and isinstance(X[0], str)
    return isinstance(X, (list, tuple)) and len(X) > 0 and isinstance(X[0], str)
