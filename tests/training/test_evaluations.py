"""Evaluations of the held-out rows between the ends of epochs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.training import loop


def fitted(between: bool, **settings: Any) -> ExtremeClassifier:
    features, labels = clustered(3_000, 40, 8, noise=0.5)
    model = ExtremeClassifier(epochs=2, batch_size=32, n_jobs=1, random_state=0, **settings)
    model.evaluate_within_epochs = between
    return model.fit(features, labels)


@pytest.mark.parametrize("objective", ["negative_sampling", "exact"])
def test_evaluations_between_epochs_change_nothing_but_the_curve(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One after every stretch of steps, however fast the machine.
    monkeypatch.setattr(loop, "_BETWEEN_EVALUATIONS", 1.0)
    monkeypatch.setattr("extremax.heads.linear._PAIRS_AT_ONCE", 2**10)
    plain, watched = fitted(False, objective=objective), fitted(True, objective=objective)
    assert [record["epoch"] for record in plain.evaluations_] == [0]
    assert len(watched.evaluations_) > 3
    assert len(watched.history_) == len(plain.history_) == watched.n_iter_ == 2
    seconds = [record["seconds"] for record in watched.evaluations_]
    assert seconds == sorted(seconds)
    assert seconds[0] < watched.history_[0]["seconds"]
    assert all(
        record["log_likelihood"] < 0 <= record["accuracy"] for record in watched.evaluations_
    )
    for name, tensor in plain.model_.head.state().items():
        assert torch.equal(tensor, watched.model_.head.state()[name])
    keys = ("log_likelihood", "accuracy", "surrogate_loss")
    for one, other in zip(plain.history_, watched.history_, strict=True):
        assert [one[key] for key in keys] == [other[key] for key in keys]


def test_without_held_out_rows_there_are_no_evaluations() -> None:
    assert fitted(True, validation_fraction=0.0).evaluations_ == []


def test_a_model_that_training_made_worse_is_the_one_it_began_with(tmp_path: Path) -> None:
    features, labels = clustered(3_000, 40, 8, noise=0.5)
    settings = {"epochs": 3, "batch_size": 64, "n_jobs": 1, "random_state": 0}
    wild = ExtremeClassifier(learning_rate=300.0, schedule="constant", **settings)
    wild.fit(features, labels)
    start = wild.evaluations_[0]
    assert start["log_likelihood"] > max(record["log_likelihood"] for record in wild.history_)
    # The head as it was before any step: the same whatever the learning rate.
    calm = ExtremeClassifier(learning_rate=1e-12, **settings).fit(features, labels)
    torch.testing.assert_close(wild.model_.head.weight, calm.model_.head.weight)
    assert calm.evaluations_[0]["log_likelihood"] == start["log_likelihood"]
    wild.save(tmp_path / "wild")
    assert ExtremeClassifier.load(tmp_path / "wild").evaluations_[0] == start


def test_patience_compares_epochs_with_epochs_only() -> None:
    """Epochs worse than the start, but each better than the last, are no reason to stop."""
    features, labels = clustered(3_000, 40, 8, noise=0.5)
    model = ExtremeClassifier(epochs=6, patience=1, learning_rate=30.0, n_jobs=1, random_state=0)
    history = model.fit(features, labels).history_
    rises = [b["log_likelihood"] > a["log_likelihood"] for a, b in pairwise(history)]
    assert history[0]["log_likelihood"] < model.evaluations_[0]["log_likelihood"]
    assert len(history) > 1
    assert all(rises[:-1])
