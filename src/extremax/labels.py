"""Labels of any hashable kind to 0..C−1 and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def label_array(y: Any) -> np.ndarray:
    """Labels as a one-dimensional array; tuples and mixed kinds stay whole, as objects."""
    if isinstance(y, (list, tuple)) and any(isinstance(v, (tuple, frozenset)) for v in y):
        return object_array(y)
    from sklearn.utils.validation import column_or_1d

    array = np.asarray(y)
    if isinstance(y, (list, tuple)) and array.dtype.kind in "US":
        # numpy turns [1, "a"] into strings; keep such labels as they are.
        mixed = any(not isinstance(v, (str, bytes, np.str_)) for v in y)
        array = np.asarray(y, dtype=object) if mixed else array
    return column_or_1d(array, warn=True)


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
        else:
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
        if labels.dtype == object or (labels.dtype.kind in "US") != (
            self.classes.dtype.kind in "US"
        ):
            return LabelIndex(self.classes.astype(object)).encode(labels)
        at = np.searchsorted(self._sorted, labels)
        at = np.minimum(at, len(self._sorted) - 1)
        return np.where(self._sorted[at] == labels, self._rank[at], -1).astype(np.int64)

    def extend(self, labels: np.ndarray) -> int:
        """Append labels not yet known; returns how many."""
        new = _distinct(labels[self.encode(labels) < 0])
        if len(new):
            if self.classes.dtype == object and new.dtype != object:
                new = new.astype(object)
            self.classes = np.concatenate([self.classes, new])
            self._prepare()
        return len(new)


def _distinct(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError(f"Input y contains NaN, first in row {int(np.isnan(labels).argmax())}")
    try:
        return np.unique(labels)
    except TypeError:
        # Labels that cannot be compared keep the order in which they first appear.
        return object_array(dict.fromkeys(labels.tolist()))


def object_array(values: Iterable[Any]) -> np.ndarray:
    """One object a place; numpy would make a matrix of equally long tuples."""
    values = list(values)
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out
