"""Reliability and calibration error against known answers, and what a temperature does to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from extremax.diagnostics import reliability, reliability_by_frequency
from extremax.errors import MemoryBudgetError
from extremax.evaluation import Outcomes, outcomes
from extremax.heads import LinearHead
from extremax.labels import one_label_per_row
from extremax.model import Model
from extremax.noise import FrequencyNoise
from extremax.objectives import NegativeSampling, Objective, SampledSoftmax
from extremax.rows import Rows, as_rows
from extremax.training.calibration import fit_temperature

N_CLASSES, N_FEATURES = 12, 4
LARGE = 1 << 30
Problem = tuple[Model, Rows, np.ndarray]


@pytest.fixture
def problem(bare_model: Callable[..., Model]) -> Callable[..., Problem]:
    """Build rows whose labels follow softmax(logits / temperature) of the model's own logits."""

    def build(temperature: float, n: int, objective: Objective | None = None) -> Problem:
        head = LinearHead(N_CLASSES, N_FEATURES)
        head.weight.normal_(generator=torch.Generator().manual_seed(0))
        rng = np.random.default_rng(1)
        features = rng.standard_normal((n, N_FEATURES), dtype=np.float32)
        noise = FrequencyNoise().fit(features, np.arange(n) ** 2 % N_CLASSES, N_CLASSES)
        model, rows = bare_model(head, noise, objective or SampledSoftmax()), as_rows(features)
        p = np.exp(log_softmax(logits_of(model, rows) / temperature, axis=1))
        labels = (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=N_CLASSES - 1)
        return model, rows, labels

    return build


def logits_of(model: Model, rows: Rows) -> np.ndarray:
    """The logits by hand, in float64."""
    assert isinstance(model.head, LinearHead)
    logits = rows.dense().array.astype(np.float64) @ model.head.weight.double().numpy().T
    if model.objective.adds_log_q:
        logits = logits + model.noise.log_prob_all(torch.empty(1, 0)).double().numpy()
    return logits


def outcomes_at(model: Model, rows: Rows, labels: np.ndarray, temperature: float = 1.0) -> Outcomes:
    model = replace(model, blend=replace(model.blend, temperature=temperature))
    return outcomes(model, rows, one_label_per_row(labels), LARGE)


@pytest.mark.parametrize("objective", [SampledSoftmax(), NegativeSampling()], ids=["xi", "xi+q"])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_of_the_labels_is_found(
    problem: Callable[..., Problem], objective: Objective, temperature: float
) -> None:
    model, rows, labels = problem(temperature, 3000, objective)
    assert fit_temperature(model, rows, labels, LARGE) == pytest.approx(temperature, rel=0.15)


def test_a_temperature_stays_in_the_memory_budget(problem: Callable[..., Problem]) -> None:
    with pytest.raises(MemoryBudgetError):
        fit_temperature(*problem(2.0, 400), 10)


def test_outcomes_are_those_of_the_logits(problem: Callable[..., Problem]) -> None:
    model, rows, labels = problem(1.0, 100)
    labels[:3] = -1
    # Blocks of seven rows.
    result = outcomes(model, rows, one_label_per_row(labels), budget=N_CLASSES * 16 * 7)
    log_p = log_softmax(logits_of(model, rows), axis=1)
    np.testing.assert_allclose(
        result.log_prob[3:], log_p[np.arange(100), labels][3:], rtol=1e-5, atol=1e-6
    )
    assert np.all(result.log_prob[:3] == -math.inf)
    assert np.array_equal(result.correct, log_p.argmax(1) == labels)
    np.testing.assert_allclose(result.confidence, np.exp(log_p.max(1)), rtol=1e-5)
    assert result.accuracy == pytest.approx(result.correct.mean())
    assert result.log_likelihood == pytest.approx(result.log_prob[3:].mean())
    colder = outcomes_at(model, rows, labels, temperature=0.5)
    p = np.exp(log_softmax(2 * logits_of(model, rows), axis=1))
    np.testing.assert_allclose(colder.confidence, p.max(1), rtol=1e-5)
    assert outcomes_at(model, rows, np.full(100, -1)).log_likelihood == -math.inf


