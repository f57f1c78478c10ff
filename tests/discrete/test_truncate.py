"""Truncated draws and densities against scipy and numerical integrals, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.discrete import sample_truncated, truncated_log_prob

P_VALUE = 1e-4
N = 20_000
# Name, parameters, scipy's distribution without bounds.
DISTRIBUTIONS = {
    "gaussian": ((0.5, 2.0), stats.norm(0.5, 2.0)),
    "logistic": ((0.5, 2.0), stats.logistic(0.5, 2.0)),
    "exponential": ((0.7,), stats.expon(scale=1 / 0.7)),
}
BOUNDS = [(0.2, 1.5), (-1.0, 3.0), (-math.inf, 1.0), (2.0, math.inf), (-math.inf, math.inf)]


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_match_scipy_and_their_own_density(name: str, bounds: tuple[float, float]) -> None:
    parameters, distribution = DISTRIBUTIONS[name]
    tensors, (lower, upper) = [number(v) for v in parameters], bounds
    z = sample_truncated(
        name, *tensors, lower=lower, upper=upper, shape=(N,), generator=seeded()
    ).numpy()
    assert z.min() >= lower
    assert z.max() <= upper
    start, mass = distribution.cdf(lower), distribution.cdf(upper) - distribution.cdf(lower)
    assert stats.kstest(z, lambda z: (distribution.cdf(z) - start) / mass).pvalue > P_VALUE
    # Twenty bins; the density is integrated over all but the two outer ones.
    edges = distribution.ppf(start + mass * np.linspace(0.02, 0.98, 19))
    nodes, weights = np.polynomial.legendre.leggauss(30)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    points = torch.from_numpy(middle[:, None] + half[:, None] * nodes)
    log_p = truncated_log_prob(name, points, *tensors, lower=lower, upper=upper)
    inner = (log_p.exp().numpy() @ weights) * half
    np.testing.assert_allclose(inner.sum(), 0.96, rtol=1e-9)
    expected = N * np.array([0.02, *inner, 0.98 - inner.sum()])
    observed = np.bincount(np.searchsorted(edges, z), minlength=20)
    assert stats.chisquare(observed, expected).pvalue > P_VALUE


@pytest.mark.parametrize("bounds", [(9.0, math.inf), (-math.inf, -9.0), (60.0, 60.5), (8.9, 9.1)])
def test_normal_tails_where_the_distribution_function_rounds_or_underflows(
    bounds: tuple[float, float],
) -> None:
    lower, upper = bounds
    mirrored = lower < 0
    a, b = (-upper, -lower) if mirrored else (lower, upper)
    location, scale = number(0.0), number(1.0)
    z = sample_truncated(
        "gaussian", location, scale, lower=lower, upper=upper, shape=(N,), generator=seeded()
    ).numpy()
    z = -z if mirrored else z

    def share_below(z: np.ndarray) -> np.ndarray:
        # By 1 − Φ on the log scale, relative to the lower bound.
        log_tail = stats.norm.logsf(z) - stats.norm.logsf(a)
        rest = math.exp(stats.norm.logsf(b) - stats.norm.logsf(a))
        return -np.expm1(log_tail) / (1 - rest)

    assert a <= z.min() < z.max() <= b
    assert stats.kstest(z, share_below).pvalue > P_VALUE
    log_p = truncated_log_prob(
        "gaussian", number(lower if math.isfinite(lower) else upper), location, scale,
        lower=lower, upper=upper,
    )  # fmt: skip
    rest = math.exp(stats.norm.logsf(b) - stats.norm.logsf(a))
    expected = stats.norm.logpdf(a) - stats.norm.logsf(a) - math.log1p(-rest)
    assert float(log_p) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("bounds", [(0.2, 1.5), (2.0, math.inf), (30.0, 32.0)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_gradients_match_finite_differences(name: str, bounds: tuple[float, float]) -> None:
    parameters = [number(v).requires_grad_() for v in DISTRIBUTIONS[name][0]]
    finite = [number(b).requires_grad_() for b in bounds if math.isfinite(b)]
    z = number(0.5 * (bounds[0] + min(bounds[1], bounds[0] + 1.0))).requires_grad_()

    def split(values: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], dict]:
        at = len(parameters)
        upper = values[at + 1] if len(finite) > 1 else math.inf
        return values[:at], {"lower": values[at], "upper": upper}

    def draws(*values: torch.Tensor) -> torch.Tensor:
        own, limits = split(values)
        return sample_truncated(name, *own, **limits, shape=(6,), generator=seeded(1))

    def density(z: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        own, limits = split(values)
        return truncated_log_prob(name, z, *own, **limits)

    assert torch.autograd.gradcheck(draws, [*parameters, *finite])
    assert torch.autograd.gradcheck(density, [z, *parameters, *finite])


def test_infinite_bounds_give_finite_gradients() -> None:
    for name, (values, _) in DISTRIBUTIONS.items():
        parameters = [number(v).requires_grad_() for v in values]
        z = sample_truncated(name, *parameters, shape=(50,), generator=seeded(2))
        gradients = torch.autograd.grad(z.sum(), parameters)
        assert all(bool(gradient.isfinite()) for gradient in gradients)


def test_parameters_and_bounds_broadcast_and_keep_their_dtype() -> None:
    location, scale = torch.zeros(3, 1), torch.ones(4)
    upper = torch.tensor([[1.0], [2.0], [3.0]])
    z = sample_truncated(
        "gaussian", location, scale, lower=0.5, upper=upper, shape=(5,), generator=seeded()
    )
    assert z.shape == (5, 3, 4)
    assert z.dtype == torch.float32
    assert bool(((z >= 0.5) & (z <= upper)).all())
    log_p = truncated_log_prob("gaussian", z, location, scale, lower=0.5, upper=upper)
    assert log_p.shape == z.shape
    assert log_p.dtype == torch.float32
    assert float(truncated_log_prob("exponential", number(3.0), scale, upper=2.0)[0]) == -math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sample_truncated("cauchy", number(0.0), number(1.0)), "name must be one of gau"),
        (lambda: sample_truncated("gaussian", number(0.0), number(0.0)), "scale must be > 0"),
        (lambda: sample_truncated("exponential", number(1.0), upper=-1.0), "must reach that far"),
        (
            lambda: sample_truncated("logistic", number(0.0), number(1.0), lower=2.0, upper=2.0),
            "lower must be below upper",
        ),
        (
            lambda: sample_truncated("logistic", number(0.0), number(1.0), lower=math.nan),
            "lower must be below upper",
        ),
    ],
)
def test_errors_name_the_argument(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
