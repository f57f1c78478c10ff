"""Rows held out: never a class's only example, always the same ones."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.training.holdout import holdout

LABELS = np.random.default_rng(0).integers(300, size=20_000)


def test_training_and_held_out_rows_are_all_rows_once() -> None:
    train, held = holdout(LABELS, 0.1, seed=0)
    assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(len(LABELS)))


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.5])
def test_the_fraction_is_about_right(fraction: float) -> None:
    _, held = holdout(LABELS, fraction, seed=0)
    # Each row with this chance: five standard deviations.
    n = len(LABELS)
    assert abs(len(held) - fraction * n) < 5 * np.sqrt(n * fraction * (1 - fraction))


def test_every_class_keeps_an_example() -> None:
    rare = np.concatenate([np.arange(1000), np.arange(500), np.full(5000, 7)])
    for fraction in (0.1, 0.99):
        train, held = holdout(rare, fraction, seed=1)
        assert len(held)
        assert set(rare[train]) == set(range(1000))
        assert not np.isin(held, np.flatnonzero(np.bincount(rare)[rare] == 1)).any()


def test_rare_classes_are_held_out_as_often_as_others() -> None:
    # Otherwise held-out rows would overstate how frequent the frequent classes are.
    labels = np.concatenate([np.repeat(np.arange(2_000), 3), np.full(6_000, 2_000)])
    _, held = holdout(labels, 0.1, seed=0)
    share = (labels[held] < 2_000).mean()
    # All three examples of a class are held out, and one of them put back, once in a thousand.
    assert abs(share - 0.5) < 0.001 + 5 * 0.5 / np.sqrt(len(held))


def test_a_class_that_would_lose_its_examples_keeps_all_of_one_owner() -> None:
    rng = np.random.default_rng(0)
    labels, owner = rng.integers(400, size=2_000), np.arange(2_000) // 4
    train, held = holdout(labels, 0.7, 0, owner=owner)
    assert len(held)
    assert set(labels[train]) == set(labels)
    assert not np.isin(owner[train], owner[held]).any()


def test_the_seed_decides() -> None:
    same, again, other = (holdout(LABELS, 0.1, seed)[1] for seed in (3, 3, 4))
    assert np.array_equal(same, again)
    assert not np.array_equal(np.sort(same), np.sort(other))


def test_held_out_rows_come_in_random_order() -> None:
    # The loop looks at the first of them only, which must not be the first of the file.
    _, held = holdout(LABELS, 0.1, seed=0)
    assert not np.array_equal(held, np.sort(held))
    half = held[: len(held) // 2]
    assert abs(half.mean() - len(LABELS) / 2) < 5 * len(LABELS) / np.sqrt(12 * len(half))


@pytest.mark.parametrize(("n", "fraction"), [(100, 0.1), (20_000, 0.0), (0, 0.1)])
def test_too_few_are_none(n: int, fraction: float) -> None:
    train, held = holdout(LABELS[:n], fraction, seed=0)
    assert np.array_equal(train, np.arange(n))
    assert len(held) == 0


def test_only_the_given_rows_are_divided() -> None:
    rows = np.arange(1, len(LABELS), 2)
    train, held = holdout(LABELS, 0.2, 0, rows)
    assert np.array_equal(np.sort(np.concatenate([train, held])), rows)
    assert set(LABELS[train]) == set(LABELS[rows])
    # Whether a row is held out is its own affair, not that of the rows beside it.
    everything = holdout(LABELS, 0.2, 0)[1]
    assert len(np.setdiff1d(held, everything)) <= 300
