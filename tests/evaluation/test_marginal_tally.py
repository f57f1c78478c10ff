"""Brier score and calibration error of marginal probabilities, against scikit-learn and bins."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from extremax.evaluation import MarginalTally, reliability, tally_marginals

RANDOM = np.random.default_rng(0)
ETA = np.sort(RANDOM.beta(0.5, 2.0, size=(3000, 5)))[:, ::-1]
HIT = RANDOM.random(ETA.shape) < ETA**1.5
USED = np.ones(ETA.shape, bool)


def test_figures_are_those_of_all_probabilities_together() -> None:
    tally = tally_marginals(ETA, HIT, USED)
    for k in (1, 3, 5):
        eta, hit = ETA[:, :k].ravel(), HIT[:, :k].ravel()
        assert tally.brier[k - 1] == pytest.approx(brier_score_loss(hit, eta))
        # Bins end at steps of the log odds, and so differ by a few rows.
        expected = reliability(eta, hit)
        assert tally.calibration_error[k - 1] == pytest.approx(expected.error, abs=2e-3)
        by_chance = tally.calibration_error_by_chance[k - 1]
        assert by_chance == pytest.approx(expected.by_chance, rel=0.05)
        assert len(tally.reliability(k).count) == 15
        assert tally.reliability(k).count.sum() == len(eta)


def test_right_probabilities_have_an_error_of_about_chance() -> None:
    hit = RANDOM.random(ETA.shape) < ETA
    tally = tally_marginals(ETA, hit, USED)
    assert tally.calibration_error[4] < 2 * tally.calibration_error_by_chance[4]
    assert tally_marginals(ETA, HIT, USED).calibration_error[4] > 0.05


def test_blocks_add_up() -> None:
    whole = tally_marginals(ETA, HIT, USED)
    parts = [slice(0, 1), slice(1, 1), slice(1, 1800), slice(1800, None)]
    total = sum((tally_marginals(ETA[p], HIT[p], USED[p]) for p in parts), MarginalTally())
    np.testing.assert_allclose(total.brier, whole.brier)
    np.testing.assert_allclose(total.calibration_error, whole.calibration_error)


def test_ranks_without_a_class_do_not_count() -> None:
    used = USED.copy()
    used[:, 2:] = False
    tally = tally_marginals(ETA * used, HIT & used, used)
    two = tally_marginals(ETA[:, :2], HIT[:, :2], USED[:, :2])
    np.testing.assert_allclose(tally.brier, two.brier[[0, 1, 1, 1, 1]])
    np.testing.assert_allclose(tally.calibration_error[1:], two.calibration_error[1])


def test_certain_probabilities_and_nothing_at_all() -> None:
    sure = np.array([[1.0, 0.0]])
    tally = tally_marginals(sure, np.array([[True, False]]), np.ones((1, 2), bool))
    assert (tally.brier.tolist(), tally.calibration_error.tolist()) == ([0.0, 0.0], [0.0, 0.0])
    empty = MarginalTally()
    assert (empty.brier.tolist(), empty.calibration_error.tolist()) == ([0.0], [0.0])
    assert empty == empty + empty
    assert empty != tally
