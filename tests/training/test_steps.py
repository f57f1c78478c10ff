"""How steps are cut and what is kept between them changes no bit of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.noise import SparseTreeNoise
from extremax.training import steps
from extremax.training.steps import kept_draws_bytes

X, Y = clustered(900, 20, 6, seed=0)
SPARSE = sparse.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))


def fitted(features: Any, **parameters: Any) -> dict[str, torch.Tensor]:
    model = ExtremeClassifier(epochs=2, n_jobs=1, random_state=0, **parameters).fit(features, Y)
    return model.model_.head.state()


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("weighted", [False, True])
def test_many_steps_at_once_are_the_same_steps(
    weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(features: np.ndarray) -> dict[str, torch.Tensor]:
        weights = np.random.default_rng(0).random(len(Y)) if weighted else None
        model = ExtremeClassifier(epochs=2, batch_size=50, n_jobs=1, random_state=0)
        return model.fit(features, Y, weights).model_.head.state()

    whole, as_float64 = run(X), run(X.astype(np.float64))
    # Rows that kernels cannot read in place are copied, some steps at a time.
    assert_equal(as_float64, whole)
    monkeypatch.setattr("extremax.heads.linear._FLOATS_AT_ONCE", 6 * 120)
    assert_equal(run(X.astype(np.float64)), whole)
    monkeypatch.setattr("extremax.heads.linear._PAIRS_AT_ONCE", 1)
    assert_equal(run(X), whole)


def test_draws_that_are_kept_are_those_that_would_be_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    sample = SparseTreeNoise.sample

    def counted(self: SparseTreeNoise, *args: Any) -> Any:
        calls.append(1)
        return sample(self, *args)

    monkeypatch.setattr(SparseTreeNoise, "sample", counted)
    assert SparseTreeNoise.draws_once
    kept = fitted(SPARSE)
    n_kept = len(calls)
    calls.clear()
    monkeypatch.setattr(steps, "_KEPT_BYTES", 0)
    assert_equal(fitted(SPARSE), kept)
    assert len(calls) == 2 * n_kept


def test_draws_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    # A class number and log q of the true class and of each draw.
    monkeypatch.setattr(steps, "_KEPT_BYTES", 12 * 100 * 17)
    assert kept_draws_bytes(100, 16) == 12 * 100 * 17
    assert kept_draws_bytes(101, 16) == 0


@pytest.mark.parametrize("objective", ["exact", "negative_sampling", "nce", "one_vs_each"])
@pytest.mark.parametrize("features", [X, SPARSE], ids=["dense", "sparse"])
def test_rows_of_weight_zero_do_not_count(objective: str, features: Any) -> None:
    """A run with weights of zero and one is that of the other rows, whatever those rows hold."""
    weights = (np.arange(len(Y)) % 4 != 0).astype(float)
    other = features.copy()
    states = []
    # Signs change, so that the scale of the rows does not.
    other[::4] = -other[::4]
    for x in (features, other):
        model = ExtremeClassifier(objective, "frequency", epochs=2, n_jobs=1, random_state=0)
        states.append(model.fit(x, Y, weights).model_.head.state())
    assert_equal(*states)
