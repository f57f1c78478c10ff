"""One accumulator of Adagrad per row of weights, from the constructor to the folder and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import ModelFileError

X, Y = clustered(1500, 30, 64, seed=0)
SPARSE = sparse.csr_matrix(X * (np.quantile(X, 0.8) < X))
#: Many steps in one kernel, draws that a batch shares, every class, and a bag of features.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "negative sampling": (X, {"objective": "negative_sampling", "noise": "uniform"}),
    "decayed": (X, {"noise": "uniform", "weight_decay": 1e-3}),
    "shared draws": (X, {"objective": "sampled_softmax"}),
    "exact": (X, {"objective": "exact"}),
    "bag": (SPARSE, {"objective": "sampled_softmax", "noise": "frequency", "bag_size": 64}),
}
every_case = pytest.mark.parametrize("name", CASES)


def made(name: str, accumulators: str = "row", **more: Any) -> ExtremeClassifier:
    usual = {"epochs": 4, "n_jobs": 1, "random_state": 0, "start": "frequencies"}
    return ExtremeClassifier(accumulators=accumulators, **usual | CASES[name][1] | more)


def state(model: ExtremeClassifier) -> dict[str, torch.Tensor]:
    return model.model_.head.state()


def assert_same(one: ExtremeClassifier, other: ExtremeClassifier) -> None:
    ours, theirs = state(one), state(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@every_case
def test_it_learns_with_half_of_the_state(name: str) -> None:
    rows = CASES[name][0]
    by_row, by_weight = (made(name, form).fit(rows, Y) for form in ("row", "weight"))
    likelihoods = [model.log_likelihood(rows, Y) for model in (by_row, by_weight)]
    assert likelihoods[0] > likelihoods[1] - 0.2
    # Far better than guessing one of 30 classes, −3.4.
    assert likelihoods[0] > -2.5
    sizes = [sum(t.numel() for t in state(model).values()) for model in (by_row, by_weight)]
    assert sizes[0] <= 0.52 * sizes[1]


@every_case
def test_a_saved_model_trains_on_as_the_original_does(name: str, tmp_path: Path) -> None:
    rows, old = CASES[name][0], Y < 25
    model = made(name).fit(rows[old], Y[old])
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path)
    assert loaded.accumulators == loaded.model_.head.options.accumulators == "row"
    assert_same(loaded, model)
    # Classes from 25 on are new.
    for one in (model, loaded):
        one.partial_fit(rows, Y)
    assert len(model.classes_) > 25
    assert_same(loaded, model)


@every_case
def test_a_run_that_broke_off_resumes_to_the_same_end(name: str, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise Stop

    rows = CASES[name][0]
    with pytest.raises(Stop):
        made(name).fit(rows, Y, checkpoint=tmp_path, callback=stop)
    with pytest.raises(ModelFileError, match="accumulators"):
        made(name, "weight").fit(rows, Y, checkpoint=tmp_path)
    assert_same(made(name).fit(rows, Y, checkpoint=tmp_path), made(name).fit(rows, Y))


def test_heads_without_a_table_of_vectors_take_no_notice() -> None:
    models = [
        ExtremeClassifier("exact", accumulators=form, epochs=2, random_state=0).fit(SPARSE, Y)
        for form in ("row", "weight")
    ]
    assert_same(*models)
