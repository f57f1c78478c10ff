"""Logits, and the linear form of models that have one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import log_softmax
from sklearn.feature_selection import SelectFromModel

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import MemoryBudgetError
from extremax.prediction.confidence import N_NUMBERS, Confidence

X, Y = clustered(6000, 30, 8, seed=0)
ROWS = sparse.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))


def small(**parameters: Any) -> ExtremeClassifier:
    usual = {"objective": "exact", "epochs": 1, "n_jobs": 1, "random_state": 0}
    return ExtremeClassifier(**usual | parameters)


@pytest.mark.parametrize(
    ("parameters", "rows"),
    [
        ({}, X),
        ({"noise": "tree"}, X),
        ({"objective": "sampled_softmax(absolute=True)"}, X),
        ({"n_models": 2}, X),
        ({}, ROWS),
    ],
    ids=["exact", "tree", "absolute", "two models", "sparse"],
)
def test_softmax_of_the_decision_function_is_the_probabilities(
    parameters: dict[str, Any], rows: Any
) -> None:
    model = small(**parameters).fit(rows, Y)
    for one in (model, model.with_prior(tau=1.0)):
        logits = one.decision_function(rows[:50])
        assert logits.shape == (50, 30)
        expected = one.predict_log_proba(rows[:50])
        np.testing.assert_allclose(log_softmax(logits, axis=1), expected, atol=1e-4)


def test_logits_of_a_plain_model_are_not_normalized() -> None:
    logits = small().fit(X, Y).decision_function(X[:50])
    assert np.abs(np.exp(logits).sum(1) - 1.0).min() > 0.01


def test_of_two_classes_the_difference() -> None:
    model = small().fit(X, Y % 2)
    difference = model.decision_function(X)
    log_p = model.predict_log_proba(X)
    np.testing.assert_allclose(difference, log_p[:, 1] - log_p[:, 0], atol=1e-4)
    assert model.coef_.shape == (1, 8)
    np.testing.assert_allclose((X @ model.coef_.T + model.intercept_)[:, 0], difference, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_linear_models_have_coefficients_of_the_features_as_they_are(scale: float) -> None:
    model = small(calibrate=True, validation_fraction=0.05).fit(scale * X, Y)
    # Fewer than 500 rows were held out: a temperature, but nothing that depends on the row.
    assert model.model_.blend.temperature != 1.0
    assert model.model_.confidence is None
    assert (model.coef_.shape, model.intercept_.shape) == ((30, 8), (30,))
    linear = (scale * X) @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(scale * X), linear, atol=1e-3)


def test_where_how_sure_to_be_was_fitted_they_are_log_probabilities() -> None:
    model = small().fit(X, Y)
    zeros, wide = (0.0,) * N_NUMBERS, (20.0,) * N_NUMBERS
    confidence = Confidence((0.3, *zeros), (0.0, *zeros), tuple(-high for high in wide), wide)
    model.model_.confidence = confidence
    expected = model.predict_log_proba(X[:50])
    np.testing.assert_allclose(model.decision_function(X[:50]), expected)
    with pytest.raises(AttributeError, match="how sure to be depends on the row"):
        _ = model.coef_


def test_other_tools_find_the_coefficients() -> None:
    selector = SelectFromModel(small().fit(X, Y), prefit=True, max_features=3, threshold=-np.inf)
    largest = np.argsort(np.abs(selector.estimator.coef_).sum(0))[-3:]
    assert selector.get_support().nonzero()[0].tolist() == sorted(largest)


@pytest.mark.parametrize(
    ("parameters", "rows", "reason"),
    [
        ({"objective": None, "noise": "tree"}, X, "not the scores of a linear head alone"),
        ({"objective": "sampled_softmax(absolute=True)"}, X, "not the scores of a linear head"),
        ({"n_models": 2}, X, "averages several models"),
        ({}, ROWS, "trained on sparse rows"),
    ],
)
def test_other_models_say_why_they_have_none(
    parameters: dict[str, Any], rows: Any, reason: str
) -> None:
    model = small(**parameters).fit(rows, Y)
    for name in ("coef_", "intercept_"):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=reason):
            getattr(model, name)
    with pytest.raises(AttributeError, match="other class frequencies"):
        _ = small().fit(X, Y).with_prior(tau=1.0).coef_
    with pytest.raises(AttributeError, match="not fitted yet"):
        _ = small().coef_


def test_logits_that_do_not_fit_the_budget_are_refused() -> None:
    model = small().fit(X, Y).set_params(memory_budget=1000)
    with pytest.raises(MemoryBudgetError, match="6,000 rows × 30 classes"):
        model.decision_function(X)
