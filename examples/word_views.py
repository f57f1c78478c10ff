"""Words as sparse rows of pieces that most slips of the pen leave alone.

Two words are alike if they have pieces in common: what is left when letters are left out, a
beginning together with an end, the set of their letters, or what they sound like. A slip spoils
some of these and leaves the others. Each piece is a column, and a rare one weighs more (TF-IDF).

Pieces are never spelled out: a piece is a hash of 64 bits of its letters, and a word has about
eighty. What would take most of a lookup's time in Python takes a few microseconds in numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

#: What the views of a word weigh.
VIEWS = {"left_out": 1.0, "ends": 0.4, "letters": 0.4, "sound": 0.4}
_NUMBER = {view: i for i, view in enumerate(VIEWS)}
# Letters beyond these are not looked at; words taken at a time.
_LENGTH, _BLOCK = 32, 50_000
# Columns are found by the first bits of a hash.
_BITS = 22
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_NONE = -1


def word_views(words: list[str]) -> Pipeline:
    """Turns words into sparse rows of unit length; knows the pieces of these words."""
    views = [(view, make_pipeline(Pieces(view), TfidfTransformer())) for view in VIEWS]
    union = FeatureUnion(views, transformer_weights=VIEWS)
    return make_pipeline(union, Normalizer(copy=False)).fit(words)


class Pieces(TransformerMixin, BaseEstimator):
    """Counts of a word's pieces in one view; those that no word of the fit had are left out."""

    def __init__(self, view: str) -> None:
        self.view = view

    def fit(self, words: list[str], y: Any = None) -> Pieces:
        blocks = [self._hashes(words[i : i + _BLOCK])[0] for i in range(0, len(words), _BLOCK)]
        self.hashes_ = np.unique(np.concatenate(blocks))
        first = np.arange(1 << _BITS, dtype=np.uint64) << np.uint64(64 - _BITS)
        self.first_ = np.searchsorted(self.hashes_, first)
        return self

    def transform(self, words: list[str]) -> sparse.csr_matrix:
        blocks = [self._rows(words[i : i + _BLOCK]) for i in range(0, len(words), _BLOCK)]
        return sparse.vstack(blocks, "csr")

    def _rows(self, words: list[str]) -> sparse.csr_matrix:
        hashes, times, ends = self._hashes(words)
        columns = np.empty(len(hashes), np.int32)
        _find(hashes, self.hashes_, self.first_, columns)
        known = columns != _NONE
        ends = np.concatenate([[0], np.cumsum(known)])[ends]
        # Short words may have no piece at all in a view, and a matrix wants a column.
        shape = (len(words), max(1, len(self.hashes_)))
        return sparse.csr_matrix((times[known], columns[known], ends), shape)

    def _hashes(self, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pieces of all words, how often each counts, and where those of a word begin and end."""
        coded = np.array([word.encode() for word in words], f"S{_LENGTH}")
        letters = coded.view(np.uint8).reshape(len(words), _LENGTH)
        sizes = (letters > 0).sum(1)
        # n (n + 1) / 2 + 1 pieces of n letters in the first view, at most.
        pairs = int((sizes * sizes // 2).sum()) if self.view == "left_out" else 0
        room = 2 * _LENGTH * len(words) + pairs
        hashes, times = np.empty(room, np.uint64), np.empty(room, np.float32)
        ends = np.zeros(len(words) + 1, np.int64)
        _pieces(_NUMBER[self.view], letters, sizes, hashes, times, ends)
        return hashes[: ends[-1]], times[: ends[-1]], ends


@njit(nogil=True, cache=True)
def _pieces(view, letters, sizes, hashes, times, ends):
    """The pieces of word i go to ends[i] .. ends[i + 1] − 1."""
    for i in range(sizes.size):
        out, count = hashes[ends[i] :], times[ends[i] :]
        if view == 0:
            n = _left_out(letters[i], sizes[i], out, count)
        else:
            if view == 1:
                n = _ends(letters[i], sizes[i], out)
            elif view == 2:
                n = _letters(letters[i], sizes[i], out)
            else:
                n = _sound(letters[i], sizes[i], out)
            count[:n] = 1.0
        ends[i + 1] = ends[i] + n


@njit(nogil=True, cache=True)
def _hash(letters, start, stop, without, nor, before):
    """Of the letters from ``start`` on, without two of them; ``before`` is the hash of what comes
    before them."""
    h = before
    for i in range(start, stop):
        if i != without and i != nor:
            h = (h ^ np.uint64(letters[i])) * _PRIME
    return _mixed(h)


@njit(nogil=True, cache=True)
def _mixed(h):
    return (h ^ (h >> np.uint64(31))) * _PRIME


@njit(nogil=True, cache=True)
def _left_out(letters, size, out, count):
    """The word, and without any one or two of its letters: the fewer, the more it counts."""
    out[0], count[0] = _hash(letters, 0, size, -1, -1, np.uint64(0)), 3.0
    n = 1
    for i in range(size):
        n = _add(out, count, 1, n, _hash(letters, 0, size, i, i, np.uint64(0)), 2.0)
    first = n
    for i in range(size if size > 3 else 0):
        for j in range(i + 1, size):
            n = _add(out, count, first, n, _hash(letters, 0, size, i, j, np.uint64(0)), 1.0)
    return n


@njit(nogil=True, cache=True)
def _add(out, count, first, n, piece, times):
    """One more, unless it is there from ``first`` on; returns how many there are."""
    for k in range(first, n):
        if out[k] == piece:
            return n
    out[n], count[n] = piece, times
    return n + 1


@njit(nogil=True, cache=True)
def _ends(letters, size, out):
    """A beginning and an end of up to four letters each: five together at least, and fewer than
    the word has."""
    n = 0
    for i in range(1, 5):
        beginning = _hash(letters, 0, i, -1, -1, np.uint64(i))
        for j in range(max(1, 5 - i), min(5, size - i)):
            out[n] = _hash(letters, size - j, size, -1, -1, beginning)
            n += 1
    return n


@njit(nogil=True, cache=True)
def _letters(letters, size, out):
    """Which letters it has, in any order, and all of them but one. What is not from a to z is one
    letter more."""
    every = np.uint64(0)
    for i in range(size):
        known = ord("a") <= letters[i] <= ord("z")
        every |= np.uint64(1) << np.uint64(letters[i] - ord("a") if known else 26)
    out[0] = _mixed(every * _PRIME)
    n = 1
    for bit in range(27):
        one = np.uint64(1) << np.uint64(bit)
        if every & one:
            out[n] = _mixed((every ^ one) * _PRIME)
            n += 1
    return n


def _sounds() -> np.ndarray:
    """For each letter one of those that sound like it."""
    table = np.arange(256, dtype=np.uint8)
    for alike in (b"aeiouy", b"kcq", b"szx", b"jg", b"fv", b"td", b"pb", b"nm"):
        table[list(alike)] = alike[0]
    return table


_SOUNDS = _sounds()


@njit(nogil=True, cache=True)
def _sound(letters, size, out):
    """What it sounds like, and that with one sound left out: vowels are one, so are letters that
    sound alike, and nothing is doubled."""
    heard, n = np.empty(size, np.uint8), 0
    for i in range(size):
        letter = _SOUNDS[letters[i]]
        if letters[i] == ord("p") and i + 1 < size and letters[i + 1] == ord("h"):
            letter = np.uint8(ord("f"))
        if letters[i] == ord("h") and i > 0 and letters[i - 1] == ord("p"):
            continue
        if n == 0 or heard[n - 1] != letter:
            heard[n] = letter
            n += 1
    for i in range(-1, n):
        out[1 + i] = _hash(heard, 0, n, i, i, np.uint64(0))
    return 1 + n


@njit(nogil=True, cache=True)
def _find(hashes, known, first, columns):
    """Where each hash is among the known ones, which rise; first[b] is the first that has the bits
    b in front."""
    for i in range(hashes.size):
        at = first[hashes[i] >> np.uint64(64 - _BITS)]
        while at < known.size and known[at] < hashes[i]:
            at += 1
        columns[i] = at if at < known.size and known[at] == hashes[i] else _NONE
