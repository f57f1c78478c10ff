"""Weights of examples: what they emphasize, and that zero means absent."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import ArgumentError
from extremax.labels import LabelLists, label_lists, weighted_label_lists
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


# Several labels per row

LISTS = [[label, (label + 1) % 20] for label in Y.tolist()]


def test_weights_of_pairs_decide_between_the_labels_of_a_row() -> None:
    model = small(noise="uniform", epochs=10, learning_rate=1.0, validation_fraction=0.0)
    for share in (0.1, 0.7):
        model.fit(X, [["a", "b"]] * len(X), sample_weight=[[share, 1 - share]] * len(X))
        np.testing.assert_allclose(model.predict_proba(X).mean(0), [share, 1 - share], atol=0.05)


def test_pairs_may_be_weighted_in_any_form_of_labels() -> None:
    random = np.random.default_rng(0)
    weights = random.random((len(Y), 2)).round(3)
    indicator, matrix = np.zeros((len(Y), 20), int), np.zeros((len(Y), 20))
    # Columns of a matrix rise, and so do the labels of these lists.
    lists = [sorted(labels) for labels in LISTS]
    for i, labels in enumerate(lists):
        indicator[i, labels], matrix[i, labels] = 1, weights[i]
    models = [
        small(epochs=1).fit(X, y, sample_weight=given)
        for y, given in (
            (lists, weights.tolist()),
            (lists, weights),
            (label_lists(lists, len(Y)), LabelLists(weights.ravel(), 2 * np.arange(len(Y) + 1))),
            (indicator, matrix),
            (sparse.csr_matrix(indicator), sparse.csr_matrix(matrix)),
        )
    ]
    for model in models[1:]:
        assert torch.equal(model.model_.head.weight, models[0].model_.head.weight)
    per_row = small(epochs=1).fit(X, lists, sample_weight=weights[:, 0])
    twice = small(epochs=1).fit(X, lists, sample_weight=[[w, w] for w in weights[:, 0]])
    assert torch.equal(per_row.model_.head.weight, twice.model_.head.weight)


def test_a_pair_without_weight_might_as_well_have_another_label() -> None:
    weights = [[1.0, float(i % 3 > 0)] for i in range(len(Y))]
    others = [
        labels if weight[1] else [labels[0], (labels[1] + 5) % 20]
        for labels, weight in zip(LISTS, weights, strict=True)
    ]
    first, second = (small(epochs=1).fit(X, y, sample_weight=weights) for y in (LISTS, others))
    assert torch.equal(first.model_.head.weight, second.model_.head.weight)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0, 1.0]] * 3, "X has 3000 rows, but sample_weight has 3"),
        (
            [[1.0]] * len(Y),
            "row 0 of y has 2 labels, so that row 0 of sample_weight",
        ),
        ([1.0, *[[1.0, 1.0]] * (len(Y) - 1)], "list of as many weights, got 1.0"),
        ([{1.0, 2.0}] * len(Y), "list of as many weights, got {1.0, 2.0}"),
        ([[1.0, -1.0]] * len(Y), "must be finite, not negative"),
        ([[0.0, 0.0]] * len(Y), "not all zero"),
        ([[1.0, "a"]] * len(Y), "sample_weight"),
        ([[1.0, [2.0]]] * len(Y), "sample_weight"),
        (sparse.csr_matrix(np.ones((len(Y), 20))), "sample_weight is a matrix, but y is not"),
    ],
)
def test_weights_of_pairs_that_make_no_sense_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small().fit(X, LISTS, sample_weight=weights)


def test_weights_of_pairs_need_an_order_and_a_shape() -> None:
    weights = [[1.0, 1.0]] * len(Y)
    with pytest.raises(ArgumentError, match="row 0 of y is a set, which has no order"):
        small().fit(X, [set(labels) for labels in LISTS], sample_weight=weights)
    indicator = np.eye(20, dtype=int)[Y]
    for wrong in (weights, np.ones((len(Y), 19))):
        with pytest.raises(ArgumentError, match=r"must be a matrix like y, of shape \(3000, 20\)"):
            small().fit(X, indicator, sample_weight=wrong)


def test_of_a_repeated_label_the_first_weight_counts() -> None:
    lists, weights = weighted_label_lists([["a", "b", "a"], ["b"]], [[1.0, 2.0, 3.0], [4.0]], 2)
    assert lists.tolist() == [["a", "b"], ["b"]]
    assert weights.tolist() == [1.0, 2.0, 4.0]
