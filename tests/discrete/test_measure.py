"""Bias and variance of estimators whose bias and variance are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from extremax.discrete import Bernoulli, Estimator, Exact, Reinforce, measure, variance_ratio
from extremax.discrete.estimators.base import attach_gradient
from extremax.discrete.variables import Variable

VARIABLE = Bernoulli(torch.tensor([0.3, -0.8], dtype=torch.float64))


class Noisy(Estimator):
    """The gradients 1 and 2 plus normal noise of a known standard deviation."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def surrogate(self, f, variable: Variable, n_samples: int, generator) -> Tensor:
        noise = torch.randn(variable.logits.shape, generator=generator, dtype=torch.float64)
        estimate = torch.tensor([1.0, 2.0], dtype=torch.float64) + self.deviation * noise
        return attach_gradient(torch.zeros_like(noise), estimate, variable)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def measured(deviation: float, truth: list[float], seed: int = 0, n: int = 2000):
    return measure(
        Noisy(deviation), torch.sin, VARIABLE, n=n,
        truth=torch.tensor(truth, dtype=torch.float64), generator=seeded(seed),
    )  # fmt: skip


def test_intervals_have_their_nominal_coverage() -> None:
    bias = variance = ratio = 0
    runs = 400
    for seed in range(runs):
        found = measured(1.5, [1.0, 2.0], seed)
        low, high = found.bias_interval(0.9)
        bias += int(((low < 0) & (high > 0)).sum())
        low, high = found.variance_interval(0.9)
        variance += low < 2 * 1.5**2 < high
        _, low, high = variance_ratio(measured(0.5, [1.0, 2.0], seed + runs), found, 0.9)
        ratio += low < 1 / 9 < high
    # A binomial fraction is this far from 0.9 with probability 1e-5.
    width = 4.4 * math.sqrt(0.9 * 0.1 / runs)
    for coverage in (bias / (2 * runs), variance / runs, ratio / runs):
        assert abs(coverage - 0.9) < width


def test_a_bias_is_detected_where_it_is() -> None:
    found = measured(1.0, [1.0, 1.5])
    assert abs(float(found.t[0])) < 4
    assert float(found.t[1]) == pytest.approx(0.5 * math.sqrt(2000), abs=4)
    assert float(found.bias[1]) == pytest.approx(0.5, abs=0.1)


def test_the_variance_of_reinforce_matches_enumeration() -> None:
    def f(b: Tensor) -> Tensor:
        return (b - 0.45).square()

    found = measure(Reinforce(), f, VARIABLE, n=200_000, generator=seeded(1))
    theta = torch.sigmoid(VARIABLE.logits)
    one, zero = 0.55**2 * (1 - theta), -(0.45**2) * theta
    mean = theta * one + (1 - theta) * zero
    variance = theta * one**2 + (1 - theta) * zero**2 - mean**2
    low, high = found.variance_interval(0.9999)
    assert low < float(variance.sum()) < high
    torch.testing.assert_close(found.truth, mean)


def test_estimates_without_variance_are_compared_up_to_rounding() -> None:
    found = measure(Exact(), torch.sin, VARIABLE, n=100, blocks=2)
    assert found.variance < 1e-30
    assert float(found.t.abs().max()) < 1
    wrong = measured(0.0, [1.0, 2.1], n=100)
    assert abs(float(wrong.t[1])) > 1e6


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="n must be an integer >= 40, got 10; 20 blocks"):
        measure(Reinforce(), torch.sin, VARIABLE, n=10)
    with pytest.raises(ValueError, match="blocks must be an integer >= 2"):
        measure(Reinforce(), torch.sin, VARIABLE, blocks=1)
    with pytest.raises(ValueError, match="truth has shape"):
        measure(Reinforce(), torch.sin, VARIABLE, truth=torch.zeros(3))
    with pytest.raises(ValueError, match="truth must be finite"):
        measure(Reinforce(), torch.sin, VARIABLE, truth=torch.full((2,), math.nan))
    constant = measured(0.0, [1.0, 2.0], n=100)
    with pytest.raises(ValueError, match="variance of other must be > 0"):
        variance_ratio(measured(1.0, [1.0, 2.0]), constant)
