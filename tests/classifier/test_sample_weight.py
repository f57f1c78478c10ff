"""Weights of examples: what they emphasize, and that zero means absent."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import ArgumentError
from extremax.noise import TreeNoise

X, Y = clustered(3000, 20, 8, seed=0)


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 3, "n_jobs": 1, "random_state": 0} | parameters)


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
def test_weights_decide_between_labels_that_disagree(noise: str) -> None:
    # Every row twice, with two labels: only the weights say which one holds how often.
    rows, labels = np.concatenate([X, X]), np.repeat(["a", "b"], len(X))
    model = small(noise=noise, epochs=10, learning_rate=1.0, validation_fraction=0.0)
    for share in (0.1, 0.5, 0.8):
        weights = np.repeat([share, 1 - share], len(X))
        model.fit(rows, labels, sample_weight=weights)
        np.testing.assert_allclose(model.predict_proba(X).mean(0), [share, 1 - share], atol=0.05)


def test_ones_are_no_weights() -> None:
    for call in ("fit", "partial_fit"):
        plain, ones = small(), small()
        getattr(plain, call)(X, Y)
        getattr(ones, call)(X, Y, sample_weight=np.ones(len(Y)))
        assert torch.equal(plain.model_.head.weight, ones.model_.head.weight)


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_the_label_of_a_row_without_weight_does_not_matter(noise: str, call: str) -> None:
    weights = np.ones(len(Y))
    weights[::3] = 0.0
    models = []
    for labels in (Y, np.where(weights > 0, Y, np.roll(Y, 7))):
        model = small(noise=noise)
        getattr(model, call)(X, labels, sample_weight=weights)
        models.append(model)
    first, second = (model.model_.head.state() | model.model_.noise.state() for model in models)
    assert [key for key in first if not torch.equal(first[key], second[key])] == []
    if call == "fit":
        for ours, theirs in zip(*(model.history_ for model in models), strict=True):
            assert ours["log_likelihood"] == theirs["log_likelihood"]
            assert ours["surrogate_loss"] == theirs["surrogate_loss"]


def test_a_class_without_weight_stays_known_and_unlikely() -> None:
    weights = np.where(Y == 4, 0.0, 1.0)
    model = small(noise="frequency").fit(X, Y, sample_weight=weights)
    assert 4 in model.classes_
    assert model.evaluate(X, Y).unseen == 0
    at = model.classes_.tolist().index(4)
    present = np.delete(model.predict_proba(X).mean(0), at)
    assert model.predict_proba(X)[:, at].mean() < np.median(present)


def test_nearly_all_rows_without_weight() -> None:
    weights = np.zeros(len(Y))
    weights[:2] = 1.0
    model = small(validation_fraction=0.9).fit(X, Y, sample_weight=weights)
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.ones(len(Y)), "must be finite, not negative and not all zero"),
        (np.where(np.arange(len(Y)) == 5, -1.0, 1.0), "must be finite, not negative"),
        (np.full(len(Y), np.nan), "must be finite"),
        (np.where(np.arange(len(Y)) == 5, np.inf, 1.0), "must be finite"),
        (np.zeros(len(Y)), "not all zero"),
        (np.ones(3), r"must have shape \(3000,\), got \(3,\)"),
        (np.ones((len(Y), 2)), r"must have shape \(3000,\)"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights: np.ndarray, message: str) -> None:
    model = small()
    for call in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=message):
            call(X, Y, sample_weight=weights)
    # The refusal leaves a model that can still be started.
    model.partial_fit(X, Y)
    classes = model.classes_.copy()
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, Y + 1000, sample_weight=weights)
    assert np.array_equal(model.classes_, classes)
    assert model.model_.head.n_classes == len(classes)


def test_weights_reach_a_noise_given_as_an_object() -> None:
    model = small(noise=TreeNoise(n_components=2)).fit(X, Y, sample_weight=np.arange(len(Y)))
    assert np.isfinite(model.log_likelihood(X, Y))


def test_weights_beyond_float32_are_refused_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ArgumentError, match="sample_weight must be finite"):
            small().fit(X, Y, sample_weight=np.full(len(Y), 1e300))
