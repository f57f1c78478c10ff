"""Looks at the held-out rows between the ends of epochs."""

from __future__ import annotations

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
    assert plain.looks_ == []
    assert len(watched.looks_) > 2
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
