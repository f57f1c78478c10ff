"""What to do about a diagnosis."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from extremax.cli.verdict import verdict
from extremax.diagnostics import BiasCurve, Signal, reliability
from extremax.evaluation import reliability_by_frequency


def rows(says: float, right: float, n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Confidences around ``says``, and a share of ``right`` that is correct."""
    correct = np.random.default_rng(0).permutation(np.arange(n) < round(right * n))
    return says + np.linspace(-0.02, 0.02, n), correct


def told(
    confidence: np.ndarray,
    correct: np.ndarray,
    own: str | None = "tree",
    corrects_draws: bool = True,
    calibrated: bool = False,
    covered: tuple[float, float] = (0.2, 0.1),
    n_draws: int = 5,
) -> list[str]:
    bias = np.array([0.8, 0.2, 0.05])
    curve = BiasCurve((1, 10, 100), bias, np.zeros(3), 1.0)
    frequency = np.arange(len(confidence)) % 4 + 1
    diagnosis = SimpleNamespace(
        reliability=reliability(confidence, correct),
        bands=reliability_by_frequency(confidence, correct, frequency),
        bias={"tree": curve, "uniform": curve},
        signal={
            "tree": Signal(covered[0], relative=0.5, log_q=-1.0),
            "uniform": Signal(covered[1], relative=0.5, log_q=-1.0),
        },
        own_noise=own,
    )
    return verdict(diagnosis, calibrated, corrects_draws, n_draws)


def test_right_probabilities_leave_nothing_to_do():
    probabilities, classes, noise = told(*rows(0.7, 0.7))
    assert probabilities == "probabilities: right; they say 70.0% on average, and 70.0% is correct"
    assert classes == "classes: rare and frequent ones are equally right"
    # Whatever the table of bias says.
    assert noise.startswith("noise: no need to worry; the bias below does not show")


@pytest.mark.parametrize(("right", "how"), [(0.5, "too sure"), (0.9, "too unsure")])
def test_wrong_probabilities_are_calibrated(right, how):
    probabilities, classes, noise = told(*rows(0.7, right))
    expected = f"probabilities: {how} (70.0%, {right:.1%} correct); train with --calibrate"
    assert probabilities == expected
    assert classes.startswith("classes: worst with ")
    # log bias is linear in log m: from 0.2 at 10 to 0.05 at 100, 0.1 at √1000.
    assert noise == "noise: its bias may be a cause; 32 draws would make it small (--n-negatives)"
    calibrated = told(*rows(0.7, right), calibrated=True)[0]
    assert calibrated.endswith("; recalibrate() on such rows")
    enough = told(*rows(0.7, right), n_draws=40)[2]
    assert enough == "noise: no need to worry; with 40 draws the bias below is small"


def test_errors_in_both_directions():
    sure, unsure = rows(0.9, 0.7), rows(0.3, 0.5)
    both = [np.concatenate(pair) for pair in zip(sure, unsure, strict=True)]
    # In 14 of 15 bins by 20%; the one in the middle has rows of both.
    (error,) = re.findall(r"^probabilities: off by (.*)%, in both directions; ", told(*both)[0])
    assert float(error) == pytest.approx(20 * 14 / 15, abs=1.0)


def test_noises_of_objectives_without_bias():
    given = rows(0.7, 0.7)
    assert told(*given, own=None)[2] == "noise: none to worry about; training scored every class"
    assert told(*given, corrects_draws=False)[2].startswith("noise: no need to worry; tree teaches")
    other = told(*given, corrects_draws=False, covered=(0.1, 0.2))[2]
    assert other == "noise: uniform would teach more than tree; try --noise uniform"


def test_lines_fit_a_terminal():
    for right in (0.3, 0.7, 0.95):
        for calibrated in (False, True):
            assert max(map(len, told(*rows(0.7, right), calibrated=calibrated))) <= 80
