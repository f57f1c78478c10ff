"""Columns of sparse rows that outweigh the others."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from extremax.features import Encoder

RANDOM = np.random.default_rng(0)
# As frequent as words are, P(w) ∝ 1/w.
TEXTS = [
    " ".join(f"w{w}" for w in (3000 ** RANDOM.random(RANDOM.integers(3, 12))).astype(int))
    for _ in range(2000)
]
WORDS = TfidfVectorizer().fit_transform(TEXTS)
KIND = sparse.csr_matrix(np.eye(8)[RANDOM.integers(8, size=2000)])
PRICE = sparse.csr_matrix(RANDOM.random((2000, 1)))
USUAL = float(np.median(WORDS.data))


def joined(*blocks: Any) -> sparse.csr_matrix:
    return sparse.csr_matrix(sparse.hstack(blocks))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (joined(WORDS, KIND), f"^8 of the {WORDS.shape[1] + 8:,} columns of X have 50% of the"),
        (joined(WORDS, 1000 * PRICE), f"100% .* values of column {WORDS.shape[1]} are about"),
        (joined(WORDS, -1000 * PRICE), "1 of the"),
        # More values than the words have.
        (joined(WORDS, *[2 * PRICE] * 9), "9 of the .* columns of X have 9.%"),
        (joined(WORDS, KIND), f"others about {USUAL:.2g}. Scale such columns to about"),
    ],
)
def test_columns_of_another_scale_are_named(rows: sparse.csr_matrix, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        Encoder().fit_transform(rows)


@pytest.mark.parametrize(
    "rows",
    [
        WORDS,
        1000 * WORDS,
        WORDS > 0,
        joined(WORDS, USUAL / 2 * KIND, USUAL / 2 * PRICE),
        KIND,
        sparse.random_array((500, 40), density=0.2, rng=RANDOM, format="csr"),
        sparse.csr_matrix((5, 3)),
    ],
    ids=["TF-IDF", "scaled", "binary", "as advised", "one-hot", "numbers", "empty"],
)
def test_other_rows_are_fine(rows: sparse.csr_matrix) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Encoder().fit_transform(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Encoder().fit_transform(TEXTS)
