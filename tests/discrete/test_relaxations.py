"""Relaxed samples against their densities; the densities against torch's and integrals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from extremax.discrete import (
    binary_concrete,
    binary_concrete_log_prob,
    concrete,
    concrete_log_prob,
    log_concrete_log_prob,
    logit_binary_concrete_log_prob,
    softmax_map,
    straight_through,
)

P_VALUE = 1e-4
LOGITS = torch.tensor([0.5, -1.0, 1.0], dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_softmax_map_tends_to_the_argmax() -> None:
    scores = torch.tensor([1.0, 3.0, 2.0])
    torch.testing.assert_close(softmax_map(scores, 1.0), scores.softmax(0))
    torch.testing.assert_close(softmax_map(scores, 0.01), torch.tensor([0.0, 1.0, 0.0]))
    assert float(softmax_map(scores, 1e6).sub(1 / 3).abs().max()) < 1e-5


@pytest.mark.parametrize("temperature", [0.1, 0.7, 3.0])
def test_the_argmax_of_a_relaxed_sample_is_a_sample(temperature: float) -> None:
    drawn = concrete(LOGITS.expand(20_000, -1), temperature, generator=seeded())
    torch.testing.assert_close(drawn.sum(1), torch.ones(20_000, dtype=torch.float64))
    counts = torch.bincount(drawn.argmax(1), minlength=3).numpy()
    assert stats.chisquare(counts, 20_000 * LOGITS.softmax(0).numpy()).pvalue > P_VALUE


def test_hard_samples_are_one_hot_with_the_gradient_of_the_soft_ones() -> None:
    weight = torch.randn(50, 3, generator=seeded(1), dtype=torch.float64)
    gradients = []
    for hard in (True, False):
        logits = LOGITS.expand(50, -1).clone().requires_grad_()
        y = concrete(logits, 0.5, hard=hard, generator=seeded(2))
        gradients.append(torch.autograd.grad((y * weight).sum(), logits)[0])
        if hard:
            rounded = y.detach().round()
            assert torch.equal(y.detach(), rounded)
            torch.testing.assert_close(rounded.sum(1), torch.ones(50, dtype=torch.float64))
        else:
            assert torch.equal(y.argmax(1), rounded.argmax(1))
    torch.testing.assert_close(*gradients)


def test_hard_binary_samples_are_bernoulli() -> None:
    logits = torch.full((20_000,), -0.6, dtype=torch.float64)
    drawn = binary_concrete(logits, 0.5, hard=True, generator=seeded(3))
    ones = int(drawn.round().sum())
    assert torch.equal(drawn, drawn.round())
    p = 1 / (1 + math.exp(0.6))
    assert stats.binomtest(ones, 20_000, p).pvalue > P_VALUE


def test_straight_through_has_exactly_the_value_of_the_hard_sample() -> None:
    soft = torch.rand(10_000, generator=seeded(10)).requires_grad_()
    hard = (torch.rand(10_000, generator=seeded(11)) < 0.5).float()
    found = straight_through(soft, hard)
    assert torch.equal(found.detach(), hard)
    (gradient,) = torch.autograd.grad(found.sum(), soft)
    assert torch.equal(gradient, torch.ones(10_000))


def test_one_temperature_per_row() -> None:
    generator = seeded(12)
    logits = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(5, 3, generator=generator, dtype=torch.float64).softmax(1)
    temperature = torch.linspace(0.4, 2.0, 5, dtype=torch.float64)[:, None]
    for density, x in ((concrete_log_prob, y), (log_concrete_log_prob, y.log()),
                       (binary_concrete_log_prob, y)):  # fmt: skip
        single = [density(*row) for row in zip(x, logits, temperature.flatten(), strict=True)]
        torch.testing.assert_close(density(x, logits, temperature), torch.stack(single))
    one = torch.tensor([0.7], dtype=torch.float64)
    torch.testing.assert_close(concrete_log_prob(y, logits, one), concrete_log_prob(y, logits, 0.7))


def test_an_impossible_class_leaves_gradients_finite() -> None:
    logits = torch.tensor([[0.5, -math.inf, 1.0], [0.0, 0.3, -math.inf]]).requires_grad_()
    temperature = torch.tensor(0.7, requires_grad=True)
    for hard in (False, True):
        y = concrete(logits, temperature, hard=hard, generator=seeded(13))
        assert y[0, 1].item() == y[1, 2].item() == 0.0
        gradients = torch.autograd.grad((y * torch.arange(3.0)).sum(), (logits, temperature))
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    # The same as without the class.
    soft = softmax_map(logits, temperature)[0]
    (gradient,) = torch.autograd.grad(soft[2], temperature)
    without = softmax_map(torch.tensor([0.5, 1.0]), temperature)
    (expected,) = torch.autograd.grad(without[1], temperature)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_densities_match_torch(temperature: float) -> None:
    y = concrete(LOGITS.expand(200, -1), temperature, generator=seeded(4))
    other = torch.distributions.RelaxedOneHotCategorical(
        torch.tensor(temperature, dtype=torch.float64), logits=LOGITS, validate_args=False
    )
    inside = (y > 0).all(1) & (y < 1).all(1)
    assert int(inside.sum()) > 190
    y = y[inside]
    logits = LOGITS.expand(len(y), -1)
    torch.testing.assert_close(concrete_log_prob(y, logits, temperature), other.log_prob(y))
    binary = torch.distributions.RelaxedBernoulli(
        torch.tensor(temperature, dtype=torch.float64), logits=LOGITS, validate_args=False
    )
    torch.testing.assert_close(binary_concrete_log_prob(y, logits, temperature), binary.log_prob(y))


def test_the_density_of_three_classes_integrates_to_one() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(200)
    x, w = torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)
    # y = (x, (1 − x)x', (1 − x)(1 − x')) covers the simplex, with Jacobian 1 − x.
    first, second = torch.meshgrid(x, x, indexing="ij")
    y = torch.stack([first, (1 - first) * second, (1 - first) * (1 - second)], -1)
    density = concrete_log_prob(y, LOGITS.expand_as(y), 1.5).exp() * (1 - first)
    assert float((density * w[:, None] * w).sum()) == pytest.approx(1.0, abs=1e-3)


def _expected(density, edges: np.ndarray, n: int) -> np.ndarray:
    # The substitution y = σ(x) removes the peaks at 0 and 1 from the integrand.
    def of_x(x: float) -> float:
        y = 1 / (1 + math.exp(-x))
        return density(y) * y * (1 - y)

    limits = [-60.0, *np.log(edges / (1 - edges)), 30.0]
    pairs = itertools.pairwise(limits)
    return n * np.array([integrate.quad(of_x, a, b)[0] for a, b in pairs])


def test_samples_follow_their_density() -> None:
    n, edges = 20_000, np.linspace(0.1, 0.9, 9)
    logit, two = torch.tensor(0.4, dtype=torch.float64), LOGITS[:2]

    def binary(y: float) -> float:
        one = torch.tensor([y], dtype=torch.float64)
        return float(binary_concrete_log_prob(one, logit[None], 0.7).exp())

    def pair(y: float) -> float:
        row = torch.tensor([y, 1 - y], dtype=torch.float64)
        return float(concrete_log_prob(row, two, 0.7).exp())

    samples = {
        binary: binary_concrete(logit.expand(n), 0.7, generator=seeded(5)),
        pair: concrete(two.expand(n, -1), 0.7, generator=seeded(6))[:, 0],
    }
    for density, drawn in samples.items():
        counts = np.bincount(np.digitize(drawn.numpy(), edges), minlength=10)
        expected = _expected(density, edges, n)
        assert expected.sum() == pytest.approx(n, rel=1e-4)
        assert stats.chisquare(counts, expected * n / expected.sum()).pvalue > P_VALUE


def test_log_densities_agree_and_survive_underflow() -> None:
    y = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    plain = concrete_log_prob(y, LOGITS[None], 0.8)
    torch.testing.assert_close(
        log_concrete_log_prob(y.log(), LOGITS[None], 0.8), plain + y.log().sum(1)
    )
    x = torch.logit(y)
    torch.testing.assert_close(
        logit_binary_concrete_log_prob(x, LOGITS[None], 0.8),
        binary_concrete_log_prob(y, LOGITS[None], 0.8) + y.log() + torch.log1p(-y),
    )
    far = torch.tensor([-500.0, 0.0, -900.0])
    assert bool(log_concrete_log_prob(far, LOGITS.float(), 0.01).isfinite())


def test_gradients_of_densities_and_samples_match_finite_differences() -> None:
    logits = LOGITS.clone().requires_grad_()
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    for density in (concrete_log_prob, binary_concrete_log_prob):
        assert torch.autograd.gradcheck(lambda a, b, d=density: d(y, a, b), (logits, temperature))
    for draw in (concrete, binary_concrete):
        assert torch.autograd.gradcheck(
            lambda a, b, d=draw: d(a, b, generator=seeded(7)), (logits, temperature)
        )


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
@pytest.mark.parametrize(
    "call",
    [
        lambda t: softmax_map(LOGITS, t),
        lambda t: concrete(LOGITS, t),
        lambda t: binary_concrete(LOGITS, t),
        lambda t: concrete_log_prob(LOGITS.softmax(0), LOGITS, t),
        lambda t: binary_concrete_log_prob(LOGITS.softmax(0), LOGITS, t),
    ],
)
def test_temperatures_must_be_positive(call, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be > 0"):
        call(temperature)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: concrete(torch.tensor([0.0, math.nan]), 1.0), "logits must"),
        (lambda: softmax_map(torch.tensor([0.0, math.nan]), 1.0), "scores must"),
        (lambda: concrete_log_prob(torch.tensor([0.0, 1.0]), torch.zeros(2), 1.0), "strictly"),
        (lambda: concrete_log_prob(torch.tensor([0.2, 0.3]), torch.zeros(2), 1.0), "sum to one"),
        (lambda: concrete_log_prob(torch.tensor([0.2, 0.8]), torch.zeros(3), 1.0), "y has shape"),
        (
            lambda: concrete_log_prob(torch.full((2, 2), 0.5), torch.zeros(2, 2), torch.ones(2)),
            r"temperature must be one number or have shape \(..., 1\)",
        ),
        (lambda: binary_concrete_log_prob(torch.tensor([0.2]), torch.zeros(3), 1.0), "y has shape"),
        (
            lambda: logit_binary_concrete_log_prob(torch.zeros(2, 1), torch.zeros(3), 1.0),
            "x has shape",
        ),
        (lambda: binary_concrete_log_prob(torch.ones(2), torch.zeros(2), 1.0), "strictly"),
        (lambda: straight_through(torch.zeros(2), torch.zeros(3)), "hard has shape"),
    ],
)
def test_errors_name_the_argument(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
