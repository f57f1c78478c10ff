"""Distributions as a noise without parameters and a transform with them: z = g(ε, θ).

The gradient of E f(z) is then the mean of ∇_θ f(g(ε, θ)) (Xu 2019, "Other re-parameterizations").
The noise of the inverse gamma is itself a function of the concentration, through which torch
differentiates implicitly.

    z = sample("laplace", location, scale, shape=(1000,), generator=generator)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from extremax.discrete.checks import check_finite, check_floating

Shape = tuple[int, ...]
_LEAST = 2.0**-54


@dataclass(frozen=True)
class Reparameterisation:
    """noise: numbers of a shape, like the parameters; transform: the noise and parameters to z.

    parameters:  their names, in order.
    positive:    which of them must be > 0.
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
    """Draws of ``shape`` for each of the parameters, which broadcast; differentiable in them."""
    if name not in REPARAMETERISATIONS:
        raise ValueError(f"name must be one of {', '.join(REPARAMETERISATIONS)}, got {name!r}")
    this = REPARAMETERISATIONS[name]
    if len(parameters) != len(this.parameters):
        raise ValueError(
            f"{name} has the parameters ({', '.join(this.parameters)}), got {len(parameters)}"
        )
    for label, value in zip(this.parameters, parameters, strict=True):
        check_floating(value, label)
        check_finite(value, label)
        if label in this.positive and not bool((value > 0).all()):
            raise ValueError(f"{label} must be > 0, got {float(value.min())}")
    return this.transform(this.noise(tuple(shape), generator, *parameters), *parameters)


def _uniform(shape: Shape, generator: torch.Generator | None, *parameters: Tensor) -> Tensor:
    """Uniform in the open interval (0, 1), in float64: float32 would cut the tails short."""
    full = shape + torch.broadcast_shapes(*(p.shape for p in parameters))
    device = parameters[0].device
    u = torch.rand(full, generator=generator, dtype=torch.float64, device=device)
    return u.clamp_(min=_LEAST)


def _normal(shape: Shape, generator: torch.Generator | None, *parameters: Tensor) -> Tensor:
    full = shape + torch.broadcast_shapes(*(p.shape for p in parameters))
    like = parameters[0]
    return torch.randn(full, generator=generator, dtype=like.dtype, device=like.device)


def _normal_vector(
    shape: Shape, generator: torch.Generator | None, location: Tensor, factor: Tensor
) -> Tensor:
    if location.ndim == 0 or factor.ndim < 2 or factor.shape[-2] != location.shape[-1]:
        raise ValueError(
            f"factor must be (..., d, r) for a location (..., d), got {tuple(factor.shape)} and "
            f"{tuple(location.shape)}"
        )
    batch = torch.broadcast_shapes(location.shape[:-1], factor.shape[:-2])
    full = (*shape, *batch, factor.shape[-1])
    return torch.randn(full, generator=generator, dtype=location.dtype, device=location.device)


def _coin(shape: Shape, generator: torch.Generator | None, probability: Tensor) -> Tensor:
    if bool((probability > 1).any()):
        raise ValueError(f"probability must be at most 1, got {float(probability.max())}")
    chance = probability.detach().expand(shape + probability.shape)
    return torch.bernoulli(chance, generator=generator)


def _gamma(
    shape: Shape, generator: torch.Generator | None, concentration: Tensor, scale: Tensor
) -> Tensor:
    full = shape + torch.broadcast_shapes(concentration.shape, scale.shape)
    drawn = torch._standard_gamma(concentration.expand(full), generator=generator)
    return drawn.clamp(min=torch.finfo(drawn.dtype).tiny)


def _laplace(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    # With centred = u − ½: −sgn(centred) ln(1 − 2|centred|), by the smaller of u and 1 − u.
    centred = u - 0.5
    tail = torch.log(2.0 * torch.minimum(u, 1.0 - u))
    return location - scale * (centred.sign() * tail).to(location.dtype)


REPARAMETERISATIONS: dict[str, Reparameterisation] = {
    # −ln u / rate.
    "exponential": Reparameterisation(
        ("rate",), ("rate",), _uniform, lambda u, rate: -u.log().to(rate.dtype) / rate
    ),
    # μ + s tan π(u − ½).
    "cauchy": Reparameterisation(
        ("location", "scale"),
        ("scale",),
        _uniform,
        lambda u, location, scale: (
            location + scale * torch.tan(math.pi * (u - 0.5)).to(location.dtype)
        ),
    ),
    # μ − s sgn(u − ½) ln(1 − 2|u − ½|).
    "laplace": Reparameterisation(("location", "scale"), ("scale",), _uniform, _laplace),
    # μ + sε.
    "gaussian": Reparameterisation(
        ("location", "scale"),
        ("scale",),
        _normal,
        lambda normal, location, scale: location + scale * normal,
    ),
    # μ + Rε has the covariance RRᵀ.
    "multivariate_gaussian": Reparameterisation(
        ("location", "factor"),
        (),
        _normal_vector,
        lambda normal, location, factor: location + (factor @ normal.unsqueeze(-1)).squeeze(-1),
    ),
    # 2 Bern(p) − 1, with p = ½ for the Rademacher proper; discrete, so that p gets no gradient.
    "rademacher": Reparameterisation(
        ("probability",), ("probability",), _coin, lambda coin, probability: 2.0 * coin - 1.0
    ),
    # exp(μ + sε).
    "log_normal": Reparameterisation(
        ("location", "scale"),
        ("scale",),
        _normal,
        lambda normal, location, scale: torch.exp(location + scale * normal),
    ),
    # scale / Gamma(k, 1).
    "inverse_gamma": Reparameterisation(
        ("concentration", "scale"),
        ("concentration", "scale"),
        _gamma,
        lambda gamma, concentration, scale: scale / gamma,
    ),
}
