"""Reliability, calibration error and temperature, against known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from extremax.diagnostics import outcomes, reliability
from extremax.errors import MemoryBudgetError
from extremax.heads import LinearHead
from extremax.noise import FrequencyNoise
from extremax.objectives import AugmentReduceProbit, NegativeSampling, Objective, SampledSoftmax
from extremax.prediction.blocks import Scorer, likelihood
from extremax.prediction.calibration import fit_temperature

N, N_CLASSES, N_FEATURES = 3000, 12, 4
LARGE = 1 << 30


def made(
    temperature: float, objective: Objective | None = None, n: int = N
) -> tuple[Scorer, np.ndarray, np.ndarray]:
    """Rows whose labels follow softmax(logits / temperature) of the scorer's own logits."""
    generator = torch.Generator().manual_seed(0)
    head = LinearHead(N_CLASSES, N_FEATURES, accumulator_start=1.0)
    head.weight.normal_(generator=generator)
    rng = np.random.default_rng(1)
    features = rng.standard_normal((n, N_FEATURES), dtype=np.float32)
    noise = FrequencyNoise().fit(features, np.arange(n) ** 2 % N_CLASSES, N_CLASSES)
    scorer = Scorer(head, noise, objective or SampledSoftmax())
    p = np.exp(log_softmax(logits_of(scorer, features) / temperature, axis=1))
    labels = (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=N_CLASSES - 1)
    return scorer, features, labels


def logits_of(scorer: Scorer, features: np.ndarray) -> np.ndarray:
    logits = features.astype(np.float64) @ scorer.head.weight.double().numpy().T
    if scorer.objective.adds_log_q:
        logits = logits + scorer.noise.log_prob_all(torch.empty(1, 0)).double().numpy()
    return logits


@pytest.mark.parametrize("objective", [SampledSoftmax(), NegativeSampling()], ids=["xi", "xi+q"])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_is_that_of_the_greatest_likelihood(
    objective: Objective, temperature: float
) -> None:
    scorer, features, labels = made(temperature, objective)
    logits = logits_of(scorer, features)

    def loss(log_t: float) -> float:
        log_p = log_softmax(logits / math.exp(log_t), axis=1)
        return -float(log_p[np.arange(N), labels].mean())

    best = math.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    found = fit_temperature(scorer, features, labels, LARGE)
    assert found == pytest.approx(best, rel=2e-3)
    # And near the one that made the labels, as 3,000 rows tell.
    assert found == pytest.approx(temperature, rel=0.15)


def test_blocks_do_not_change_it_and_unseen_classes_are_left_out() -> None:
    scorer, features, labels = made(2.0, n=400)
    whole = fit_temperature(scorer, features, labels, LARGE)
    assert fit_temperature(scorer, features, labels, N_CLASSES * 40) == pytest.approx(
        whole, rel=1e-3
    )
    more = np.concatenate([features, features[:50]])
    unseen = np.concatenate([labels, np.full(50, -1)])
    assert fit_temperature(scorer, more, unseen, LARGE) == pytest.approx(whole, rel=1e-3)
    some = np.arange(400)
    assert fit_temperature(scorer, more, unseen, LARGE, rows=some) == pytest.approx(whole, rel=1e-3)
    half = fit_temperature(scorer, features, labels, LARGE, rows=some[::2])
    assert half == fit_temperature(scorer, features[::2], labels[::2], LARGE) != whole
    with pytest.raises(MemoryBudgetError):
        fit_temperature(scorer, features, labels, 10)
    with pytest.raises(ValueError, match="known classes"):
        fit_temperature(scorer, features, np.full(400, -1), LARGE)


def test_a_model_that_is_always_right_stays_in_bounds() -> None:
    scorer, features, _ = made(1.0, n=200)
    labels = logits_of(scorer, features).argmax(1)
    assert 0.02 < fit_temperature(scorer, features, labels, LARGE) < 0.2


def test_scores_that_say_nothing_keep_a_temperature_of_one() -> None:
    scorer, features, labels = made(1.0, n=100)
    scorer.head.weight.zero_()
    assert fit_temperature(scorer, features, labels, LARGE) == pytest.approx(1.0)


