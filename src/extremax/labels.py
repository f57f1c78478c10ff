"""Labels of any hashable kind to 0..C−1 and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def label_array(y: Any) -> np.ndarray:
    """Labels as a one-dimensional array; tuples and mixed kinds stay whole, as objects.

    NaN is no label: it is unequal to itself.
    """
    array = _one_dimensional(y)
    missing = _is_nan(array)
    if missing.any():
        raise ValueError(f"Input y contains NaN, first in row {int(missing.argmax())}")
    return array


def _one_dimensional(y: Any) -> np.ndarray:
    if isinstance(y, (list, tuple)) and any(isinstance(v, (tuple, frozenset)) for v in y):
        return object_array(y)
    from sklearn.utils.validation import column_or_1d

    array = np.asarray(y)
    if isinstance(y, (list, tuple)) and array.dtype.kind in "US":
        # numpy turns [1, "a"] and [b"a", "a"] into strings; keep such labels as they are.
        kind = str if array.dtype.kind == "U" else bytes
        array = array if all(isinstance(v, kind) for v in y) else np.asarray(y, dtype=object)
    return column_or_1d(array, warn=True)


def label_matrix(labels: Any) -> np.ndarray:
    """Labels asked for, one a row or, as a matrix or a list of lists, several. A tuple is one."""
    if isinstance(labels, (list, tuple)):
        if not any(isinstance(v, (list, np.ndarray)) for v in labels):
            return label_array(labels)
        rows = [label_array(row) for row in labels]
        if len({len(row) for row in rows}) != 1:
            raise ValueError("every row must ask for equally many labels")
        return joined(*rows).reshape(len(rows), -1)
    array = np.asarray(labels)
    if array.ndim not in (1, 2):
        raise ValueError(f"labels must be one a row or a matrix, got shape {array.shape}")
    return array


def joined(*arrays: np.ndarray) -> np.ndarray:
    """Labels of several arrays in one; where their kinds differ, each stays what it is."""
    if not _comparable(*(a.dtype for a in arrays)):
        # numpy would make strings of numbers, and floats of large integers.
        arrays = tuple(a.astype(object) for a in arrays)
    return np.concatenate(arrays)


def _comparable(*dtypes: np.dtype) -> bool:
    """Whether numpy compares and joins labels of these types without changing any."""
    kinds = {d.kind for d in dtypes}
    if kinds <= set("biu"):
        return np.result_type(*dtypes).kind != "f"
    return kinds <= set("biuf") or len(kinds) == 1


class LabelIndex:
    """Classes in a fixed order. New ones are appended, so an index once given stays.

    Numbers and strings are looked up by binary search in a sorted copy: at 10⁷ classes a
    dictionary would need a gigabyte. Other objects use a dictionary.
    """

    def __init__(self, classes: np.ndarray) -> None:
        self.classes = classes
        self._prepare()

    @classmethod
    def of(cls, labels: np.ndarray) -> LabelIndex:
        """The distinct labels, sorted where they can be."""
        return cls(_distinct(labels))

    def _prepare(self) -> None:
        self._table: dict[Any, int] | None = None
        if self.classes.dtype == object:
            self._table = {label: i for i, label in enumerate(self.classes)}
            return
        self._rank: np.ndarray | None = None
        self._sorted = self.classes
        if (self.classes[1:] < self.classes[:-1]).any():
            self._rank = np.argsort(self.classes, kind="stable")
            self._sorted = self.classes[self._rank]

    def __len__(self) -> int:
        return len(self.classes)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """The index of each label, −1 for one that is not among the classes."""
        if not len(self.classes):
            return np.full(len(labels), -1, np.int64)
        if self._table is not None:
            return np.array([self._table.get(v, -1) for v in labels.tolist()], np.int64)
        if not _comparable(self.classes.dtype, labels.dtype):
            return LabelIndex(self.classes.astype(object)).encode(labels)
        if self._counts_up() and labels.dtype == np.int64:
            # The index of a label is the label; where all are known, a plain array of them needs
            # no copy.
            known = (labels >= 0) & (labels < len(self.classes))
            plain = np.require(labels, requirements=["C", "W", "ENSUREARRAY"])
            return plain if known.all() else np.where(known, labels, -1)
        at = np.searchsorted(self._sorted, labels)
        at = np.minimum(at, len(self._sorted) - 1)
        index = at if self._rank is None else self._rank[at]
        return np.where(self._sorted[at] == labels, index, -1).astype(np.int64)

    def _counts_up(self) -> bool:
        """Whether the classes are 0..C−1 in this order."""
        first, last = self.classes[0], self.classes[-1]
        whole = self.classes.dtype.kind in "iu" and self._rank is None
        return whole and first == 0 and last == len(self.classes) - 1

    def extend(self, labels: np.ndarray) -> int:
        """Append labels not yet known; returns how many."""
        new = _distinct(labels[self.encode(labels) < 0])
        if len(new):
            self.classes = joined(self.classes, new)
            self._prepare()
        return len(new)


def _distinct(labels: np.ndarray) -> np.ndarray:
    if labels.dtype != object:
        return np.unique(labels)
    distinct = list(dict.fromkeys(labels.tolist()))
    try:
        return object_array(sorted(distinct))
    except TypeError:
        # Labels that cannot be compared keep the order in which they first appear.
        return object_array(distinct)


def _is_nan(labels: np.ndarray) -> np.ndarray:
    if labels.dtype == object:
        return np.array([isinstance(v, float) and v != v for v in labels], bool)
    return np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)


def object_array(values: Iterable[Any]) -> np.ndarray:
    """One object a place; numpy would make a matrix of equally long tuples."""
    values = list(values)
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out
