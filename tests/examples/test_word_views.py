"""Hashed pieces against the same pieces spelled out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from word_views import VIEWS, Pieces, word_views

Counted = dict[str, int]


def shorter(word: str) -> set[str]:
    return {word[:i] + word[i + 1 :] for i in range(len(word))}


def left_out(word: str) -> Counted:
    two = {piece for part in shorter(word) for piece in shorter(part)} if len(word) > 3 else set()
    return dict.fromkeys(two, 1) | dict.fromkeys(shorter(word), 2) | {word: 3}


def ends(word: str) -> Counted:
    sizes = [(i, j) for i in range(1, 5) for j in range(1, 5) if 5 <= i + j < len(word)]
    return {f"{word[:i]}|{word[-j:]}": 1 for i, j in sizes}


def letters(word: str) -> Counted:
    every = "".join(sorted({c if "a" <= c <= "z" else "'" for c in word}))
    return dict.fromkeys({every, *shorter(every)}, 1)


def sound(word: str) -> Counted:
    heard = ""
    for letter in word.replace("ph", "f"):
        for alike in ("aeiouy", "kcq", "szx", "jg", "fv", "td", "pb", "nm"):
            if letter in alike:
                letter = alike[0]
        heard += letter if not heard.endswith(letter) else ""
    return dict.fromkeys({heard, *shorter(heard)}, 1)


SPELT: dict[str, Callable[[str], Counted]] = {
    "left_out": left_out, "ends": ends, "letters": letters, "sound": sound,
}  # fmt: skip
words = st.lists(st.text("abceghops'-", min_size=1, max_size=12), min_size=1, max_size=8)


@pytest.mark.parametrize("view", VIEWS)
@settings(deadline=None, max_examples=40)
@given(known=words, more=words)
def test_words_have_the_pieces_in_common_that_they_have(
    view: str, known: list[str], more: list[str]
) -> None:
    pieces = Pieces(view).fit(known)
    a, b = pieces.transform(known), pieces.transform(more)
    spelled = CountVectorizer(
        analyzer=lambda word: [p for p, times in SPELT[view](word).items() for _ in range(times)]
    )
    if not any(SPELT[view](word) for word in known):
        assert a.nnz == b.nnz == 0
        return
    c, d = spelled.fit_transform(known), spelled.transform(more)
    assert a.shape == c.shape
    # Columns are in another order: what any two words share is the same, and each by itself.
    np.testing.assert_array_equal((a @ a.T).toarray(), (c @ c.T).toarray())
    np.testing.assert_array_equal((b @ a.T).toarray(), (d @ c.T).toarray())
    np.testing.assert_array_equal((b @ b.T).toarray(), (d @ d.T).toarray())


def test_rows_of_all_views() -> None:
    known = ["necessary", "necessarily", "accessory", "unnecessary"]
    rows = word_views(known).transform(["neccessary", "accesory", "zzzz"])
    shared = rows @ word_views(known).transform(known).T
    assert shared.toarray().argmax(1)[:2].tolist() == [0, 2]
    assert rows[2].nnz == 0
    np.testing.assert_allclose(rows[:2].power(2).sum(1), 1.0, rtol=1e-5)


def test_words_of_any_kind() -> None:
    """Short ones, which have no ends, empty and long ones, and other alphabets."""
    known = ["a", "", "naïve", "слово", 40 * "ab", 20 * "ab"]
    rows = word_views(known).transform(known)
    assert (rows.getnnz(1) > 0).all()
    shared = (rows @ rows.T).toarray()
    # Only the first 32 letters are looked at.
    np.testing.assert_allclose(shared[4, 5], 1.0, rtol=1e-5)
    assert shared[:4, :4].argmax(1).tolist() == [0, 1, 2, 3]
    assert word_views(["to", "be"]).transform(["toe"]).nnz > 0
