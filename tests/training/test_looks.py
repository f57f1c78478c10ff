"""Looks at the held-out rows between the ends of epochs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.training import loop


def fitted(looks: bool, **settings) -> ExtremeClassifier:
    features, labels = clustered(3_000, 40, 8, noise=0.5)
    model = ExtremeClassifier(epochs=2, batch_size=32, random_state=0, **settings)
    model.looks_between = looks
    return model.fit(features, labels)


@pytest.mark.parametrize("objective", ["negative_sampling", "exact"])
def test_looks_between_change_nothing_but_the_curve(objective, monkeypatch):
    # One after every stretch of steps, however fast the machine.
    monkeypatch.setattr(loop, "_BETWEEN_LOOKS", 1.0)
    monkeypatch.setattr(loop, "_PAIRS_AT_ONCE", 2**10)
    plain, watched = fitted(False, objective=objective), fitted(True, objective=objective)
    assert [look["epoch"] for look in plain.looks_] == [0]
    assert len(watched.looks_) > 3
    assert len(watched.history_) == len(plain.history_) == watched.n_iter_ == 2
    seconds = [look["seconds"] for look in watched.looks_]
    assert seconds == sorted(seconds)
    assert seconds[0] < watched.history_[0]["seconds"]
    assert all(look["log_likelihood"] < 0 <= look["accuracy"] for look in watched.looks_)
    for name, tensor in plain.head_.state().items():
        assert torch.equal(tensor, watched.head_.state()[name])
    keys = ("log_likelihood", "accuracy", "surrogate_loss")
    for one, other in zip(plain.history_, watched.history_, strict=True):
        assert [one[key] for key in keys] == [other[key] for key in keys]


def test_without_held_out_rows_there_is_nothing_to_look_at():
    assert fitted(True, validation_fraction=0.0).looks_ == []


def test_a_model_that_training_made_worse_is_the_one_it_began_with(tmp_path):
    features, labels = clustered(3_000, 40, 8, noise=0.5)
    settings = {"epochs": 3, "batch_size": 64, "random_state": 0}
    wild = ExtremeClassifier(learning_rate=300.0, schedule="constant", **settings)
    wild.fit(features, labels)
    start = wild.looks_[0]
    assert start["log_likelihood"] > max(record["log_likelihood"] for record in wild.history_)
    # The head as it was before any step: the same whatever the learning rate.
    calm = ExtremeClassifier(learning_rate=1e-12, **settings).fit(features, labels)
    torch.testing.assert_close(wild.head_.weight, calm.head_.weight)
    assert calm.looks_[0]["log_likelihood"] == start["log_likelihood"]
    wild.save(tmp_path / "wild")
    assert ExtremeClassifier.load(tmp_path / "wild").looks_[0] == start


def test_patience_looks_at_epochs_alone():
    """Epochs worse than the start, but each better than the last, are no reason to stop."""
    features, labels = clustered(3_000, 40, 8, noise=0.5)
    model = ExtremeClassifier(epochs=6, patience=1, learning_rate=30.0, random_state=0)
    history = model.fit(features, labels).history_
    rises = [b["log_likelihood"] > a["log_likelihood"] for a, b in pairwise(history)]
    assert history[0]["log_likelihood"] < model.looks_[0]["log_likelihood"]
    assert len(history) > 1
    assert all(rises[:-1])
