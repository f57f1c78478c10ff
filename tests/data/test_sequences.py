"""Sequences of items, and their prefixes, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from extremax.data.sequences import Sequences
from extremax.errors import ArgumentError
from extremax.labels import LabelIndex

LISTS = [["b", "a", "b"], [], ["c"], ["a", "d"], ["d", "d", "d", "c"]]


def test_lists_come_back_as_they_were() -> None:
    given = Sequences.of(LISTS)
    assert len(given) == len(LISTS)
    assert given.tolist() == LISTS
    assert Sequences.of(given) is given
    assert Sequences.of(tuple(map(tuple, LISTS))).tolist() == LISTS
    assert Sequences.of(np.array([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]
    assert Sequences.of(iter([["a"]])).tolist() == [["a"]]


@pytest.mark.parametrize("selection", [slice(1, 4), np.array([4, 0, 0]), slice(0, 0)], ids=str)
def test_selections(selection: Any) -> None:
    chosen = [LISTS[i] for i in np.arange(len(LISTS))[selection]]
    assert Sequences.of(LISTS)[selection].tolist() == chosen
    prefixes, _ = Sequences.of([["a", "b", "c"], ["d", "e"]]).prefixes()
    assert prefixes[1:].sessions is not None
    assert prefixes[1:].sessions.tolist() == [0, 1]


def test_prefixes_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(9, size=size).tolist() for size in rng.integers(0, 6, 50)]
    prefixes, following = Sequences.of(lists).prefixes()
    expected = [
        (one[:end], one[end], number)
        for number, one in enumerate(lists)
        for end in range(1, len(one))
    ]
    assert prefixes.sessions is not None
    found = zip(prefixes.tolist(), following.tolist(), prefixes.sessions.tolist(), strict=True)
    assert list(found) == expected


@pytest.mark.parametrize("lists", [[], [[]], [[], ["a"]]], ids=str)
def test_no_prefixes(lists: list[list[str]]) -> None:
    prefixes, following = Sequences.of(lists).prefixes()
    assert len(prefixes) == len(following) == 0


def test_rows_leave_out_unknown_items() -> None:
    rows = Sequences.of(LISTS).rows(LabelIndex(np.array(["a", "c", "d"])))
    numbers = {"a": 0, "c": 1, "d": 2}
    starts = rows.ends - rows.sizes
    found = [rows.items[a:b].tolist() for a, b in zip(starts, rows.ends, strict=True)]
    assert found == [[numbers[item] for item in one if item in numbers] for one in LISTS]
    assert rows.n_features == 3


@pytest.mark.parametrize("item", [(1, "a"), 2**70, b"x", "x" * 99, "a\0"], ids=repr)
def test_items_of_any_hashable_kind(item: Any) -> None:
    assert Sequences.of([[item, "b"], [item]]).tolist() == [[item, "b"], [item]]


WRONG: dict[str, tuple[Any, str]] = {
    "a string": ("tent", "sessions must be lists of items, got 'tent'"),
    "a number": (3, "sessions must be lists of items, got 3"),
    "one session": (["tent", "stove"], "session 0 must be a list of items, got 'tent'"),
    "numbers": ([[1], 2], "session 1 must be a list of items, got 2"),
    "a set": ([["a"], {"b"}], "session 1 must be a list of items"),
    "lists as items": ([["a"], [], ["b", ["c"]]], r"item \['c'\] of session 2 is not hashable"),
    "a list inside a tuple": ([[("a", [1])]], "of session 0 is not hashable; use a tuple"),
    "NaN": ([[1.0], [2.0, float("nan")]], "session 1 has an item that is NaN"),
    "no dimension": ([np.array(3)], "session 0 cannot be used"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_list_of_lists_is_refused(name: str) -> None:
    given, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        Sequences.of(given)
