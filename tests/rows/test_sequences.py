"""Rows that are sequences, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from extremax.errors import ArgumentError
from extremax.rows import DenseRows, SequenceRows
from extremax.rows.sequences import LONGEST

N_ITEMS = 9


def lists_of(n: int, seed: int = 0) -> list[list[int]]:
    """Lists of 0 to 30 items, more than count."""
    rng = np.random.default_rng(seed)
    return [[], *(rng.integers(N_ITEMS, size=rng.integers(0, 31)).tolist() for _ in range(n - 1))]


def make(lists: list[list[int]]) -> SequenceRows:
    sizes = np.array([len(one) for one in lists], np.int64)
    items = np.array([item for one in lists for item in one], np.int64)
    return SequenceRows(items, np.cumsum(sizes), sizes, N_ITEMS, np.arange(len(lists)) // 2)


def visits_of(rows: SequenceRows) -> list[list[tuple[int, int]]]:
    """(item, steps before the last one) of every row, in order."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(len(rows))]
    for row, item, steps in zip(*rows.visits(), strict=True):
        found[row].append((int(item), int(steps)))
    return found


def expected_visits(lists: list[list[int]]) -> list[list[tuple[int, int]]]:
    latest = [one[-LONGEST:] for one in lists]
    return [[(item, len(one) - 1 - place) for place, item in enumerate(one)] for one in latest]


LISTS = lists_of(40)
SELECTIONS: dict[str, Any] = {
    "slice": slice(3, 20, 2),
    "mask": np.arange(40) % 3 == 0,
    "numbers": np.array([7, 3, 3, 39, -1]),
    "none": np.zeros(0, np.int64),
    "tensor": torch.tensor([5, 1]),
}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_selected_rows_have_their_latest_items(selection: Any) -> None:
    rows = make(LISTS)[selection]
    numbers = np.arange(40)[selection]
    assert visits_of(rows) == expected_visits([LISTS[i] for i in numbers])
    assert rows.groups is not None
    assert rows.groups.tolist() == (numbers // 2).tolist()
    assert rows.shape == (len(numbers), N_ITEMS)


def test_size_and_number_of_items() -> None:
    rows = make(LISTS)
    assert rows.nonzeros == np.mean([min(len(one), LONGEST) for one in LISTS])
    assert rows[:0].nonzeros == 0.0
    assert rows.nbytes == 4 * sum(map(len, LISTS)) + 16 * 40
    assert rows.unit_scale() == 1.0


def test_bags_of_visits() -> None:
    bags = make(LISTS).sparse().matrix.toarray()
    for bag, visits in zip(bags, expected_visits(LISTS), strict=True):
        weights = np.zeros(N_ITEMS)
        for item, steps in visits:
            weights[item] += 0.7**steps
        length = np.linalg.norm(weights)
        np.testing.assert_allclose(bag, weights / length if length else weights, atol=1e-6)


def test_joined_rows_follow_each_other() -> None:
    others = lists_of(10, seed=1)
    joined = make(LISTS)[5:].joined(make(others)[::2])
    assert visits_of(joined) == expected_visits(LISTS[5:] + others[::2])
    with pytest.raises(ArgumentError, match="sequences cannot be joined with dense rows"):
        make(LISTS).joined(DenseRows(np.zeros((2, 3), np.float32)))


def test_no_rows_at_all() -> None:
    rows = make([])
    assert (len(rows), visits_of(rows), rows.sparse().shape) == (0, [], (0, N_ITEMS))


def test_they_are_no_arrays() -> None:
    with pytest.raises(ArgumentError, match="this needs dense rows"):
        make(LISTS).dense()
    with pytest.raises(ArgumentError, match="sequences need numbers"):
        SequenceRows.read([[1, 2]])


def test_fingerprints_tell_sequences_apart() -> None:
    assert make(LISTS).fingerprint() == make(LISTS).fingerprint()
    changed = [*LISTS[:-1], LISTS[-1][::-1]]
    assert make([*LISTS[1:], []]).fingerprint() != make(LISTS).fingerprint()
    assert len({make(lists[::8]).fingerprint() for lists in (LISTS, changed)}) == 1
    assert len({make(lists[-3:]).fingerprint() for lists in (LISTS, changed)}) == 2


@pytest.mark.parametrize("n_items", [1, 2, 50])
def test_synthetic_rows_have_the_size_asked_for(n_items: int) -> None:
    rows = SequenceRows.synthetic(100, n_items, 3.4, np.random.default_rng(0))
    assert rows.shape == (100, n_items)
    assert (rows.sizes == 3).all()
    assert rows.items.min() >= 0
    assert rows.items.max() < n_items
