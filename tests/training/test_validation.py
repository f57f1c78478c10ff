"""Held-out figures of the finished model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier, SessionRecommender
from extremax.data.synthetic import clustered
from extremax.training.holdout import holdout

X, Y = clustered(8000, 30, 8, seed=0)


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 2, "n_jobs": 1, "random_state": 0} | parameters)


# Fewer than 500 rows: beyond that, how sure to be also depends on counts without held-out rows.
@pytest.mark.parametrize(
    "parameters",
    [{}, {"calibrate": True, "validation_fraction": 0.05}, {"n_models": 2}],
    ids=["plain", "calibrated", "two models"],
)
def test_they_are_what_the_model_says_about_the_held_out_rows(parameters: dict[str, Any]) -> None:
    model = small(noise="uniform", **parameters).fit(X, Y)
    held_out = holdout(Y, model.validation_fraction, seed=0)[1]
    result = model.evaluate(X[held_out], Y[held_out])
    assert model.validation_ == pytest.approx(
        {
            "rows": len(held_out),
            "accuracy": result.accuracy,
            "log_likelihood": result.log_likelihood,
        },
        rel=1e-5,
    )


def sentences(n: int) -> tuple[list[str], np.ndarray]:
    """Three words, two of which are of the class."""
    random = np.random.default_rng(0)
    labels = random.integers(40, size=n)
    own = labels[:, None] * 5 + random.integers(5, size=(n, 2))
    any_word = random.integers(400, size=n)
    words = [f"w{a} w{b} w{c}" for (a, b), c in zip(own, any_word, strict=True)]
    noisy = np.where(random.random(n) < 0.2, random.integers(40, size=n), labels)
    return words, noisy


def test_they_are_of_the_blend_and_not_of_the_head() -> None:
    texts, labels = sentences(12_000)
    model = small().fit(texts[:8000], labels[:8000])
    fresh = model.evaluate(texts[8000:], labels[8000:])
    found = model.validation_
    assert found is not None
    of_head = max(record["log_likelihood"] for record in model.history_)
    # On the same rows, to which the blend was fitted.
    assert found["log_likelihood"] > of_head + 0.01
    # Four standard errors of the figures of the held-out rows.
    assert found["log_likelihood"] == pytest.approx(fresh.log_likelihood, abs=0.2)
    error = np.sqrt(fresh.accuracy * (1 - fresh.accuracy) / found["rows"])
    assert found["accuracy"] == pytest.approx(fresh.accuracy, abs=4 * error)


def test_of_several_labels_rows_count_once() -> None:
    lists = [[int(y), int(y + 1) % 30] for y in Y]
    model = small(noise="uniform").fit(X, lists)
    owner = np.repeat(np.arange(len(Y)), 2)
    held_out = np.unique(owner[holdout(np.concatenate(lists), 0.1, seed=0, owner=owner)[1]])
    result = model.evaluate(X[held_out], [lists[i] for i in held_out])
    assert model.validation_["rows"] == len(held_out)
    assert model.validation_["accuracy"] == pytest.approx(result.accuracy)
    assert model.validation_["log_likelihood"] == pytest.approx(result.log_likelihood, rel=1e-5)


def test_sessions_have_them() -> None:
    random = np.random.default_rng(0)
    sessions = [(random.integers(20) + np.arange(4)).tolist() for _ in range(500)]
    model = SessionRecommender(epochs=1, random_state=0, n_jobs=1).fit(sessions)
    assert model.validation_["rows"] > 50
    assert 0.0 < model.validation_["accuracy"] <= 1.0


def test_there_are_none_without_held_out_rows() -> None:
    assert small(validation_fraction=0.0).fit(X, Y).validation_ is None
    assert small().partial_fit(X, Y).validation_ is None


def test_they_are_saved_and_end_with_the_model_they_are_of(tmp_path: Path) -> None:
    model = small().fit(X, Y)
    model.save(tmp_path / "model")
    loaded = ExtremeClassifier.load(tmp_path / "model")
    assert loaded.validation_ == model.validation_
    assert loaded.validation_ is not None
    assert loaded.recalibrate(X, Y).validation_ is None
    loaded.save(tmp_path / "model")
    assert ExtremeClassifier.load(tmp_path / "model").validation_ is None
    assert model.partial_fit(X[:100], Y[:100]).validation_ is None