def test_other_normalizers_are_respected() -> None:
    scorer, features, labels = made(1.0, AugmentReduceProbit(), n=300)
    found = fit_temperature(scorer, features, labels, LARGE)

    def at(t: float) -> float:
        logits = torch.from_numpy(logits_of(scorer, features)) / t
        log_p = scorer.objective.log_normalize(logits)
        return float(log_p[torch.arange(300), torch.from_numpy(labels)].mean())

    assert at(found) > max(at(found * 1.05), at(found / 1.05))


def test_outcomes_are_those_of_prediction() -> None:
    scorer, features, labels = made(1.0, n=100)
    labels[:3] = -1
    found = outcomes(scorer, features, labels, budget=N_CLASSES * 28 * 7)
    expected = likelihood(scorer, features, labels, LARGE)
    np.testing.assert_allclose(found.log_prob, expected.log_prob, rtol=1e-5)
    assert np.array_equal(found.correct, expected.correct)
    assert not found.correct[:3].any()
    p = np.exp(log_softmax(logits_of(scorer, features), axis=1))
    np.testing.assert_allclose(found.confidence, p.max(1), rtol=1e-5)
    assert found.accuracy == pytest.approx(found.correct.mean())
    assert found.log_likelihood == pytest.approx(found.log_prob[3:].mean())
    colder = outcomes(scorer, features, labels, temperature=0.5)
    p = np.exp(log_softmax(2 * logits_of(scorer, features), axis=1))
    np.testing.assert_allclose(colder.confidence, p.max(1), rtol=1e-5)
    nobody = outcomes(scorer, features, np.full(100, -1))
    assert nobody.log_likelihood == -math.inf


def test_bins_hold_equally_many_and_the_error_is_their_mean_distance() -> None:
    confidence = np.array([0.9, 0.1, 0.3, 0.7, 0.2, 0.8])
    correct = np.array([1, 0, 0, 1, 1, 0], bool)
    found = reliability(confidence, correct, n_bins=3)
    np.testing.assert_allclose(found.confidence, [0.15, 0.5, 0.85])
    np.testing.assert_allclose(found.accuracy, [0.5, 0.5, 0.5])
    assert found.count.tolist() == [2, 2, 2]
    assert found.error == pytest.approx((0.35 + 0.0 + 0.35) / 3)
    one = reliability(confidence, correct, n_bins=100)
    assert one.count.tolist() == [1] * 6


def test_honest_numbers_have_the_error_that_chance_makes() -> None:
    rng = np.random.default_rng(0)
    errors, chance = [], []
    for _ in range(200):
        confidence = rng.random(600)
        found = reliability(confidence, rng.random(600) < confidence)
        errors.append(found.error)
        chance.append(found.by_chance)
    assert np.mean(errors) == pytest.approx(np.mean(chance), rel=0.05)


def test_boasting_is_seen() -> None:
    rng = np.random.default_rng(1)
    confidence = 0.5 + 0.5 * rng.random(4000)
    found = reliability(confidence, rng.random(4000) < confidence - 0.2)
    assert found.error == pytest.approx(0.2, abs=0.03)
    assert found.error > 5 * found.by_chance


def test_temperature_mends_what_reliability_sees() -> None:
    scorer, features, labels = made(3.0)
    before = outcomes(scorer, features, labels)
    after = outcomes(scorer, features, labels, temperature=fit_temperature(
        scorer, features, labels, LARGE))  # fmt: skip
    assert after.log_likelihood > before.log_likelihood + 0.1
    errors = [reliability(o.confidence, o.correct).error for o in (before, after)]
    assert errors[1] < 0.3 * errors[0]
    assert after.accuracy == before.accuracy


def test_rows_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="one number a row"):
        reliability(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="one number a row"):
        reliability(np.ones(0), np.ones(0))
    with pytest.raises(ValueError, match="n_bins"):
        reliability(np.ones(3), np.ones(3), n_bins=0)
