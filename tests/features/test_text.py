"""Hashed text against scikit-learn's TfidfVectorizer and weights computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from extremax.features import Encoder, HashedText
from extremax.features.text import is_text

TEXTS = [
    "the cat sat on the mat",
    "the dog sat",
    "a cat and a dog and a cat",
    "mat the the the",
]


def assert_same_similarities(rows: Any, expected: Any) -> None:
    similarities = (rows @ rows.T).toarray()
    np.testing.assert_allclose(similarities, (expected @ expected.T).toarray(), rtol=1e-5)


def test_similarities_agree_with_tfidf_vectorizer() -> None:
    # The order of the columns differs, but inner products of rows do not depend on it.
    rows = HashedText().fit_transform(TEXTS)
    expected = TfidfVectorizer(sublinear_tf=True).fit_transform(TEXTS)
    assert_same_similarities(rows, expected)


def test_new_texts_are_weighted_by_the_training_texts() -> None:
    text = HashedText()
    text.fit_transform(TEXTS)
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(TEXTS)
    later = ["the cat", "dog mat sat", "cat and mat the"]
    assert_same_similarities(text.transform(later), vectorizer.transform(later))


def test_weights_agree_with_the_formula() -> None:
    text = HashedText()
    row = text.fit_transform(["x1 x2", "x1 x1 x1"])[0]
    # idf = log((1 + N)/(1 + df)) + 1: x1 is in both texts, x2 in one.
    common, rare = 1.0, math.log(3 / 2) + 1
    length = math.hypot(common, rare)
    expected = sorted([common / length, rare / length])
    np.testing.assert_allclose(np.sort(row.data), expected, rtol=1e-6)


def test_rows_have_unit_length_or_are_empty() -> None:
    rows = HashedText().fit_transform([*TEXTS, "", "!?"])
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    np.testing.assert_allclose(lengths, [1, 1, 1, 1, 0, 0], rtol=1e-6)


def test_only_buckets_filled_in_training_are_kept() -> None:
    text = HashedText(buckets=2**10)
    rows = text.fit_transform(TEXTS)
    hashed = text.count(TEXTS)
    filled = np.unique(hashed.indices)
    assert np.array_equal(text.used_, filled)
    assert len(text.idf_) == rows.shape[1] == len(filled) < 2**10
    # Dropping empty buckets does not change which words a row contains.
    assert np.array_equal(rows.toarray() > 0, hashed[:, filled].toarray() > 0)
    assert text.transform(["zebra", "the zebra"]).shape == (2, len(filled))


def test_texts_without_words_give_zeros() -> None:
    text = HashedText()
    assert text.fit_transform(["", "!?", ""]).shape == (3, 1)
    assert np.array_equal(Encoder().fit_transform(["", "!?"]).matrix.toarray(), np.zeros((2, 1)))


def test_unknown_words_are_ignored() -> None:
    text = HashedText()
    text.fit_transform(TEXTS)
    rows = text.transform(["zebra quagga", "cat zebra", "cat"])
    assert np.isfinite(rows.data).all()
    assert rows[0].multiply(rows[0]).sum() == 0
    assert np.array_equal(rows[1].toarray(), rows[2].toarray())


def test_word_ngrams_distinguish_word_order() -> None:
    for ngrams, same in (((1, 1), True), ((1, 2), False)):
        rows = HashedText(ngrams=ngrams).fit_transform(["dog bites man", "man bites dog"])
        assert (np.abs(rows[0] - rows[1]).sum() < 1e-6) == same


def test_character_ngrams_match_parts_of_words() -> None:
    words = HashedText().fit_transform(["walking", "walked"])
    letters = HashedText("char_wb", (3, 4)).fit_transform(["walking", "walked"])
    assert (words[0] @ words[1].T).sum() == 0
    assert (letters[0] @ letters[1].T).sum() > 0.1


def test_the_number_of_buckets_bounds_the_width() -> None:
    rows = HashedText(buckets=16).fit_transform([f"w{i}" for i in range(100)])
    assert rows.shape == (100, 16)
    assert rows.dtype == np.float32


def test_a_row_that_is_not_a_string_is_named_in_the_error() -> None:
    text = HashedText()
    for bad in (None, 3, float("nan"), b"bytes"):
        with pytest.raises(ValueError, match=r"the text of row 1 is .*, expected a string"):
            text.fit_transform(["a", bad])


class Column:
    """The array protocol of a data frame column."""

    ndim = 1

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        return iter(self.values)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a", "b"], True),
        (("a", "b"), True),
        (np.array(["a", "b"]), True),
        (np.array(["a", "b"], dtype=object), True),
        (Column(["a", "b"]), True),
        (Column([1.0, 2.0]), False),
        ([], False),
        (np.array([], dtype=object), False),
        ([[1.0, 2.0]], False),
        (np.array([["a"], ["b"]]), False),
        (np.array([1.0, 2.0]), False),
        ("a b", False),
        (None, False),
    ],
)
def test_is_text_distinguishes_texts_from_numbers(given: Any, expected: bool) -> None:
    assert is_text(given) == expected


def test_a_column_of_texts_is_encoded_like_a_list() -> None:
    rows = HashedText().fit_transform(Column(TEXTS))
    assert (rows != HashedText().fit_transform(TEXTS)).nnz == 0
