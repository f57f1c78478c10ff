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
from torch import Tensor

from extremax.discrete.checks import check_finite, check_floating
from extremax.discrete.logistic import open_uniform

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
    name: str,
    *parameters: Tensor,
    shape: Shape = (),
    generator: torch.Generator | None = None,
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
        check_floating(value, label)
        check_finite(value, label)
        if label in entry.positive and not bool((value > 0).all()):
            raise ValueError(f"{label} must be > 0, got {float(value.min())}")
    return entry.transform(entry.noise(tuple(shape), generator, *parameters), *parameters)


def _uniform(shape: Shape, generator: torch.Generator | None, *parameters: Tensor) -> Tensor:
    full = shape + torch.broadcast_shapes(*(p.shape for p in parameters))
    return open_uniform(full, generator, parameters[0].device)


def _normal(shape: Shape, generator: torch.Generator | None, *parameters: Tensor) -> Tensor:
    full = shape + torch.broadcast_shapes(*(p.shape for p in parameters))
    like = parameters[0]
    return torch.randn(full, generator=generator, dtype=like.dtype, device=like.device)


def _normal_vector(
    shape: Shape, generator: torch.Generator | None, location: Tensor, factor: Tensor
) -> Tensor:
    if location.ndim == 0 or factor.ndim < 2 or factor.shape[-2] != location.shape[-1]:
        raise ValueError(
            f"factor must be (..., d, r) for location (..., d), got {tuple(factor.shape)} and "
            f"{tuple(location.shape)}"
        )
    batch = torch.broadcast_shapes(location.shape[:-1], factor.shape[:-2])
    full = (*shape, *batch, factor.shape[-1])
    return torch.randn(full, generator=generator, dtype=location.dtype, device=location.device)


def _coin(shape: Shape, generator: torch.Generator | None, probability: Tensor) -> Tensor:
    if bool((probability > 1).any()):
        raise ValueError(f"probability must be at most 1, got {float(probability.max())}")
    expanded = probability.detach().expand(shape + probability.shape)
    return torch.bernoulli(expanded, generator=generator)


def _gamma(
    shape: Shape, generator: torch.Generator | None, concentration: Tensor, scale: Tensor
) -> Tensor:
    full = shape + torch.broadcast_shapes(concentration.shape, scale.shape)
    drawn = torch._standard_gamma(concentration.expand(full), generator=generator)
    return drawn.clamp(min=torch.finfo(drawn.dtype).tiny)


def _laplace(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    # ln(1 − 2|u − ½|) = ln(2 min(u, 1 − u)), which is accurate in both tails.
    tail = torch.log(2.0 * torch.minimum(u, 1.0 - u))
    return location - scale * ((u - 0.5).sign() * tail).to(location.dtype)


REPARAMETERIZATIONS: dict[str, Reparameterization] = {
    # −ln u / rate.
    "exponential": Reparameterization(
        ("rate",), ("rate",), _uniform, lambda u, rate: -u.log().to(rate.dtype) / rate
    ),
    # μ + s tan π(u − ½).
    "cauchy": Reparameterization(
        ("location", "scale"),
        ("scale",),
        _uniform,
        lambda u, location, scale: (
            location + scale * torch.tan(math.pi * (u - 0.5)).to(location.dtype)
        ),
    ),
    # μ − s sgn(u − ½) ln(1 − 2|u − ½|).
    "laplace": Reparameterization(("location", "scale"), ("scale",), _uniform, _laplace),
    # μ + sε.
    "gaussian": Reparameterization(
        ("location", "scale"),
        ("scale",),
        _normal,
        lambda normal, location, scale: location + scale * normal,
    ),
    # μ + Rε, with covariance RRᵀ.
    "multivariate_gaussian": Reparameterization(
        ("location", "factor"),
        (),
        _normal_vector,
        lambda normal, location, factor: location + (factor @ normal.unsqueeze(-1)).squeeze(-1),
    ),
    # 2 Bern(p) − 1; p = ½ is the Rademacher distribution. Discrete, so p gets no gradient.
    "rademacher": Reparameterization(
        ("probability",), ("probability",), _coin, lambda coin, probability: 2.0 * coin - 1.0
    ),
    # exp(μ + sε).
    "log_normal": Reparameterization(
        ("location", "scale"),
        ("scale",),
        _normal,
        lambda normal, location, scale: torch.exp(location + scale * normal),
    ),
    # scale / Gamma(k, 1).
    "inverse_gamma": Reparameterization(
        ("concentration", "scale"),
        ("concentration", "scale"),
        _gamma,
        lambda gamma, concentration, scale: scale / gamma,
    ),
}
