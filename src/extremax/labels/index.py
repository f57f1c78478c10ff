"""Map labels of any hashable type to class indices 0..C−1 and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def label_array(y: Any) -> np.ndarray:
    """Convert labels to a one-dimensional array and reject NaN, which does not equal itself.

    Tuples and labels of mixed types are kept unchanged in an array of objects.
    """
    labels = one_dimensional(y)
    missing = is_nan(labels)
    if missing.any():
        raise ValueError(f"Input y contains NaN, first in row {int(missing.argmax())}")
    return labels


def one_dimensional(y: Any) -> np.ndarray:
    """Convert labels to a one-dimensional array without changing the type of any label."""
    if isinstance(y, (list, tuple)) and any(isinstance(v, (tuple, frozenset)) for v in y):
        return object_array(y)
    from sklearn.utils.validation import column_or_1d

    array = np.asarray(y)
    if isinstance(y, (list, tuple)) and array.dtype.kind in "US":
        # numpy converts [1, "a"] and [b"a", "a"] to strings; keep such labels as objects.
        kind = str if array.dtype.kind == "U" else bytes
        array = array if all(isinstance(v, kind) for v in y) else np.asarray(y, dtype=object)
    return column_or_1d(array, warn=True)


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
            raise ValueError("every row of labels must have the same length")
        return concatenate_labels(*rows).reshape(len(rows), -1)
    array = np.asarray(labels)
    if array.ndim not in (1, 2):
        raise ValueError(f"labels must have one or two dimensions, got shape {array.shape}")
    return array


def concatenate_labels(*arrays: np.ndarray) -> np.ndarray:
    """Concatenate arrays of labels; if their types differ, the result is an array of objects."""
    if not _comparable(*(a.dtype for a in arrays)):
        # numpy would convert numbers to strings and large integers to floats.
        arrays = tuple(a.astype(object) for a in arrays)
    return np.concatenate(arrays)


def _comparable(*dtypes: np.dtype) -> bool:
    """Whether numpy can compare and concatenate these types without changing a value."""
    kinds = {d.kind for d in dtypes}
    if kinds <= set("biu"):
        return np.result_type(*dtypes).kind != "f"
    return kinds <= set("biuf") or len(kinds) == 1


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
        if not _comparable(self.classes.dtype, labels.dtype):
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


def is_nan(labels: np.ndarray) -> np.ndarray:
    """Return a mask of the labels that are NaN."""
    if labels.dtype == object:
        return np.array([isinstance(v, float) and v != v for v in labels], bool)
    return np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)


def object_array(values: Iterable[Any]) -> np.ndarray:
    """Build a one-dimensional array of objects; numpy would turn equal-length tuples into rows."""
    values = list(values)
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out
