"""Multilabel targets: one list of labels per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from extremax.checks import check_matrix
from extremax.errors import ArgumentError
from extremax.labels.index import (
    LabelIndex,
    concatenate_labels,
    is_missing,
    missing_name,
    one_dimensional,
)


@dataclass(frozen=True, eq=False)
class LabelLists:
    """Lists of labels in CSR layout: row i has the labels ``values[indptr[i]:indptr[i + 1]]``.

    Each entry of ``values`` is one (row, label) pair; a row may have none. Indexing with a slice,
    a mask or an array of row numbers returns the LabelLists of those rows, and indexing with an
    integer returns the array of labels of that row.
    """

    values: np.ndarray
    indptr: np.ndarray

    def __post_init__(self) -> None:
        indptr = np.asarray(self.indptr, dtype=np.int64)
        if indptr.ndim != 1 or not len(indptr) or indptr[0] or (np.diff(indptr) < 0).any():
            raise ArgumentError("indptr must start at 0 and must not decrease")
        if self.values.ndim != 1 or indptr[-1] != len(self.values):
            raise ArgumentError(
                f"indptr must end at the length of values: it ends at {indptr[-1]}, and values "
                f"have shape {self.values.shape}"
            )
        object.__setattr__(self, "indptr", indptr)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def counts(self) -> np.ndarray:
        """Number of labels per row."""
        return np.diff(self.indptr)

    @property
    def rows(self) -> np.ndarray:
        """Row number of each pair."""
        return np.repeat(np.arange(len(self)), self.counts)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                # The values of consecutive rows are a view.
                indptr = self.indptr[start : max(start, stop) + 1]
                return LabelLists(self.values[indptr[0] : indptr[-1]], indptr - indptr[0])
        selected = np.arange(len(self))[rows]
        if selected.ndim == 0:
            return self.values[self.indptr[selected] : self.indptr[selected + 1]]
        indptr = _offsets(self.counts[selected])
        shift = np.repeat(self.indptr[selected] - indptr[:-1], np.diff(indptr))
        return LabelLists(self.values[shift + np.arange(indptr[-1])], indptr)

    def tolist(self) -> list[list[Any]]:
        """Convert to one Python list of labels per row."""
        values = self.values.tolist()
        return [values[a:b] for a, b in zip(self.indptr, self.indptr[1:], strict=False)]

    def without_repeats(self) -> LabelLists:
        """Keep only the first occurrence of each label in its row."""
        first = self.is_first
        if first.all():
            return self
        counts = np.bincount(self.rows[first], minlength=len(self))
        return LabelLists(self.values[first], _offsets(counts))

    @property
    def is_first(self) -> np.ndarray:
        """Whether each pair is the first of its label in its row."""
        kept = np.ones(len(self.values), bool)
        if self.counts.max(initial=0) < 2:
            return kept
        codes = self.values
        if codes.dtype.kind not in "iu":
            codes = LabelIndex.of(codes).encode(codes)
        rows = self.rows
        order = np.lexsort((codes, rows))
        repeated = (np.diff(rows[order]) == 0) & (np.diff(codes[order]) == 0)
        kept[order[1:][repeated]] = False
        return kept


def one_label_per_row(labels: np.ndarray) -> LabelLists:
    """Convert an array with one label per row to lists of length one."""
    return LabelLists(labels, np.arange(len(labels) + 1))


def concatenate_lists(blocks: Sequence[LabelLists]) -> LabelLists:
    """Concatenate the rows of all blocks."""
    counts = np.concatenate([block.counts for block in blocks])
    return LabelLists(concatenate_labels(*(block.values for block in blocks)), _offsets(counts))


def is_multilabel(y: Any) -> bool:
    """Whether ``y`` holds a list of labels per row rather than one label per row.

    True for LabelLists, scipy sparse matrices, dense arrays with more than one column, and
    sequences of lists, sets or arrays. A tuple is a single label, and an array with one column
    holds the labels themselves.
    """
    if isinstance(y, LabelLists) or sparse.issparse(y):
        return True
    y = _as_array(y)
    if getattr(y, "ndim", 1) == 2:
        return bool(y.shape[1] > 1)
    # A numpy array or pandas Series of Python objects may also hold lists.
    holds_objects = getattr(y, "ndim", 0) == 1 and getattr(y.dtype, "kind", "") == "O"
    return (holds_objects or isinstance(y, (list, tuple))) and any(map(_is_collection, y))


def _as_array(y: Any) -> Any:
    """Targets as they are, but a column or frame of polars, which has no ``ndim``, as an array."""
    return np.asarray(y) if hasattr(y, "__array__") and not hasattr(y, "ndim") else y


def _is_collection(value: Any) -> bool:
    """Whether a value is the labels of a row; tuples and frozensets are single labels."""
    return isinstance(value, (list, set)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def label_lists(y: Any, n_rows: int) -> LabelLists:
    """Convert multilabel targets (see `is_multilabel`) of ``n_rows`` rows to LabelLists.

    The labels of an indicator matrix, dense or sparse, are the indices of the columns that hold
    a 1. Repeated labels in a row count once. Rows without labels are allowed, but at least one
    row must have a label.
    """
    return _checked_lists(y, n_rows).without_repeats()


def weighted_label_lists(y: Any, weights: Any, n_rows: int) -> tuple[LabelLists, np.ndarray]:
    """`label_lists`, and the weight of each (row, label) pair.

    weights:  for lists of labels, lists of as many weights in the same order; for an indicator
              matrix, a matrix of the same shape, read where y has a 1. Of a repeated label the
              first weight counts.
    """
    lists = _checked_lists(y, n_rows)
    if sparse.issparse(y) or getattr(y, "ndim", 1) == 2:
        if getattr(weights, "shape", None) != y.shape:
            raise ArgumentError(f"sample_weight must be a matrix like y, of shape {y.shape}")
        matrix = sparse.csr_matrix(weights) if sparse.issparse(weights) else np.asarray(weights)
        return lists, np.asarray(matrix[lists.rows, lists.values]).reshape(-1)
    if sparse.issparse(weights):
        raise ArgumentError("sample_weight is a matrix, but y is not; use a list of lists")
    given = weights.tolist() if isinstance(weights, LabelLists) else list(weights)
    if len(given) != n_rows:
        raise ArgumentError(f"X has {n_rows} rows, but sample_weight has {len(given)}")
    rows = () if isinstance(y, LabelLists) else y
    for i, row in enumerate(rows):
        if isinstance(row, set):
            raise ArgumentError(
                f"row {i} of y is a set, which has no order for its weights to be in; use a list"
            )
    for i, (row, n_labels) in enumerate(zip(given, lists.counts.tolist(), strict=True)):
        if not _is_collection(row) or isinstance(row, set) or len(row) != n_labels:
            raise ArgumentError(
                f"row {i} of y has {n_labels} labels, so that row {i} of sample_weight must be a "
                f"list of as many weights, got {row!r:.80}"
            )
    values = np.array([weight for row in given for weight in row], object)
    return lists.without_repeats(), values[lists.is_first]


def _checked_lists(y: Any, n_rows: int) -> LabelLists:
    """Targets as lists, with repeated labels."""
    y = _as_array(y)
    if isinstance(y, LabelLists):
        lists = LabelLists(one_dimensional(y.values), y.indptr)
    elif sparse.issparse(y) or getattr(y, "ndim", 1) == 2:
        lists = _from_indicator(y)
    else:
        lists = _from_collections(y)
    if len(lists) != n_rows:
        raise ArgumentError(f"X has {n_rows} rows, but y has {len(lists)}")
    missing = is_missing(lists.values)
    if missing.any():
        first = missing.argmax()
        name, row = missing_name(lists.values[first]), lists.rows[first]
        raise ArgumentError(f"y contains {name} among the labels of row {row}")
    if not len(lists.values):
        raise ArgumentError(f"none of the {n_rows} rows of y has a label")
    return lists


def _from_indicator(y: Any) -> LabelLists:
    if y.ndim != 2:
        raise ArgumentError(
            f"a sparse y must have two dimensions, (rows, labels), got shape {y.shape}"
        )
    check_matrix("y", y)
    y = y if sparse.issparse(y) else np.asarray(y)
    if y.dtype.kind not in "biuf":
        raise ArgumentError(
            f"a two-dimensional y must be a matrix of 0 and 1 with one column per label, got dtype "
            f"{y.dtype}; pass the labels themselves as a list of lists"
        )
    matrix = sparse.csr_matrix(y)
    if not matrix.has_canonical_format or (matrix.data == 0).any():
        # scipy defines an entry that is stored twice as the sum of both values.
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    invalid = np.flatnonzero(matrix.data != 1)
    if len(invalid):
        row = int(np.searchsorted(matrix.indptr, invalid[0], side="right")) - 1
        raise ArgumentError(
            f"y has {matrix.data[invalid[0]]} in row {row}, column {matrix.indices[invalid[0]]}, "
            "but an indicator matrix may only contain 0 and 1; pass the labels themselves as a "
            "list of lists"
        )
    return LabelLists(matrix.indices.astype(np.int64), matrix.indptr)


def _from_collections(y: Any) -> LabelLists:
    flat: list[Any] = []
    counts = []
    for i, row in enumerate(y):
        if not _is_collection(row):
            raise ArgumentError(
                f"row {i} of y is the single label {row!r}, but other rows are lists; "
                f"write it as [{row!r}]"
            )
        labels = _ordered(row)
        nested = next(filter(_is_collection, labels), None)
        if nested is not None:
            raise ArgumentError(
                f"row {i} of y contains {nested!r}, which is not hashable; use a tuple as a label"
            )
        flat.extend(labels)
        counts.append(len(labels))
    return LabelLists(one_dimensional(flat), _offsets(counts))


def _ordered(labels: Any) -> list[Any]:
    """Return the labels of a row as a list; sets are put in the same order in every process."""
    if not isinstance(labels, set):
        return list(labels.tolist() if isinstance(labels, np.ndarray) else labels)
    try:
        return sorted(labels)
    except TypeError:
        return sorted(labels, key=lambda label: (type(label).__name__, repr(label)))


def _offsets(counts: Any) -> np.ndarray:
    """Return the CSR offsets of rows with these counts: 0, then the end of each row."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
