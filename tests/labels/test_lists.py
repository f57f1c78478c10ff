"""LabelLists: multilabel targets in every supported form."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from extremax.labels import (
    LabelLists,
    concatenate_lists,
    is_multilabel,
    label_lists,
    object_array,
    one_label_per_row,
)

INDICATOR = np.array([[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]])
COLUMNS = [[1, 2], [], [0, 3]]

MULTILABEL: dict[str, tuple[Any, list[list[Any]]]] = {
    "dense": (INDICATOR, COLUMNS),
    "dense booleans": (INDICATOR.astype(bool), COLUMNS),
    "dense floats": (INDICATOR.astype(np.float32), COLUMNS),
    "csr": (sparse.csr_matrix(INDICATOR), COLUMNS),
    "csc of booleans": (sparse.csc_array(INDICATOR.astype(bool)), COLUMNS),
    "coo": (sparse.coo_matrix(INDICATOR), COLUMNS),
    "one sparse column": (sparse.csr_matrix([[1], [0]]), [[0], []]),
    "lists": ([["b", "a"], [], ["c"]], [["b", "a"], [], ["c"]]),
    "a tuple of lists": (([2, 1], [7]), [[2, 1], [7]]),
    "arrays": ([np.array([5, 3]), np.array([], np.int64)], [[5, 3], []]),
    "sets": ([{3, 1, 2}, set()], [[1, 2, 3], []]),
    "tuples are one label": ([[(1, 2), (3,)], [(1, 2)]], [[(1, 2), (3,)], [(1, 2)]]),
    "mixed kinds": ([[1, "one"], [(1, None), 2.5]], [[1, "one"], [(1, None), 2.5]]),
    "an array of lists": (object_array([[4], [5, 6]]), [[4], [5, 6]]),
    "LabelLists": (LabelLists(np.array([8, 9]), np.array([0, 0, 2])), [[], [8, 9]]),
}


@pytest.mark.parametrize(("y", "labels"), MULTILABEL.values(), ids=MULTILABEL.keys())
def test_every_form_is_converted(y: Any, labels: list[list[Any]]) -> None:
    assert is_multilabel(y)
    lists = label_lists(y, len(labels))
    assert lists.tolist() == labels
    assert lists.indptr.dtype == np.int64
    assert lists.counts.tolist() == [len(row) for row in labels]
    assert lists.rows.tolist() == [i for i, row in enumerate(labels) for _ in row]


def test_column_indices_are_int64() -> None:
    for y in (INDICATOR, sparse.csr_matrix(INDICATOR)):
        assert label_lists(y, 3).values.dtype == np.int64


SINGLE_LABEL: list[Any] = [
    [1, 2, 3],
    ["ab", "c"],
    [(1, 2), (3, 4)],
    [frozenset({1}), frozenset({2})],
    np.array([1, 2]),
    np.array([[1], [2]]),
    np.array(["a", None], dtype=object),
    [np.array(1), np.array(2)],
    (1, 2),
    [],
]


@pytest.mark.parametrize("y", SINGLE_LABEL, ids=repr)
def test_one_label_per_row_is_not_multilabel(y: Any) -> None:
    assert not is_multilabel(y)


def test_repeated_labels_count_once() -> None:
    y = [["b", "a", "b"], ["a"], ["a", "a"], []]
    assert label_lists(y, 4).tolist() == [["b", "a"], ["a"], ["a"], []]
    repeated = LabelLists(np.array([3, 3, 1, 3]), np.array([0, 2, 4]))
    assert label_lists(repeated, 2).tolist() == [[3], [1, 3]]


def test_stored_zeros_are_not_labels_and_indices_are_sorted() -> None:
    y = sparse.csr_matrix((np.array([1, 0, 1]), np.array([4, 2, 1]), np.array([0, 3, 3])))
    before = y.copy()
    assert label_lists(y, 2).tolist() == [[1, 4], []]
    # The input is not modified.
    assert y.indices.tolist() == before.indices.tolist()
    assert y.data.tolist() == before.data.tolist()


def test_the_order_of_a_set_is_the_same_in_every_process() -> None:
    code = (
        "from extremax.labels import label_lists\n"
        "print(label_lists([set('abcdefgh'), {1, 'x', (2,), 'y'}], 2).tolist())"
    )
    environments = [os.environ | {"PYTHONHASHSEED": str(seed)} for seed in (1, 2, 3)]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout
        for env in environments
    }
    assert len(outputs) == 1


def _with(value: Any, dtype: Any = float) -> np.ndarray:
    indicator = INDICATOR.astype(dtype)
    indicator[2, 3] = value
    return indicator


INVALID: dict[str, tuple[Any, str]] = {
    "too few rows": ([["a"], ["b"]], "X has 3 rows, but y has 2"),
    "too many rows": (np.eye(4), "X has 3 rows, but y has 4"),
    "dense 2": (_with(2, int), "y has 2 in row 2, column 3"),
    "dense -1": (_with(-1), r"y has -1\.0 in row 2, column 3"),
    "dense NaN": (_with(np.nan), "y has nan in row 2, column 3"),
    "dense strings": (_with("1", str), "matrix of 0 and 1.*got dtype <U"),
    "sparse 0.5": (sparse.csr_matrix(_with(0.5)), r"y has 0\.5 in row 2, column 3"),
    "sparse -1": (sparse.csc_matrix(_with(-1)), r"y has -1\.0 in row 2, column 3"),
    "sparse NaN": (sparse.coo_matrix(_with(np.nan)), "y has nan in row 2, column 3"),
    "sparse, stored twice": (
        sparse.csr_matrix((np.ones(2), np.array([1, 1]), np.array([0, 0, 2, 2])), (3, 2)),
        r"y has 2\.0 in row 1, column 1",
    ),
    "dense, no labels": (np.zeros((3, 2)), "none of the 3 rows of y has a label"),
    "sparse, no labels": (sparse.csr_matrix((3, 2)), "none of the 3 rows of y has a label"),
    "lists, no labels": ([[], [], []], "none of the 3 rows of y has a label"),
    "NaN": ([["a"], [1.0, float("nan")], []], "NaN among the labels of row 1"),
    "NaN among floats": ([[1.0], [], [2.0, np.nan]], "NaN among the labels of row 2"),
    "not a list": ([["a"], "b", ["c"]], r"row 1 of y is the single label 'b'.*write it as \['b'\]"),
    "lists in lists": ([["a"], [], ["c", ["d"]]], r"row 2 of y contains \['d'\].*use a tuple"),
    "matrices in lists": ([np.eye(2), [], []], "row 0 of y contains .*use a tuple"),
}


@pytest.mark.parametrize(("y", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_targets_are_rejected(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_lists(y, 3)


@pytest.mark.parametrize("indptr", [[], [1, 2], [0, 1], [0, 3, 2], [[0, 2]]], ids=str)
def test_indptr_must_match_the_values(indptr: list[Any]) -> None:
    with pytest.raises(ValueError, match="indptr"):
        LabelLists(np.array([1, 2]), np.array(indptr, np.int64))


ROWS = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8)


@given(rows=ROWS, data=st.data())
def test_indexing_agrees_with_lists(rows: list[list[int]], data: st.DataObject) -> None:
    lists = LabelLists(
        np.array([label for row in rows for label in row], np.int64),
        np.cumsum([0, *(len(row) for row in rows)]),
    )
    part = data.draw(st.slices(len(rows)))
    assert lists[part].tolist() == rows[part]
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    kept = [row for row, keep in zip(rows, mask, strict=True) if keep]
    assert lists[np.array(mask, bool)].tolist() == kept
    if rows:
        chosen = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1)))
        assert lists[np.array(chosen, np.int64)].tolist() == [rows[i] for i in chosen]
        assert lists[-1].tolist() == rows[-1]
    with pytest.raises(IndexError):
        lists[len(rows)]
    once = [list(dict.fromkeys(row)) for row in rows]
    assert lists.without_repeats().tolist() == once


@given(blocks=st.lists(ROWS, min_size=1, max_size=4))
def test_concatenation_agrees_with_lists(blocks: list[list[list[int]]]) -> None:
    lists = [
        LabelLists(
            np.array([label for row in rows for label in row], np.int64),
            np.cumsum([0, *(len(row) for row in rows)]),
        )
        for rows in blocks
    ]
    assert concatenate_lists(lists).tolist() == [row for rows in blocks for row in rows]


def test_one_label_per_row() -> None:
    assert one_label_per_row(np.array(["a", "b"])).tolist() == [["a"], ["b"]]
    assert len(one_label_per_row(np.empty(0, np.int64))) == 0
