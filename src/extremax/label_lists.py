"""Several labels an example: lists of labels, one list a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from extremax.labels import LabelIndex, _is_nan, _one_dimensional, joined


@dataclass(frozen=True, eq=False)
class LabelLists:
    """The labels of row i are ``values[indptr[i]:indptr[i + 1]]``; a row may have none.

    Each of the ``values`` is a (row, label) pair. A slice, a mask or an array of rows gives the
    LabelLists of these rows, a single row number its array of labels.
    """

    values: np.ndarray
    indptr: np.ndarray

    def __post_init__(self) -> None:
        ends = np.asarray(self.indptr, dtype=np.int64)
        if ends.ndim != 1 or not len(ends) or ends[0] or (np.diff(ends) < 0).any():
            raise ValueError("indptr must begin with 0, and never fall")
        if self.values.ndim != 1 or ends[-1] != len(self.values):
            raise ValueError(f"indptr ends at {ends[-1]}; values have shape {self.values.shape}")
        object.__setattr__(self, "indptr", ends)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def counts(self) -> np.ndarray:
        """How many labels each row has."""
        return np.diff(self.indptr)

    @property
    def rows(self) -> np.ndarray:
        """The row number of each pair."""
        return np.repeat(np.arange(len(self)), self.counts)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                # Rows side by side are a view.
                ends = self.indptr[start : max(start, stop) + 1]
                return LabelLists(self.values[ends[0] : ends[-1]], ends - ends[0])
        chosen = np.arange(len(self))[rows]
        if chosen.ndim == 0:
            return self.values[self.indptr[chosen] : self.indptr[chosen + 1]]
        ends = _ends(self.counts[chosen])
        shift = np.repeat(self.indptr[chosen] - ends[:-1], np.diff(ends))
        return LabelLists(self.values[shift + np.arange(ends[-1])], ends)

    def tolist(self) -> list[list[Any]]:
        """A list of labels a row."""
        values = self.values.tolist()
        return [values[a:b] for a, b in zip(self.indptr, self.indptr[1:], strict=False)]

    def without_repeats(self) -> LabelLists:
        """Each label of a row once, where it comes first."""
        if self.counts.max(initial=0) < 2:
            return self
        codes = self.values
        if codes.dtype.kind not in "iu":
            codes = LabelIndex.of(codes).encode(codes)
        rows = self.rows
        order = np.lexsort((codes, rows))
        again = (np.diff(rows[order]) == 0) & (np.diff(codes[order]) == 0)
        if not again.any():
            return self
        kept = np.ones(len(codes), bool)
        kept[order[1:][again]] = False
        counts = np.bincount(rows[kept], minlength=len(self))
        return LabelLists(self.values[kept], _ends(counts))


def one_each(labels: np.ndarray) -> LabelLists:
    """Lists of one label."""
    return LabelLists(labels, np.arange(len(labels) + 1))


def join_lists(parts: Sequence[LabelLists]) -> LabelLists:
    """The rows of all parts, one after the other."""
    counts = np.concatenate([part.counts for part in parts])
    return LabelLists(joined(*(part.values for part in parts)), _ends(counts))


def is_several(y: Any) -> bool:
    """Whether these labels are several a row: LabelLists, a scipy sparse matrix, a dense array
    of more than one column, or lists, sets or arrays of labels.

    A tuple is one label. An array of one column holds the labels themselves.
    """
    if isinstance(y, LabelLists) or sparse.issparse(y):
        return True
    if getattr(y, "ndim", 1) == 2:
        return bool(y.shape[1] > 1)
    # An array or a pandas Series of Python objects may hold lists, too.
    objects = getattr(y, "ndim", 0) == 1 and getattr(y.dtype, "kind", "") == "O"
    return (objects or isinstance(y, (list, tuple))) and any(map(_is_row, y))


def _is_row(value: Any) -> bool:
    """Whether this holds the labels of a row: a tuple and a frozenset are one label."""
    return isinstance(value, (list, set)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def label_lists(y: Any, n_rows: int) -> LabelLists:
    """What `is_several` finds several, as LabelLists of ``n_rows`` rows.

    Of an indicator matrix, dense or sparse, the labels are the numbers of the columns with a 1.
    A label repeated in a row counts once. Rows without a label are allowed; not all may be.
    """
    if isinstance(y, LabelLists):
        lists = y
    elif sparse.issparse(y):
        lists = _of_sparse(y)
    elif getattr(y, "ndim", 1) == 2:
        lists = _of_dense(np.asarray(y))
    else:
        lists = _of_rows(y)
    if len(lists) != n_rows:
        raise ValueError(f"X has {n_rows} rows but y has the labels of {len(lists)}")
    missing = _is_nan(lists.values)
    if missing.any():
        raise ValueError(f"y has a NaN among the labels of row {lists.rows[missing.argmax()]}")
    if not len(lists.values):
        raise ValueError(f"none of the {n_rows} rows of y has a label")
    return lists.without_repeats()


def _of_sparse(y: Any) -> LabelLists:
    if y.ndim != 2:
        raise ValueError(f"a sparse y needs a row an example and a column a label, not {y.shape}")
    matrix = y.tocsr()
    if not matrix.has_canonical_format or (matrix.data == 0).any():
        # An entry stored twice is the sum of both, as everywhere in scipy.
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    wrong = np.flatnonzero(matrix.data != 1)
    if len(wrong):
        row = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1
        _refuse_value(matrix.data[wrong[0]], row, matrix.indices[wrong[0]])
    return LabelLists(matrix.indices.astype(np.int64), matrix.indptr)


def _of_dense(y: np.ndarray) -> LabelLists:
    if y.dtype.kind not in "biuf":
        raise ValueError(
            f"y of two dimensions must be 0 and 1, a column a label, and this one has {y.dtype}; "
            "labels themselves are given as a list of lists"
        )
    wrong = np.argwhere((y != 0) & (y != 1))
    if len(wrong):
        _refuse_value(y[tuple(wrong[0])], *wrong[0])
    rows, columns = np.nonzero(y)
    return LabelLists(columns.astype(np.int64), _ends(np.bincount(rows, minlength=len(y))))


def _refuse_value(value: Any, row: int, column: int) -> None:
    raise ValueError(
        f"y has {value} in row {row}, column {column}: an indicator is 1 where the row has the "
        "label, else 0; labels themselves are given as a list of lists"
    )


def _of_rows(y: Any) -> LabelLists:
    flat: list[Any] = []
    counts = []
    for i, row in enumerate(y):
        if not _is_row(row):
            raise ValueError(f"row {i} of y is one label, {row!r}, where other rows are lists")
        labels = _listed(row)
        nested = next(filter(_is_row, labels), None)
        if nested is not None:
            raise ValueError(f"row {i} of y has {nested!r} among its labels; make it a tuple")
        flat.extend(labels)
        counts.append(len(labels))
    return LabelLists(_one_dimensional(flat), _ends(counts))


def _listed(labels: Any) -> list[Any]:
    """The labels of a row, those of a set in an order that every process finds."""
    if isinstance(labels, np.ndarray):
        return list(labels.tolist())
    if isinstance(labels, list):
        return labels
    try:
        return sorted(labels)
    except TypeError:
        return sorted(labels, key=lambda label: (type(label).__name__, repr(label)))


def _ends(counts: Any) -> np.ndarray:
    """Where each row ends, after a 0."""
    ends = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends
