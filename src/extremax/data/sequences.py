"""Sequences of items as the user brings them: sessions, and the prefixes to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax.checks import refusing
from extremax.errors import ArgumentError
from extremax.labels import LabelIndex
from extremax.labels.index import is_missing, missing_name, one_dimensional

if TYPE_CHECKING:
    from extremax.rows import SequenceRows

# What has no order, or is one item rather than several.
_NO_SEQUENCES = (str, bytes, Set, Mapping)
_ALWAYS_HASHABLE = (str, bytes, int, float, np.generic)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of items, each a part of one array.

    items:        (·,) the items, of any hashable kind.
    ends, sizes:  (n,) where in ``items`` a sequence ends, and its number of items.
    sessions:     (n,) what session a sequence is a prefix of, if they are prefixes.
    """

    items: np.ndarray
    ends: np.ndarray
    sizes: np.ndarray
    sessions: np.ndarray | None = None

    @classmethod
    def of(cls, sequences: Iterable[Sequence[Any]]) -> Sequences:
        """From lists of items; a list may be empty."""
        if isinstance(sequences, Sequences):
            return sequences
        if isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):
            raise ArgumentError(f"sessions must be lists of items, got {sequences!r:.80}")
        lists = []
        for number, sequence in enumerate(sequences):
            if isinstance(sequence, _NO_SEQUENCES) or not isinstance(sequence, Iterable):
                raise ArgumentError(
                    f"session {number} must be a list of items, got {sequence!r:.80}"
                )
            with refusing(f"session {number}"):
                lists.append(list(sequence))
        sizes = np.array([len(one) for one in lists], np.int64)
        return cls(_item_array(lists, sizes), np.cumsum(sizes), sizes)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, numbers: Any) -> Sequences:
        sessions = None if self.sessions is None else self.sessions[numbers]
        return Sequences(self.items, self.ends[numbers], self.sizes[numbers], sessions)

    @property
    def shape(self) -> tuple[int, int]:
        """Sequences, and all their items."""
        return len(self.ends), len(self.items)

    def tolist(self) -> list[list[Any]]:
        """The sequences as lists of items."""
        starts = self.ends - self.sizes
        return [self.items[a:b].tolist() for a, b in zip(starts, self.ends, strict=True)]

    def prefixes(self) -> tuple[Sequences, np.ndarray]:
        """Every proper prefix of every sequence, and the item that follows it."""
        many = np.maximum(self.sizes - 1, 0)
        session = np.repeat(np.arange(len(self)), many)
        sizes = np.arange(len(session)) - (np.cumsum(many) - many)[session] + 1
        ends = (self.ends - self.sizes)[session] + sizes
        return Sequences(self.items, ends, sizes, session), self.items[ends]

    def rows(self, index: LabelIndex) -> SequenceRows:
        """The same sequences by item numbers; items that the index does not have are left out."""
        # Loads torch, which readers do not need.
        from extremax.rows import SequenceRows

        codes = index.encode(self.items)
        known = np.concatenate([[0], np.cumsum(codes >= 0)])
        ends = known[self.ends]
        sizes = ends - known[self.ends - self.sizes]
        return SequenceRows(codes[codes >= 0], ends, sizes, len(index), self.sessions)


def _item_array(lists: list[list[Any]], sizes: np.ndarray) -> np.ndarray:
    """The items of all sessions in one array, checked."""
    items = [item for one in lists for item in one]
    odd = {kind for kind in set(map(type, items)) if not issubclass(kind, _ALWAYS_HASHABLE)}
    for place, item in enumerate(items if odd else ()):
        if type(item) in odd:
            try:
                hash(item)
            except TypeError as error:
                raise ArgumentError(
                    f"item {item!r:.80} of session {_session_of(place, sizes)} is not hashable; "
                    "use a tuple"
                ) from error
    array = one_dimensional(items)
    missing = is_missing(array)
    if missing.any():
        first = int(missing.argmax())
        session, name = _session_of(first, sizes), missing_name(array[first])
        raise ArgumentError(f"session {session} has an item that is {name}")
    return array


def _session_of(place: int, sizes: np.ndarray) -> int:
    return int(np.searchsorted(np.cumsum(sizes), place, side="right"))
