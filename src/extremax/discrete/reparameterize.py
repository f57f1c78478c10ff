"""Reparameterized distributions: z = g(ε, θ), with noise ε that does not depend on θ.

∇_θ E f(z) is then the mean of ∇_θ f(g(ε, θ)) (Xu 2019, "Other re-parameterizations"). An exception
is the inverse gamma, whose noise depends on the concentration; torch differentiates it implicitly.

    z = sample("laplace", location, scale, shape=(1000,), generator=generator)
    log_p = log_prob("laplace", z, location, scale)

Where g has an inverse, the density of z follows by change of variables (Xu 2019):

    log p(z) = log p(ε) − log |∂g/∂ε|  at  ε = g⁻¹(z, θ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid

from extremax.discrete.logistic import open_uniform
from extremax.tensor_checks import check_finite

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Reparameterization:
    """One entry of ``REPARAMETERIZATIONS``.

    parameters:  names of the parameters, in order.
    positive:    names of the parameters that must be > 0.
    noise:       draws ε from (shape, generator, *parameters).
    transform:   computes z from (ε, *parameters).
    log_prob:    computes log p(z) from (z, *parameters).
    """

    parameters: tuple[str, ...]
    positive: tuple[str, ...]
    noise: Callable[..., Tensor]
    transform: Callable[..., Tensor]
    log_prob: Callable[..., Tensor]


def sample(
    name: str, *parameters: Tensor, shape: Shape = (), generator: Generator | None = None
) -> Tensor:
    """Draw from a distribution of ``REPARAMETERIZATIONS``, differentiable in its parameters.

    The parameters broadcast; the result has the shape ``shape`` + their broadcast shape.
    """
    entry = checked_entry(name, parameters)
    return entry.transform(entry.noise(tuple(shape), generator, *parameters), *parameters)


def log_prob(name: str, z: Tensor, *parameters: Tensor) -> Tensor:
    """Log-density of z under a distribution of ``REPARAMETERIZATIONS``; −∞ outside its support.

    For the Rademacher distribution, the log-probability. z and the parameters broadcast; the last
    dimension of a multivariate Gaussian is one value.
    """
    entry = checked_entry(name, parameters)
    check_finite(z, "z")
    return entry.log_prob(z, *parameters)


def checked_entry(name: str, parameters: tuple[Tensor, ...]) -> Reparameterization:
    """The entry of this name, once the parameters have been checked."""
    if name not in REPARAMETERIZATIONS:
        raise ValueError(f"name must be one of {', '.join(REPARAMETERIZATIONS)}, got {name!r}")
    entry = REPARAMETERIZATIONS[name]
    if len(parameters) != len(entry.parameters):
        raise ValueError(
            f"{name} takes the parameters ({', '.join(entry.parameters)}), got {len(parameters)}"
        )
    for label, value in zip(entry.parameters, parameters, strict=True):
        check_finite(value, label)
        if label in entry.positive and not bool((value > 0).all()):
            raise ValueError(f"{label} must be > 0, got {float(value.min())}")
    return entry


# Noises ---------------------------------------------------------------------------------------


def _full_shape(shape: Shape, *parameters: Tensor) -> Shape:
    return shape + torch.broadcast_shapes(*(parameter.shape for parameter in parameters))


def _uniform(shape: Shape, generator: Generator | None, *parameters: Tensor) -> Tensor:
    return open_uniform(_full_shape(shape, *parameters), generator, parameters[0].device)


def _two_uniforms(shape: Shape, generator: Generator | None, *parameters: Tensor) -> Tensor:
    full = _full_shape(shape, *parameters)
    return open_uniform((2, *full), generator, parameters[0].device)


def _normal(shape: Shape, generator: Generator | None, *parameters: Tensor) -> Tensor:
    full, like = _full_shape(shape, *parameters), parameters[0]
    return torch.randn(full, generator=generator, dtype=like.dtype, device=like.device)


def _normal_vector(
    shape: Shape, generator: Generator | None, location: Tensor, factor: Tensor
) -> Tensor:
    if location.ndim == 0 or factor.ndim < 2 or factor.shape[-2] != location.shape[-1]:
        raise ValueError(
            f"factor must be (..., d, r) for location (..., d), got {tuple(factor.shape)} and "
            f"{tuple(location.shape)}"
        )
    # Sums have the shapes (..., 1) and (..., r): one normal number per column of the factor.
    return _normal(shape, generator, location.sum(-1, keepdim=True), factor.sum(-2))


def _coin(shape: Shape, generator: Generator | None, probability: Tensor) -> Tensor:
    if bool((probability > 1).any()):
        raise ValueError(f"probability must be at most 1, got {float(probability.max())}")
    expanded = probability.detach().expand(shape + probability.shape)
    return torch.bernoulli(expanded, generator=generator)


def _gamma(
    shape: Shape, generator: Generator | None, concentration: Tensor, scale: Tensor
) -> Tensor:
    expanded = concentration.expand(_full_shape(shape, concentration, scale))
    drawn = torch._standard_gamma(expanded, generator=generator)
    return drawn.clamp(min=torch.finfo(drawn.dtype).tiny)


# Transforms -----------------------------------------------------------------------------------


def _exponential(u: Tensor, rate: Tensor) -> Tensor:
    """−ln u / rate."""
    return -u.log().to(rate.dtype) / rate


def _cauchy(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """μ + s tan π(u − ½)."""
    return location + scale * torch.tan(math.pi * (u - 0.5)).to(location.dtype)


def _laplace(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """μ − s sgn(u − ½) ln(1 − 2|u − ½|)."""
    # ln(1 − 2|u − ½|) = ln(2 min(u, 1 − u)), which is accurate in both tails.
    tail = torch.log(2.0 * torch.minimum(u, 1.0 - u))
    return location - scale * ((u - 0.5).sign() * tail).to(location.dtype)


def _laplace_of_two(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """μ + s ln(u_1/u_2)."""
    return location + scale * (u[0].log() - u[1].log()).to(location.dtype)


def _logistic(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """μ + s ln(u/(1 − u))."""
    return location + scale * torch.logit(u).to(location.dtype)


def _box_muller(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """μ + s √(−2 ln u_1) cos 2πu_2; the slide of Xu 2019 drops the 2 under the root."""
    normal = torch.sqrt(-2.0 * u[0].log()) * torch.cos(2.0 * math.pi * u[1])
    return location + scale * normal.to(location.dtype)


def _gaussian(normal: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """μ + sε."""
    return location + scale * normal


def _log_normal(normal: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """exp(μ + sε)."""
    return torch.exp(location + scale * normal)


def _multivariate_gaussian(normal: Tensor, location: Tensor, factor: Tensor) -> Tensor:
    """μ + Rε, with covariance RRᵀ."""
    return location + (factor @ normal.unsqueeze(-1)).squeeze(-1)


def _rademacher(coin: Tensor, probability: Tensor) -> Tensor:
    """2 Bern(p) − 1; p = ½ is the Rademacher distribution. Discrete, so p gets no gradient."""
    return 2.0 * coin - 1.0


def _inverse_gamma(gamma: Tensor, concentration: Tensor, scale: Tensor) -> Tensor:
    """scale / Gamma(k, 1)."""
    return scale / gamma


# Densities ------------------------------------------------------------------------------------


def _location_scale(standard: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """log p of μ + s·t from log p of t."""

    def log_prob(z: Tensor, location: Tensor, scale: Tensor) -> Tensor:
        return standard((z - location) / scale) - scale.log()

    return log_prob


def _on_positive(z: Tensor, log_p: Callable[[Tensor], Tensor], zero: bool = False) -> Tensor:
    """log_p of z > 0, or of z >= 0, and −∞ elsewhere, without NaN in gradients."""
    inside = z >= 0 if zero else z > 0
    return torch.where(inside, log_p(torch.where(inside, z, 1.0)), -torch.inf)


def _exponential_log_prob(z: Tensor, rate: Tensor) -> Tensor:
    return _on_positive(z, lambda z: rate.log() - rate * z, zero=True)


_cauchy_log_prob = _location_scale(
    # log(1 + t²) without overflow.
    lambda t: -2.0 * torch.hypot(t, torch.ones_like(t)).log() - math.log(math.pi)
)
_laplace_log_prob = _location_scale(lambda t: -t.abs() - math.log(2.0))
# The density is even: −|t| keeps e^{−t} from overflowing.
_logistic_log_prob = _location_scale(lambda t: 2.0 * logsigmoid(-t.abs()) + t.abs())
_gaussian_log_prob = _location_scale(lambda t: -0.5 * t.square() - 0.5 * math.log(2 * math.pi))


def _log_normal_log_prob(z: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    return _on_positive(z, lambda z: _gaussian_log_prob(z.log(), location, scale) - z.log())


def _multivariate_gaussian_log_prob(z: Tensor, location: Tensor, factor: Tensor) -> Tensor:
    """With Rᵀ = QU, Q orthonormal and U upper triangular, z = μ + Uᵀ(Qᵀε), and Qᵀε is normal."""
    upper = torch.linalg.qr(factor.mT).R
    diagonal = upper.diagonal(dim1=-2, dim2=-1).abs()
    if upper.shape[-2] < location.shape[-1] or not bool((diagonal > 0).all()):
        raise ValueError(
            f"factor must have rank d = {location.shape[-1]} to have a density, got shape "
            f"{tuple(factor.shape)}; add columns"
        )
    distance = (z - location).unsqueeze(-1)
    normal = torch.linalg.solve_triangular(upper.mT, distance, upper=False).squeeze(-1)
    log_p = -0.5 * (normal.square() + math.log(2 * math.pi))
    return log_p.sum(-1) - diagonal.log().sum(-1)


def _rademacher_log_prob(z: Tensor, probability: Tensor) -> Tensor:
    tails = torch.where(z == -1, torch.log1p(-probability), -torch.inf)
    return torch.where(z == 1, probability.log(), tails)


def _inverse_gamma_log_prob(z: Tensor, concentration: Tensor, scale: Tensor) -> Tensor:
    constant = concentration * scale.log() - torch.lgamma(concentration)
    return _on_positive(z, lambda z: constant - (concentration + 1.0) * z.log() - scale / z)


def _of_location_and_scale(*functions: Callable[..., Tensor]) -> Reparameterization:
    return Reparameterization(("location", "scale"), ("scale",), *functions)


REPARAMETERIZATIONS: dict[str, Reparameterization] = {
    "exponential": Reparameterization(
        ("rate",), ("rate",), _uniform, _exponential, _exponential_log_prob
    ),
    "cauchy": _of_location_and_scale(_uniform, _cauchy, _cauchy_log_prob),
    "laplace": _of_location_and_scale(_uniform, _laplace, _laplace_log_prob),
    "laplace_of_two_uniforms": _of_location_and_scale(
        _two_uniforms, _laplace_of_two, _laplace_log_prob
    ),
    "logistic": _of_location_and_scale(_uniform, _logistic, _logistic_log_prob),
    "gaussian": _of_location_and_scale(_normal, _gaussian, _gaussian_log_prob),
    "box_muller": _of_location_and_scale(_two_uniforms, _box_muller, _gaussian_log_prob),
    "multivariate_gaussian": Reparameterization(
        ("location", "factor"), (), _normal_vector, _multivariate_gaussian,
        _multivariate_gaussian_log_prob,
    ),
    "rademacher": Reparameterization(
        ("probability",), ("probability",), _coin, _rademacher, _rademacher_log_prob
    ),
    "log_normal": _of_location_and_scale(_normal, _log_normal, _log_normal_log_prob),
    "inverse_gamma": Reparameterization(
        ("concentration", "scale"), ("concentration", "scale"), _gamma, _inverse_gamma,
        _inverse_gamma_log_prob,
    ),
}  # fmt: skip
