"""Labels of any hashable kind, and labels the model has never seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered

X, Y = clustered(1500, 12, 8, seed=0)

KINDS: dict[str, list[Any]] = {
    "integers": [10 * int(v) - 50 for v in Y],
    "strings": [f"class {v}" for v in Y],
    "booleans": [bool(v % 2) for v in Y],
    "tuples": [(int(v) % 3, int(v) // 3) for v in Y],
    "mixed": [int(v) if v < 4 else f"{v}" if v < 8 else (int(v), None) for v in Y],
}


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 3, "n_jobs": 1, "random_state": 0} | parameters)


@pytest.mark.parametrize("labels", KINDS.values(), ids=KINDS.keys())
def test_labels_go_in_and_come_out(labels: list[Any]) -> None:
    model = small().fit(X, labels)
    assert set(model.classes_.tolist()) == set(labels)
    predicted = model.predict(X).tolist()
    assert set(predicted) <= set(labels)
    right = sum(ours == theirs for ours, theirs in zip(predicted, labels, strict=True))
    evaluation = model.evaluate(X, labels)
    assert evaluation.accuracy == pytest.approx(right / len(Y))
    assert evaluation.accuracy > 0.6
    assert (evaluation.rows, evaluation.unseen) == (len(Y), 0)
    log_proba = model.predict_log_proba(X, labels)
    assert log_proba.shape == (len(Y),)
    assert evaluation.log_likelihood == pytest.approx(log_proba.mean(), rel=1e-5)
    at = [model.classes_.tolist().index(label) for label in labels]
    np.testing.assert_allclose(
        log_proba, model.predict_log_proba(X)[np.arange(len(Y)), at], atol=1e-5
    )


def test_the_kind_of_label_does_not_change_the_model() -> None:
    names = small().fit(X, [f"{v:02d}" for v in Y])
    numbers = small().fit(X, Y)
    assert np.array_equal(names.predict_proba(X), numbers.predict_proba(X))
    assert numbers.predict(X).dtype == Y.dtype
    assert small().fit(X, Y % 2 == 0).predict(X).dtype == bool


def test_booleans_of_numpy() -> None:
    model = small().fit(X, Y > 5)
    assert model.classes_.tolist() == [False, True]
    assert model.score(X, Y > 5) > (Y > 5).mean() + 0.05


@pytest.mark.parametrize("labels", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("stranger", [999, "nobody", (9, 9, 9), -1, 2.5])
def test_unseen_labels_are_counted_and_improbable(labels: list[Any], stranger: Any) -> None:
    model = small(epochs=1).fit(X, labels)
    mixed = [*labels[:100], *[stranger] * 25]
    evaluation = model.evaluate(X[:125], mixed)
    known = model.evaluate(X[:100], labels[:100])
    assert (evaluation.rows, evaluation.unseen) == (125, 25)
    assert evaluation.accuracy == pytest.approx(known.accuracy * 100 / 125)
    assert evaluation.log_likelihood == pytest.approx(known.log_likelihood, rel=1e-5)
    assert model.log_likelihood(X[:125], mixed) == evaluation.log_likelihood
    log_proba = model.predict_log_proba(X[:125], mixed)
    assert np.isfinite(log_proba[:100]).all()
    assert (log_proba[100:] == -math.inf).all()


def test_only_unseen_labels() -> None:
    evaluation = small(epochs=1).fit(X, Y).evaluate(X, [f"{v}" for v in Y])
    assert (evaluation.unseen, evaluation.accuracy) == (len(Y), 0.0)
    assert evaluation.log_likelihood == -math.inf


def test_several_labels_a_row() -> None:
    model = small(epochs=1).fit(X, Y)
    every = model.predict_log_proba(X[:5])
    wanted = np.array([[0, 3], [1, 99], [2, 2], [11, 0], [-1, 4]])
    got = model.predict_log_proba(X[:5], wanted)
    assert got.shape == (5, 2)
    for row, column in np.ndindex(5, 2):
        label = wanted[row, column]
        expected = every[row, label] if 0 <= label < 12 else -math.inf
        assert got[row, column] == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(model.predict_log_proba(X[:5], wanted.tolist()), got)
    for bad in (wanted[:4], [1, 2, 3]):
        with pytest.raises(ValueError, match="X has 5 rows but labels has"):
            model.predict_log_proba(X[:5], bad)
