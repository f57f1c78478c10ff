"""Map labels of any hashable type to class indices 0..C−1 and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from extremax.checks import refusing
from extremax.errors import ArgumentError

# numpy pads every string of an array to the longest, at 4 bytes per character. Up to this length
# that takes no more than Python's own strings do, about 60 bytes and one per character.
_PADDED = 32
# What numpy would change: [1, "a"] and [b"a", "a"] to strings, tuples to rows.
_KEPT = (str, bytes, tuple, frozenset)


def label_array(y: Any) -> np.ndarray:
    """Convert labels to a one-dimensional array and reject missing ones.

    Tuples and labels of mixed types are kept unchanged in an array of objects, and so are long
    strings.
    """
    labels = one_dimensional(y)
    missing = is_missing(labels)
    if missing.any():
        row = int(missing.argmax())
        raise ArgumentError(
            f"Input y contains {missing_name(labels[row])}, first in row {row}; leave out rows "
            "without a label"
        )
    return labels


def one_dimensional(y: Any) -> np.ndarray:
    """Convert labels to a one-dimensional array without changing the type of any label."""
    if isinstance(y, (list, tuple)) and any(isinstance(v, _KEPT) for v in y):
        labels = object_array(y)
        # An array of strings cannot tell "a" and "a\0" apart.
        short = all(isinstance(v, str) and len(v) <= _PADDED and v[-1:] != "\0" for v in y)
        return labels.astype(str) if short else labels
    from sklearn.utils.validation import column_or_1d

    with refusing("y"):
        labels = column_or_1d(np.asarray(y), warn=True)
    kind, width = labels.dtype.kind, labels.dtype.itemsize
    return labels.astype(object) if kind == "T" or (kind == "U" and width > 4 * _PADDED) else labels


def label_matrix(labels: Any) -> np.ndarray:
    """Convert the labels whose probabilities are requested to an array.

    The result has one dimension for one label per row, and two for a matrix or a list of lists
    with several labels per row. A tuple is a single label.
    """
    if isinstance(labels, (list, tuple)):
        if not any(isinstance(v, (list, np.ndarray)) for v in labels):
            return label_array(labels)
        rows = [label_array(row) for row in labels]
        if len({len(row) for row in rows}) != 1:
            raise ArgumentError("every row of labels must have the same length")
        return concatenate_labels(*rows).reshape(len(rows), -1)
    array = np.asarray(labels)
    if array.ndim not in (1, 2):
        raise ArgumentError(f"labels must have one or two dimensions, got shape {array.shape}")
    return array


def concatenate_labels(*arrays: np.ndarray) -> np.ndarray:
    """Concatenate arrays of labels; if their types differ, the result is an array of objects."""
    if not _comparable(*arrays):
        # numpy would convert numbers to strings and large integers to floats.
        arrays = tuple(a.astype(object) for a in arrays)
    return np.concatenate(arrays)


def _comparable(*arrays: np.ndarray) -> bool:
    """Whether numpy can compare and concatenate these labels without changing a value."""
    kinds = {array.dtype.kind for array in arrays}
    if kinds <= set("biu"):
        return np.result_type(*arrays).kind != "f"
    if kinds <= set("biuf"):
        # Beyond 2⁵³ a float is not every integer.
        whole = [array for array in arrays if array.dtype.kind in "iu" and array.size]
        bounds = [bound for array in whole for bound in (int(array.min()), int(array.max()))]
        return kinds == {"f"} or all(-(2**53) <= bound <= 2**53 for bound in bounds)
    return len(kinds) == 1


class LabelIndex:
    """Classes in a fixed order. New classes are appended, so existing indices never change.

    Numbers and strings are looked up by binary search in a sorted copy of the classes, because
    at 10⁷ classes a dictionary would take a gigabyte. Other objects use a dictionary.
    """

    def __init__(self, classes: np.ndarray) -> None:
        self.classes = classes
        self._prepare()

    @classmethod
    def of(cls, labels: np.ndarray) -> LabelIndex:
        """Index the distinct labels, sorted if they are comparable."""
        return cls(_distinct(labels))

    def _prepare(self) -> None:
        self._table: dict[Any, int] | None = None
        if self.classes.dtype == object:
            self._table = {label: i for i, label in enumerate(self.classes)}
            return
        self._order: np.ndarray | None = None
        self._sorted = self.classes
        if (self.classes[1:] < self.classes[:-1]).any():
            self._order = np.argsort(self.classes, kind="stable")
            self._sorted = self.classes[self._order]

    def __len__(self) -> int:
        return len(self.classes)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """Return the class index of each label, or −1 for an unknown label."""
        if not len(self.classes):
            return np.full(len(labels), -1, np.int64)
        if self._table is not None:
            return np.array([self._table.get(v, -1) for v in labels.tolist()], np.int64)
        if not _comparable(self.classes, labels):
            return LabelIndex(self.classes.astype(object)).encode(labels)
        if self._is_range() and labels.dtype == np.int64:
            # Each label is its own index. If all are known, a plain array needs no copy.
            known = (labels >= 0) & (labels < len(self.classes))
            plain = np.require(labels, requirements=["C", "W", "ENSUREARRAY"])
            return plain if known.all() else np.where(known, labels, -1)
        position = np.searchsorted(self._sorted, labels)
        position = np.minimum(position, len(self._sorted) - 1)
        index = position if self._order is None else self._order[position]
        return np.where(self._sorted[position] == labels, index, -1).astype(np.int64)

    def _is_range(self) -> bool:
        """Whether the classes are the integers 0..C−1 in ascending order."""
        first, last = self.classes[0], self.classes[-1]
        ascending_integers = self.classes.dtype.kind in "iu" and self._order is None
        return ascending_integers and first == 0 and last == len(self.classes) - 1

    def extend(self, labels: np.ndarray) -> int:
        """Append the labels not yet known and return their number."""
        new = _distinct(labels[self.encode(labels) < 0])
        if len(new):
            self.classes = concatenate_labels(self.classes, new)
            self._prepare()
        return len(new)


def _distinct(labels: np.ndarray) -> np.ndarray:
    if labels.dtype != object:
        return np.unique(labels)
    distinct = list(dict.fromkeys(labels.tolist()))
    try:
        return object_array(sorted(distinct))
    except TypeError:
        # Labels that cannot be compared keep the order of their first appearance.
        return object_array(distinct)


def is_missing(labels: np.ndarray) -> np.ndarray:
    """Return a mask of the labels that are None, NaN, NaT or NA, or contain one of the last three;
    refuse what is not hashable."""
    if labels.dtype == object:
        return np.fromiter((v is None or _has_nan(v) for v in labels), bool, len(labels))
    return np.isnan(labels) if labels.dtype.kind in "fcmM" else np.zeros(len(labels), bool)


def missing_name(label: Any) -> str:
    """What a message calls a missing label: NaN, or as it calls itself (None, NaT, <NA>)."""
    return "NaN" if isinstance(label, (float, np.floating, tuple, frozenset)) else f"{label!s:.80}"


def _has_nan(label: Any) -> bool:
    if isinstance(label, (str, int)):
        return False
    if isinstance(label, (tuple, frozenset)):
        return any(map(_has_nan, label))
    if not isinstance(label, Hashable):
        raise ArgumentError(f"label {label!r} of y is not hashable; use a tuple")
    try:
        return bool(label != label)
    except (RuntimeError, TypeError, ValueError):
        # NA of pandas does not say whether it equals itself.
        return True


def object_array(values: Iterable[Any]) -> np.ndarray:
    """Build a one-dimensional array of objects; numpy would turn equal-length tuples into rows."""
    values = list(values)
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out
