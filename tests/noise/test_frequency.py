"""Frequency noise and its alias table, up to where float32 could no longer count classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from extremax.kernels.cpu.alias import build_alias
from extremax.noise import FrequencyNoise, UniformNoise
from extremax.random import Stream


def fit(labels: np.ndarray, n_classes: int, power: float = 1.0) -> FrequencyNoise:
    return FrequencyNoise(power).fit(np.empty((len(labels), 0), np.float32), labels, n_classes)


def sample(noise: FrequencyNoise, n: int, m: int = 1) -> torch.Tensor:
    return noise.sample(torch.empty(n, 0), m, Stream.of(4, rows=np.arange(n))).labels


def column_masses(threshold: np.ndarray, alias: np.ndarray) -> np.ndarray:
    """What the table gives each class: its own column's share and what others hand to it."""
    n = len(threshold)
    return (threshold + np.bincount(alias, weights=1.0 - threshold, minlength=n)) / n


weights = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=300)


@settings(deadline=None, max_examples=100)
@given(weights)
def test_the_alias_table_holds_the_probabilities(weights: list[float]) -> None:
    p = np.array(weights) / np.sum(weights)
    threshold, alias = build_alias(p.copy())
    assert ((threshold >= 0.0) & (threshold <= 1.0)).all()
    np.testing.assert_allclose(column_masses(threshold, alias), p, rtol=1e-9, atol=1e-14)


def test_the_table_of_equal_probabilities_is_flat() -> None:
    threshold, _ = build_alias(np.full(7, 1 / 7))
    np.testing.assert_allclose(threshold, 1.0)


@pytest.mark.parametrize("power", [0.0, 0.5, 0.75, 1.0, 2.0])
def test_q_is_a_power_of_the_counts(power: float) -> None:
    counts = np.array([5, 0, 1, 20, 3])
    noise = fit(np.repeat(np.arange(5), counts), 5, power)
    expected = np.array([5.0, 1.0, 1.0, 20.0, 3.0]) ** power
    expected /= expected.sum()
    np.testing.assert_allclose(noise.log_prob_all(torch.empty(1, 0))[0].exp(), expected, rtol=1e-6)
    observed = np.bincount(sample(noise, 10_000, 3).ravel(), minlength=5)
    assert stats.chisquare(observed, 30_000 * expected).pvalue > 1e-4


def test_power_zero_is_uniform() -> None:
    labels = np.random.default_rng(0).zipf(1.5, 3000) % 50
    flat = fit(labels, 50, power=0.0)
    uniform = UniformNoise().fit(np.empty((3000, 0)), labels, 50)
    nothing = torch.empty(1, 0)
    torch.testing.assert_close(flat.log_prob_all(nothing), uniform.log_prob_all(nothing))


def test_more_than_ten_million_classes() -> None:
    # Beyond 2^24 float32 has no odd numbers: classes lost to rounding would show here.
    first, n_classes = 2**24, 2**24 + 2**20
    labels = np.repeat(np.arange(first, n_classes), 2)
    noise = fit(labels, n_classes)
    total = len(labels) + first
    masses = column_masses(noise.threshold_, noise.alias_)
    np.testing.assert_allclose(masses[:first], 1 / total, rtol=1e-6)
    np.testing.assert_allclose(masses[first:], 2 / total, rtol=1e-6)
    assert float(noise.log_q_.double().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    drawn = sample(noise, 500_000, 2).numpy().ravel()
    assert drawn.min() >= 0
    assert drawn.max() < n_classes
    high = drawn[drawn >= first]
    assert stats.binomtest(len(high), len(drawn), len(labels) / total).pvalue > 1e-4
    assert stats.binomtest(int((high % 2).sum()), len(high)).pvalue > 1e-4
    for part, limits in ((high, (first, n_classes)), (drawn[drawn < first], (0, first))):
        assert stats.chisquare(np.histogram(part, bins=64, range=limits)[0]).pvalue > 1e-4


def test_uniform_over_more_than_ten_million_classes() -> None:
    noise = UniformNoise().fit(np.empty((0, 0)), np.zeros(0, np.int64), 2**25)
    drawn = noise.sample(torch.empty(50_000, 0), 4, Stream.of(6, rows=np.arange(50_000))).labels
    odd = drawn[drawn > 2**24] % 2
    assert stats.binomtest(int(odd.sum()), len(odd)).pvalue > 1e-4
    assert stats.chisquare(np.histogram(drawn, bins=64, range=(0, 2**25))[0]).pvalue > 1e-4


def test_a_power_that_leaves_classes_without_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"power=10000\.0 leaves classes with no probability"):
        fit(np.array([0, 0, 0, 1, 1]), 3, 1e4)


@pytest.mark.parametrize("power", ["a", None, True, float("nan"), float("inf")])
def test_a_power_that_is_no_number_is_refused(power: object) -> None:
    with pytest.raises(ValueError, match="power must be a number, got"):
        fit(np.array([0, 0, 0, 1, 1]), 3, power)


@pytest.mark.parametrize("power", [1, np.float32(0.5), np.int64(2)])
def test_a_power_is_any_number(power: float) -> None:
    assert fit(np.array([0, 0, 0, 1, 1]), 3, power).log_q_.isfinite().all()