def test_bins_have_equal_sizes_and_the_error_is_the_mean_distance() -> None:
    confidence = np.array([0.9, 0.1, 0.3, 0.7, 0.2, 0.8])
    correct = np.array([1, 0, 0, 1, 1, 0], bool)
    result = reliability(confidence, correct, n_bins=3)
    np.testing.assert_allclose(result.confidence, [0.15, 0.5, 0.85])
    np.testing.assert_allclose(result.accuracy, [0.5, 0.5, 0.5])
    assert result.count.tolist() == [2, 2, 2]
    assert result.error == pytest.approx((0.35 + 0.0 + 0.35) / 3)
    assert reliability(confidence, correct, n_bins=100).count.tolist() == [1] * 6


def test_calibrated_probabilities_have_the_error_expected_by_chance() -> None:
    rng = np.random.default_rng(0)
    errors, chance = [], []
    for _ in range(200):
        confidence = rng.random(600)
        result = reliability(confidence, rng.random(600) < confidence)
        errors.append(result.error)
        chance.append(result.by_chance)
    assert np.mean(errors) == pytest.approx(np.mean(chance), rel=0.05)


def test_overconfidence_is_detected() -> None:
    rng = np.random.default_rng(1)
    confidence = 0.5 + 0.5 * rng.random(4000)
    result = reliability(confidence, rng.random(4000) < confidence - 0.2)
    assert result.error == pytest.approx(0.2, abs=0.03)
    assert result.error > 5 * result.by_chance


def test_a_temperature_reduces_the_calibration_error(problem: Callable[..., Problem]) -> None:
    model, rows, labels = problem(3.0, 3000)
    before = outcomes_at(model, rows, labels)
    after = outcomes_at(model, rows, labels, fit_temperature(model, rows, labels, LARGE))
    assert after.log_likelihood > before.log_likelihood + 0.1
    errors = [reliability(o.confidence, o.correct).error for o in (before, after)]
    assert errors[1] < 0.3 * errors[0]
    assert after.accuracy == before.accuracy


def test_invalid_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one number per row"):
        reliability(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="one number per row"):
        reliability(np.ones(0), np.ones(0))
    with pytest.raises(ValueError, match="n_bins"):
        reliability(np.ones(3), np.ones(3), n_bins=0)


# By frequency of the predicted class


def test_bands_are_reliabilities_of_quarters_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    confidence, frequency = rng.random(400), rng.permutation(400)
    # Honest, except that predictions of the rarest hundred classes are always wrong.
    correct = (rng.random(400) < confidence) & (frequency >= 100)
    bands = reliability_by_frequency(confidence, correct, frequency, 5)
    assert [(band.least, band.most) for band in bands] == [
        (0, 99), (100, 199), (200, 299), (300, 399),
    ]  # fmt: skip
    for band in bands:
        rows = (band.least <= frequency) & (frequency <= band.most)
        expected = reliability(confidence[rows], correct[rows], 5)
        assert band.reliability.error == expected.error
        assert band.reliability.above_chance == expected.error - expected.by_chance
    # The error of the first band is its mean confidence.
    first = bands[0].reliability
    assert first.error == pytest.approx(confidence[frequency < 100].mean())
    assert first.above_chance > 0.3 > 5 * max(abs(b.reliability.above_chance) for b in bands[1:])


@pytest.mark.parametrize(
    ("frequency", "bands"),
    [
        ([7, 7, 7], [(7, 7, 3)]),
        ([1, 1, 1, 1, 1, 9], [(1, 1, 5), (9, 9, 1)]),
        ([3], [(3, 3, 1)]),
        ([0, 5, 5, 8, 2, 5, 1, 9], [(0, 1, 2), (2, 5, 4), (8, 9, 2)]),
    ],
)
def test_rows_of_equal_frequency_stay_together(
    frequency: list[int], bands: list[tuple[int, int, int]]
) -> None:
    n = len(frequency)
    found = reliability_by_frequency(np.full(n, 0.5), np.ones(n), np.array(frequency))
    assert [(b.least, b.most, int(b.reliability.count.sum())) for b in found] == bands


def test_bands_need_a_frequency_for_each_row() -> None:
    for n in (0, 3):
        with pytest.raises(ValueError, match="frequency and confidence must have one number"):
            reliability_by_frequency(np.full(n, 0.5), np.ones(n), np.ones(0))
