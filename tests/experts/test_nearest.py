"""Votes of the nearest rows against all distances in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from extremax.errors import ModelFileError
from extremax.experts import NearestRows
from extremax.rows import DenseRows, Sizes
from extremax.tensors import Tensors

N, FEATURES, CLASSES = 60, 4, 7


@pytest.fixture
def known() -> tuple[NearestRows, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((N, FEATURES)).astype(np.float32) * 3.0
    y = random.integers(CLASSES, size=N)
    expert = NearestRows()
    expert.learn(DenseRows(x[:40]), y[:40], CLASSES)
    expert.learn(DenseRows(x[40:]), y[40:], CLASSES)
    return expert, x, y


def evidence(expert: NearestRows, x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """log(1 + v/ε) of every class, (n, C)."""
    squares = np.square((new[:, None] - x[None]) * expert.scale, dtype=np.float64).sum(2)
    nearest = np.argsort(squares, axis=1)[:, :10]
    votes = np.zeros((len(new), CLASSES))
    for i, row in enumerate(nearest):
        np.add.at(votes[i], y[row], np.exp(-4.0 * squares[i, row] / squares[i, row].mean()))
    return np.log1p(votes / expert.little)


def test_votes_are_those_of_the_nearest_rows(known: tuple) -> None:
    expert, x, y = known
    new = np.random.default_rng(1).standard_normal((9, FEATURES)).astype(np.float32) * 3.0
    expected = evidence(expert, x, y, new)
    classes = torch.arange(CLASSES).repeat(9, 1)
    classes[:, 0] = -1
    found = expert.at(DenseRows(new), classes).numpy()
    np.testing.assert_allclose(found[:, 1:], expected[:, 1:], rtol=1e-3, atol=1e-5)
    assert not found[:, 0].any()
    logits = torch.ones((9, CLASSES))
    expert.add_to(logits, DenseRows(new), 0.5)
    np.testing.assert_allclose(logits.numpy(), 1.0 + 0.5 * expected, rtol=1e-3, atol=1e-4)


def test_votes_do_not_depend_on_the_scale_of_a_place(known: tuple) -> None:
    """Rows ten times as far from each other give a row ten times as far the same votes."""
    expert, x, y = known
    wide = NearestRows()
    wide.learn(DenseRows(10.0 * x), y, CLASSES)
    classes = torch.arange(CLASSES).repeat(5, 1)
    new = x[:5] + 0.3
    torch.testing.assert_close(
        wide.at(DenseRows(10.0 * new), classes),
        expert.at(DenseRows(new), classes),
        rtol=1e-2,
        atol=1e-3,
    )


def test_a_row_that_is_there_several_times_has_votes() -> None:
    expert = NearestRows()
    expert.learn(DenseRows(np.ones((20, 3), np.float32)), np.zeros(20, np.int64), 2)
    votes = expert.at(DenseRows(np.ones((1, 3), np.float32)), torch.tensor([[0, 1]]))
    assert torch.isfinite(votes).all()
    assert votes[0, 0] > votes[0, 1]


def test_state_round_trip_and_damage(known: tuple) -> None:
    expert, x, _ = known
    state = expert.state()
    NearestRows.validate(Tensors(state, "NearestRows"), CLASSES, FEATURES)
    again = NearestRows.restore(state)
    classes = torch.arange(CLASSES).repeat(5, 1)
    assert torch.equal(again.at(DenseRows(x[:5]), classes), expert.at(DenseRows(x[:5]), classes))
    for name, value in (
        ("labels", torch.full((N,), CLASSES)),
        ("rows", torch.zeros((N, FEATURES + 1))),
        ("scale", torch.tensor([-1.0], dtype=torch.float64)),
    ):
        with pytest.raises(ModelFileError):
            NearestRows.validate(Tensors(state | {name: value}, "x"), CLASSES, FEATURES)


def test_it_is_for_few_rows() -> None:
    assert NearestRows.suits(Sizes(40_000, 256, 5_000, 256.0))
    assert not NearestRows.suits(Sizes(400_000, 256, 5_000, 256.0))


def test_rows_that_keep_coming_stop_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extremax.experts.nearest._MOST_VALUES", 10 * FEATURES)
    expert, x = NearestRows(), np.ones((8, FEATURES), np.float32)
    for _ in range(3):
        expert.learn(DenseRows(x), np.arange(8) % CLASSES, CLASSES)
    assert expert.rows.shape == (10, FEATURES)
    assert len(expert.labels) == 10
