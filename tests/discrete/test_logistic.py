"""Logistic noise and its posterior, against scipy, the published formula and rejection."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.discrete import logistic, logistic_posterior, logistic_posterior_noise

P_VALUE = 1e-4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_logistic_numbers_match_scipy_and_are_finite() -> None:
    drawn = logistic((20_000,), seeded(), torch.float64)
    assert stats.kstest(drawn.numpy(), stats.logistic.cdf).pvalue > P_VALUE
    assert bool(logistic((1_000_000,), seeded(1)).isfinite().all())


@pytest.mark.parametrize("theta", [0.1, 0.5, 0.93])
def test_the_posterior_follows_its_formula(theta: float) -> None:
    v = torch.from_numpy(np.random.default_rng(0).random(200))
    logits = torch.full((200,), math.log(theta / (1 - theta)), dtype=torch.float64)
    for b in (0, 1):
        v_given_b = v * (1 - theta) if b == 0 else v * theta + (1 - theta)
        expected = logits + torch.logit(v_given_b)
        chosen = torch.full((200,), b)
        found = logistic_posterior(logits, chosen, noise=torch.logit(v))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_posterior_matches_rejection_sampling() -> None:
    logits = torch.full((40_000,), -0.8, dtype=torch.float64)
    z = logits + torch.from_numpy(np.random.default_rng(1).logistic(size=40_000))
    for b in (0, 1):
        kept = z[(z > 0) == bool(b)]
        drawn = logistic_posterior(logits[: len(kept)], torch.full((len(kept),), b), seeded(b))
        assert bool(((drawn > 0) == bool(b)).all())
        assert stats.ks_2samp(drawn.numpy(), kept.numpy()).pvalue > P_VALUE


def test_posterior_noise_reproduces_z_and_is_independent_of_b() -> None:
    logits = torch.full((20_000,), 1.3, dtype=torch.float64)
    z = logits + logistic((20_000,), seeded(2), torch.float64)
    b = (z > 0).double()
    noise = logistic_posterior_noise(logits, z, b)
    torch.testing.assert_close(logistic_posterior(logits, b, noise=noise), z)
    for value in (0, 1):
        assert stats.kstest(noise[b == value].numpy(), stats.logistic.cdf).pvalue > P_VALUE


def test_gradients_of_the_posterior_match_finite_differences() -> None:
    logits = torch.linspace(-3, 3, 8, dtype=torch.float64).requires_grad_()
    noise = logistic((8,), seeded(3), torch.float64)
    for b in (torch.zeros(8), torch.ones(8)):
        assert torch.autograd.gradcheck(
            lambda x, b=b: logistic_posterior(x, b, noise=noise), logits
        )


def test_extreme_logits_in_float32_stay_finite_with_the_right_sign() -> None:
    logits = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4]).repeat(20_000).requires_grad_()
    for b in (0, 1):
        chosen = torch.full(logits.shape, b)
        z = logistic_posterior(logits, chosen, seeded(4))
        assert bool(z.isfinite().all())
        assert bool(((z > 0) == bool(b)).all())
        noise = logistic_posterior_noise(logits.detach(), z.detach(), chosen)
        assert bool(noise.isfinite().all())
        (gradient,) = torch.autograd.grad(z.sum(), logits)
        assert bool(gradient.isfinite().all())


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="chosen must be 0 or 1"):
        logistic_posterior(torch.zeros(2), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="chosen has shape"):
        logistic_posterior(torch.zeros(2), torch.tensor([0]))
    with pytest.raises(ValueError, match="logits must be finite, got nan"):
        logistic_posterior(torch.tensor([math.nan]), torch.tensor([0]))
