"""LabelIndex: labels of every type are mapped to 0..C−1 and back."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from extremax.errors import ArgumentError
from extremax.labels import (
    LabelIndex,
    concatenate_labels,
    label_array,
    label_lists,
    label_matrix,
    object_array,
    one_label_per_row,
)
from extremax.labels.saving import pack_labels, unpack_labels

KINDS: dict[str, list[Any]] = {
    "integers": [30, -4, 7, 30, 7],
    "floats": [2.0, -1.0, 2.0, 5.0],
    "strings": ["pear", "fig", "apfel", "fig"],
    "booleans": [True, False, True],
    "tuples": [(1, 2), (0, 5), (1, 2)],
    "tuples of unequal length": [(1,), (1, 2), (), (1,)],
    "numbers and strings": [1, "one", 2, "one", 1],
    "all at once": [1, "a", (1, None), 2.5, (1, None)],
    "text and bytes": ["a", b"a", "a"],
    "frozensets": [frozenset({3}), frozenset({1}), frozenset({2, 3}), frozenset({3})],
}


@pytest.mark.parametrize("labels", KINDS.values(), ids=KINDS.keys())
def test_encoded_labels_decode_to_themselves(labels: list[Any]) -> None:
    index = LabelIndex.of(label_array(labels))
    assert len(index) == len(set(labels))
    assert set(index.classes.tolist()) == set(labels)
    codes = index.encode(label_array(labels))
    assert index.classes[codes].tolist() == labels
    assert codes.dtype == np.int64


@pytest.mark.parametrize("labels", [[3, 1, 2, 1], ["c", "a", "b"], [(2, 1), (1, 9)], [2.0, -1.0]])
def test_labels_that_can_be_compared_are_sorted(labels: list[Any]) -> None:
    assert LabelIndex.of(label_array(labels)).classes.tolist() == sorted(set(labels))


def test_labels_that_cannot_be_compared_keep_the_order_of_appearance() -> None:
    assert LabelIndex.of(label_array(["b", 1, "a", 1])).classes.tolist() == ["b", 1, "a"]


def test_sets_are_distinct_although_their_order_is_partial() -> None:
    # Sorting alone would not make equal sets adjacent: neither of {1} and {2} is smaller.
    labels = [frozenset({v % 7, 10 + v % 3}) for v in range(400)]
    assert len(LabelIndex.of(label_array(labels))) == 21


def test_unknown_labels_of_any_type_are_encoded_as_minus_one() -> None:
    for known in ([10, 20, 30], ["a", "b"], [(1, 2), "x"], [True, False]):
        index = LabelIndex.of(label_array(known))
        for stranger in ([99], [-5], ["zz"], [(7, 7)], [1.5], [b"a"]):
            assert index.encode(label_array(stranger)).tolist() == [-1], (known, stranger)


def test_equal_labels_of_another_dtype_are_found() -> None:
    index = LabelIndex.of(np.array([10, 20, 30], np.int64))
    for same in (np.array([30, 11], np.uint8), np.array([30.0, 11.0]), np.array([30, 11], object)):
        assert index.encode(same).tolist() == [2, -1]
    index = LabelIndex.of(np.array(["fig", "pear"]))
    assert index.encode(np.array(["a much longer word", "fig"])).tolist() == [-1, 0]
    assert index.encode(np.array(["fig"], dtype=object)).tolist() == [0]


def test_integers_beyond_the_precision_of_floats_stay_distinct() -> None:
    large = np.array([2**63, 2**63 + 1, 2**60], np.uint64)
    index = LabelIndex.of(large)
    assert index.encode(np.array([2**60, 2**60 + 1], np.int64)).tolist() == [0, -1]
    assert index.extend(np.array([-1, 2**60 + 1], np.int64)) == 2
    assert index.encode(large).tolist() == [1, 2, 0]
    assert index.encode(np.array([-1, 2**60 + 1], np.int64)).tolist() == [3, 4]


def test_an_empty_index_encodes_everything_as_unknown() -> None:
    assert LabelIndex(np.array([], dtype=object)).encode(np.array([1, 2])).tolist() == [-1, -1]


def test_extend_appends_and_keeps_every_index() -> None:
    index = LabelIndex.of(np.array([5, 1, 3]))
    assert index.extend(np.array([3, 4, 0, 4])) == 2
    assert index.classes.tolist() == [1, 3, 5, 0, 4]
    assert index.encode(np.array([1, 3, 5, 0, 4, 2])).tolist() == [0, 1, 2, 3, 4, -1]
    assert index.extend(np.array([4, 0])) == 0


@pytest.mark.parametrize(
    ("first", "later"),
    [([1, 2], ["a"]), (["a"], [1, 2]), ([1, 2], [(1, 2)]), ([(1, 2)], [3])],
)
def test_extend_with_another_type_changes_no_label(first: list[Any], later: list[Any]) -> None:
    index = LabelIndex.of(label_array(first))
    assert index.extend(label_array(later)) == len(later)
    assert index.classes.tolist() == first + later
    assert index.encode(label_array(first + later)).tolist() == list(range(len(first + later)))


def test_concatenated_strings_and_numbers_stay_distinct() -> None:
    assert concatenate_labels(np.array([1]), np.array(["1"])).tolist() == [1, "1"]
    assert concatenate_labels(np.array([1]), np.array([2])).dtype.kind == "i"


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1.0, 2.0, np.nan]),
        ["a", "b", float("nan")],
        [1, "a", np.float32("nan"), "x"],
        [(1,), (2,), (float("nan"),)],
        [(1,), "a", (1, (2, (float("nan"),))), "x"],
        [frozenset({1}), "a", frozenset({float("nan")})],
        np.array(["2020-01-01", "2020-01-02", "NaT"], "M8[D]"),
        ["a", "b", None],
    ],
    ids=["floats", "strings", "mixed", "tuples", "nested", "sets", "times", "nothing"],
)
def test_nan_is_rejected_as_a_label(labels: Any) -> None:
    row = 2
    with pytest.raises(ValueError, match=f"y contains (NaN|NaT|None), first in row {row}"):
        label_array(labels)


@pytest.mark.parametrize("label", [(1, [2]), ([],), (1, ({2},)), {"a": 1}, (np.zeros(2),)], ids=str)
def test_labels_that_are_not_hashable_are_rejected(label: Any) -> None:
    with pytest.raises(ArgumentError, match="not hashable; use a tuple"):
        label_array(["a", label])


def test_strings_that_differ_in_a_last_zero_stay_distinct() -> None:
    assert len(LabelIndex.of(label_array(["a", "a\0"]))) == 2


@pytest.mark.parametrize("make", [list, object_array])
def test_long_labels_take_memory_for_their_own_length(make: Any) -> None:
    names = [f"label {i}" for i in range(300)]
    grown = LabelIndex.of(label_array(make(names)))
    given = make([*names, "x" * 100_000])
    tracemalloc.start()
    try:
        labels = label_array(given)
        index = LabelIndex.of(labels)
        codes = index.encode(labels)
        predicted = index.classes[np.repeat(codes[:, None], 5, axis=1)]
        n_new = grown.extend(labels)
        loaded = unpack_labels(index.classes.dtype.str, pack_labels(index.classes))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert predicted[:, 4].tolist() == labels.tolist() == list(given)
    assert loaded.tolist() == index.classes.tolist()
    assert (n_new, len(grown)) == (1, 301)
    # Padded to the longest, an array of these labels takes 120 MB.
    assert peak < 2e6


def test_padded_arrays_of_long_strings_become_objects() -> None:
    for width, kind in ((32, "U"), (33, "O")):
        for y in (np.array(["a", "b" * width]), ["a", "b" * width]):
            assert label_array(y).dtype.kind == kind
            assert label_array(y).tolist() == ["a", "b" * width]
            assert label_lists(one_label_per_row(np.array(y)), 2).values.dtype.kind == kind


def test_label_array_accepts_tensors_ranges_and_tuples() -> None:
    assert label_array(torch.tensor([3, 1])).tolist() == [3, 1]
    assert label_array(range(3)).tolist() == [0, 1, 2]
    assert label_array(("a", "b")).tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="should be a 1d array"):
        label_array(np.zeros((3, 2)))


def test_label_matrix_distinguishes_rows_of_labels_from_tuples() -> None:
    assert label_matrix([[1, 2], [3, 4], [5, 6]]).shape == (3, 2)
    assert label_matrix(np.zeros((3, 2), int)).shape == (3, 2)
    assert label_matrix([(1, 2), (3, 4), (5, 6)]).tolist() == [(1, 2), (3, 4), (5, 6)]
    assert label_matrix([["a", 1], ["b", 2]]).tolist() == [["a", 1], ["b", 2]]
    assert label_matrix([1, "a"]).tolist() == [1, "a"]
    with pytest.raises(ValueError, match="the same length"):
        label_matrix([[1, 2], [3]])
    for shape in ((), (2, 2, 2)):
        with pytest.raises(ValueError, match="one or two dimensions"):
            label_matrix(np.zeros(shape))


def test_object_array_keeps_tuples_whole() -> None:
    assert object_array([(1, 2), (3, 4)]).shape == (2,)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float64])
def test_labels_0_to_C_are_their_own_index(dtype: type) -> None:
    labels = np.array([3, 0, 2, 1, 2], dtype)
    index = LabelIndex.of(labels)
    assert index.encode(labels).dtype == np.int64
    assert index.encode(labels).tolist() == [3, 0, 2, 1, 2]
    assert index.encode(np.array([-1, 1, 4, -(2**40)])).tolist() == [-1, 1, -1, -1]
    # Labels are never written to, so no copy is needed.
    assert np.shares_memory(index.encode(labels), labels) == (dtype is np.int64)
    frozen = np.arange(4, dtype=dtype)
    frozen.flags.writeable = False
    for odd in (frozen, np.arange(8, dtype=dtype)[:4][::-1], frozen.view(np.memmap)):
        codes = index.encode(odd)
        assert codes.flags.writeable
        assert codes.flags.c_contiguous
        assert type(codes) is np.ndarray
        assert codes.tolist() == odd.tolist()
    index.extend(np.array([7, 5]))
    assert index.encode(np.array([5, 7, 6, 4, 0])).tolist() == [4, 5, -1, -1, 0]


def test_integer_classes_in_another_order_keep_their_order() -> None:
    index = LabelIndex(np.array([0, 2, 1, 3]))
    assert index.encode(np.array([0, 1, 2, 3, 4])).tolist() == [0, 2, 1, 3, -1]


def test_integers_too_large_for_floats_are_kept_apart_from_them():
    large = 2**53 + np.arange(3)
    joined = concatenate_labels(np.array([0.5]), large)
    assert joined.tolist() == [0.5, *large.tolist()]
    assert LabelIndex.of(np.array([0.5, 2.0**53])).encode(large).tolist() == [1, -1, -1]
