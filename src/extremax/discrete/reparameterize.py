"""Reparameterized distributions: z = g(ε, θ), with noise ε that does not depend on θ.

∇_θ E f(z) is then the mean of ∇_θ f(g(ε, θ)) (Xu 2019, "Other re-parameterizations"). An exception
is the inverse gamma, whose noise depends on the concentration; torch differentiates it implicitly.

    z = sample("laplace", location, scale, shape=(1000,), generator=generator)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

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
    """

    parameters: tuple[str, ...]
    positive: tuple[str, ...]
    noise: Callable[..., Tensor]
    transform: Callable[..., Tensor]


def sample(
    name: str, *parameters: Tensor, shape: Shape = (), generator: Generator | None = None
) -> Tensor:
    """Draw from a distribution of ``REPARAMETERIZATIONS``, differentiable in its parameters.

    The parameters broadcast; the result has the shape ``shape`` + their broadcast shape.
    """
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
    return entry.transform(entry.noise(tuple(shape), generator, *parameters), *parameters)


# Noises ---------------------------------------------------------------------------------------


def _full_shape(shape: Shape, *parameters: Tensor) -> Shape:
    return shape + torch.broadcast_shapes(*(parameter.shape for parameter in parameters))


def _uniform(shape: Shape, generator: Generator | None, *parameters: Tensor) -> Tensor:
    return open_uniform(_full_shape(shape, *parameters), generator, parameters[0].device)


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


_LOCATION_SCALE = (("location", "scale"), ("scale",))

REPARAMETERIZATIONS: dict[str, Reparameterization] = {
    "exponential": Reparameterization(("rate",), ("rate",), _uniform, _exponential),
    "cauchy": Reparameterization(*_LOCATION_SCALE, _uniform, _cauchy),
    "laplace": Reparameterization(*_LOCATION_SCALE, _uniform, _laplace),
    "gaussian": Reparameterization(*_LOCATION_SCALE, _normal, _gaussian),
    "multivariate_gaussian": Reparameterization(
        ("location", "factor"), (), _normal_vector, _multivariate_gaussian
    ),
    "rademacher": Reparameterization(("probability",), ("probability",), _coin, _rademacher),
    "log_normal": Reparameterization(*_LOCATION_SCALE, _normal, _log_normal),
    "inverse_gamma": Reparameterization(
        ("concentration", "scale"), ("concentration", "scale"), _gamma, _inverse_gamma
    ),
}
