"""Each reparameterization and its density against scipy's distribution, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.discrete import REPARAMETERIZATIONS, log_prob, sample

P_VALUE = 1e-4
N = 20_000


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


CONTINUOUS = {
    "exponential": ((1.7,), stats.expon(scale=1 / 1.7)),
    "cauchy": ((0.5, 2.0), stats.cauchy(0.5, 2.0)),
    "laplace": ((-1.0, 0.7), stats.laplace(-1.0, 0.7)),
    "laplace_of_two_uniforms": ((-1.0, 0.7), stats.laplace(-1.0, 0.7)),
    "logistic": ((0.4, 1.5), stats.logistic(0.4, 1.5)),
    "gaussian": ((0.3, 2.5), stats.norm(0.3, 2.5)),
    "box_muller": ((0.3, 2.5), stats.norm(0.3, 2.5)),
    "log_normal": ((0.2, 0.6), stats.lognorm(0.6, scale=math.exp(0.2))),
    "inverse_gamma": ((2.5, 1.3), stats.invgamma(2.5, scale=1.3)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_match_scipy(name: str) -> None:
    parameters, distribution = CONTINUOUS[name]
    drawn = sample(name, *map(number, parameters), shape=(N,), generator=seeded())
    assert drawn.shape == (N,)
    assert stats.kstest(drawn.numpy(), distribution.cdf).pvalue > P_VALUE


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_match_their_own_density(name: str) -> None:
    parameters, distribution = CONTINUOUS[name]
    drawn = sample(name, *map(number, parameters), shape=(N,), generator=seeded(5)).numpy()
    # Twenty bins; the density is integrated over all but the two outer ones.
    edges = distribution.ppf(np.linspace(0.02, 0.98, 19))
    nodes, weights = np.polynomial.legendre.leggauss(30)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    points = torch.from_numpy(middle[:, None] + half[:, None] * nodes)
    density = log_prob(name, points, *map(number, parameters)).exp().numpy()
    inner = (density @ weights) * half
    expected = N * np.array([0.02, *inner, 0.98 - inner.sum()])
    observed = np.bincount(np.searchsorted(edges, drawn), minlength=20)
    assert stats.chisquare(observed, expected).pvalue > P_VALUE


@pytest.mark.parametrize("name", CONTINUOUS)
def test_densities_match_scipy_also_in_the_tails(name: str) -> None:
    parameters, distribution = CONTINUOUS[name]
    tails = [1e-300, 1e-12, 1e-3]
    z = np.concatenate([distribution.ppf([*tails, 0.3, 0.5, 0.7]), distribution.isf(tails)])
    z = np.append(z[np.isfinite(z)], -3.0)
    found = log_prob(name, torch.from_numpy(z), *map(number, parameters)).numpy()
    np.testing.assert_allclose(found, distribution.logpdf(z), rtol=1e-10)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_gradients_of_densities_match_finite_differences(name: str) -> None:
    parameters, distribution = CONTINUOUS[name]
    z = torch.from_numpy(distribution.ppf([0.1, 0.45, 0.9]))
    inputs = [z.requires_grad_(), *(number(v).requires_grad_() for v in parameters)]
    assert torch.autograd.gradcheck(lambda *p: log_prob(name, *p), inputs)
    # Outside the support the gradient is zero, not NaN.
    outside = [number(-1.0).requires_grad_(), *(number(v).requires_grad_() for v in parameters)]
    gradients = torch.autograd.grad(log_prob(name, *outside), outside)
    assert all(bool(gradient.isfinite()) for gradient in gradients)


@pytest.mark.parametrize(
    "name", [n for n in CONTINUOUS if n not in ("box_muller", "laplace_of_two_uniforms")]
)
def test_densities_follow_from_the_noise_by_change_of_variables(name: str) -> None:
    entry, parameters = REPARAMETERIZATIONS[name], [number(v) for v in CONTINUOUS[name][0]]
    noise = entry.noise((50,), seeded(3), *parameters).requires_grad_()
    z = entry.transform(noise, *parameters)
    (slope,) = torch.autograd.grad(z.sum(), noise)
    if name in ("gaussian", "log_normal"):
        log_noise = torch.from_numpy(stats.norm.logpdf(noise.detach().numpy()))
    elif name == "inverse_gamma":
        log_noise = torch.from_numpy(
            stats.gamma.logpdf(noise.detach().numpy(), float(parameters[0]))
        )
    else:
        log_noise = torch.zeros(50, dtype=torch.float64)
    found = log_prob(name, z.detach(), *parameters)
    torch.testing.assert_close(found, log_noise - slope.abs().log(), rtol=1e-9, atol=1e-9)


def test_the_multivariate_density_matches_scipy_for_square_and_wide_factors() -> None:
    location = torch.tensor([1.0, -2.0], dtype=torch.float64)
    z = torch.randn(6, 2, generator=seeded(), dtype=torch.float64)
    for columns in (2, 3):
        factor = torch.randn(2, columns, generator=seeded(4), dtype=torch.float64)
        expected = stats.multivariate_normal(location.numpy(), (factor @ factor.T).numpy())
        found = log_prob("multivariate_gaussian", z, location, factor)
        np.testing.assert_allclose(found.numpy(), expected.logpdf(z.numpy()), rtol=1e-10)
    square = torch.randn(2, 2, generator=seeded(4), dtype=torch.float64)
    inputs = [part.clone().requires_grad_() for part in (z, location, square)]
    assert torch.autograd.gradcheck(lambda *p: log_prob("multivariate_gaussian", *p), inputs)


def test_the_rademacher_distribution_has_two_values() -> None:
    z = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    found = log_prob("rademacher", z, number(0.3)).exp()
    torch.testing.assert_close(found, torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64))


def test_every_entry_of_the_table_is_tested() -> None:
    assert set(REPARAMETERIZATIONS) == {*CONTINUOUS, "rademacher", "multivariate_gaussian"}


def test_rademacher_draws_fair_signs() -> None:
    drawn = sample("rademacher", number(0.5), shape=(N,), generator=seeded())
    assert set(drawn.tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int((drawn > 0).sum()), N, 0.5).pvalue > P_VALUE


def test_the_multivariate_gaussian_has_the_covariance_of_its_factor() -> None:
    factor = torch.tensor([[1.0, 0.0], [0.8, 0.5]], dtype=torch.float64)
    location = torch.tensor([1.0, -2.0], dtype=torch.float64)
    drawn = sample("multivariate_gaussian", location, factor, shape=(N,), generator=seeded())
    covariance = (factor @ factor.T).numpy()
    white = np.linalg.solve(factor.numpy(), (drawn - location).numpy().T)
    for row in white:
        assert stats.kstest(row, stats.norm.cdf).pvalue > P_VALUE
    assert stats.pearsonr(*white).pvalue > P_VALUE
    np.testing.assert_allclose(np.cov(drawn.numpy().T), covariance, atol=0.05)


@pytest.mark.parametrize("name", [n for n in CONTINUOUS if n != "inverse_gamma"])
def test_gradients_for_fixed_noise_match_finite_differences(name: str) -> None:
    parameters = [number(v).requires_grad_() for v in CONTINUOUS[name][0]]
    assert torch.autograd.gradcheck(
        lambda *p: sample(name, *p, shape=(7,), generator=seeded(1)), parameters
    )


def test_the_inverse_gamma_is_differentiable_in_its_concentration() -> None:
    # E 1/Gamma(k) = 1/(k − 1), with derivative −1/(k − 1)²; z is proportional to the scale.
    k, scale = number(4.0).requires_grad_(), number(2.0).requires_grad_()
    copies = k.expand(N)
    z = sample("inverse_gamma", copies, scale, generator=seeded(2))
    (gradients,) = torch.autograd.grad(z.sum(), copies, retain_graph=True)
    error = float(gradients.std()) / math.sqrt(N)
    assert abs(float(gradients.mean()) + 2.0 / 9.0) < 4 * error
    (by_scale,) = torch.autograd.grad(z.sum(), scale)
    assert float(by_scale) == pytest.approx(float(z.detach().sum()) / 2.0)


def test_parameters_broadcast_and_keep_their_dtype() -> None:
    location, scale = torch.zeros(3, 1), torch.ones(4)
    for name in [
        n for n, e in REPARAMETERIZATIONS.items() if e.parameters == ("location", "scale")
    ]:
        drawn = sample(name, location, scale, shape=(5,), generator=seeded())
        assert drawn.shape == (5, 3, 4)
        assert drawn.dtype == torch.float32
        assert bool(drawn.isfinite().all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sample("poisson", number(1.0)), "name must be one of exponential"),
        (lambda: sample("laplace", number(1.0)), r"parameters \(location, scale\), got 1"),
        (lambda: sample("laplace", number(1.0), number(0.0)), "scale must be > 0, got 0"),
        (lambda: sample("exponential", number(math.nan)), "rate must be finite"),
        (lambda: sample("rademacher", number(1.5)), "probability must be at most 1"),
        (
            lambda: sample("multivariate_gaussian", torch.zeros(2), torch.eye(3)),
            r"factor must be \(..., d, r\)",
        ),
        (
            lambda: log_prob(
                "multivariate_gaussian", torch.zeros(2), torch.zeros(2), torch.eye(2, 1)
            ),
            "factor must have rank d = 2",
        ),
        (lambda: log_prob("laplace", number(math.inf), number(0.0), number(1.0)), "z must be fin"),
    ],
)
def test_errors_name_the_argument(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
