"""One temperature, fitted after training, in every answer of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    return clustered(4400, 200, 16)


def trained(problem: tuple[np.ndarray, np.ndarray], **parameters: object) -> ExtremeClassifier:
    X, y = problem
    model = ExtremeClassifier(n_negatives=5, epochs=2, random_state=0, n_jobs=1, **parameters)
    return model.fit(X[:4000], y[:4000])


@pytest.fixture(scope="module")
def plain(problem: tuple[np.ndarray, np.ndarray]) -> ExtremeClassifier:
    return trained(problem)


@pytest.fixture(scope="module")
def calibrated(problem: tuple[np.ndarray, np.ndarray]) -> ExtremeClassifier:
    return trained(problem, calibrate=True)


def test_it_changes_the_temperature_and_nothing_else(
    plain: ExtremeClassifier, calibrated: ExtremeClassifier
) -> None:
    assert torch.equal(plain.model_.head.weight, calibrated.model_.head.weight)
    assert plain.model_.blend.temperature == 1.0
    assert abs(calibrated.model_.blend.temperature - 1.0) > 0.05


def test_rows_never_seen_are_likelier(
    problem: tuple[np.ndarray, np.ndarray], plain: ExtremeClassifier, calibrated: ExtremeClassifier
) -> None:
    X, y = problem[0][4000:], problem[1][4000:]
    before, after = plain.evaluate(X, y), calibrated.evaluate(X, y)
    assert after.log_likelihood > before.log_likelihood
    assert after.accuracy == before.accuracy


def test_every_answer_has_it(
    problem: tuple[np.ndarray, np.ndarray], plain: ExtremeClassifier, calibrated: ExtremeClassifier
) -> None:
    X, y = problem[0][4000:4100], problem[1][4000:4100]
    close = {"rtol": 1e-4, "atol": 1e-4}
    logits = plain.predict_log_proba(X).astype(np.float64) / calibrated.model_.blend.temperature
    expected = log_softmax(logits, axis=1)
    np.testing.assert_allclose(calibrated.predict_log_proba(X), expected, **close)
    own = expected[np.arange(100), calibrated.model_.labels.encode(y)]
    np.testing.assert_allclose(calibrated.predict_log_proba(X, y), own, **close)
    best = -np.sort(-expected, axis=1)[:, :3]
    np.testing.assert_allclose(calibrated.predict_topk(X, 3).log_probs, best, **close)
    beam = calibrated.predict_topk(X, 3, search="beam", width=4096)
    np.testing.assert_allclose(beam.log_probs, best, **close)
    assert calibrated.log_likelihood(X, y) == pytest.approx(own.mean(), rel=1e-4)


def test_it_is_saved(
    problem: tuple[np.ndarray, np.ndarray], calibrated: ExtremeClassifier, tmp_path: Path
) -> None:
    calibrated.save(tmp_path / "m")
    loaded = ExtremeClassifier.load(tmp_path / "m")
    assert loaded.calibrate
    assert loaded.model_.blend.temperature == calibrated.model_.blend.temperature
    loaded.n_jobs = 1
    X = problem[0][4000:]
    assert np.array_equal(loaded.predict_log_proba(X), calibrated.predict_log_proba(X))


def test_a_second_fit_forgets_it(problem: tuple[np.ndarray, np.ndarray]) -> None:
    model = trained(problem, calibrate=True)
    model.set_params(calibrate=False).fit(problem[0][:1000], problem[1][:1000])
    assert model.model_.blend.temperature == 1.0


def test_it_needs_held_out_rows(problem: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="validation_fraction must be > 0"):
        trained(problem, calibrate=True, validation_fraction=0.0)
    few = ExtremeClassifier(epochs=1, calibrate=True, random_state=0)
    assert few.fit(problem[0][:60], problem[1][:60]).model_.blend.temperature == 1.0
