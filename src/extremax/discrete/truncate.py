"""Truncated distributions by inverting the distribution function F.

Given lower ≤ z ≤ upper, F(z) is uniform between F(lower) and F(upper), so

    z = F⁻¹((1 − u) F(lower) + u F(upper)),    u uniform,

which is differentiable in the parameters and the bounds. F is kept on the log scale, and draws from
the upper half use 1 − F, so that bounds far in a tail neither round to 1 nor underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid
from torch.special import log_ndtr, ndtri

from extremax.discrete.logistic import open_uniform
from extremax.discrete.reparameterize import checked_entry
from extremax.tensor_checks import check_finite

# Below this log F, F itself would underflow in float64.
_SMALLEST_LOG = -700.0
_NEWTON_STEPS = 6


class _Standard(NamedTuple):
    """A distribution of location 0 and scale 1.

    quantile:  z from (u, lower, upper).
    log_mass:  log(F(upper) − F(lower)).
    """

    quantile: Callable[[Tensor, Tensor, Tensor], Tensor]
    log_mass: Callable[[Tensor, Tensor], Tensor]


def sample_truncated(
    name: str,
    *parameters: Tensor,
    lower: Tensor | float = -math.inf,
    upper: Tensor | float = math.inf,
    shape: tuple[int, ...] = (),
    generator: Generator | None = None,
) -> Tensor:
    """Draw "gaussian", "logistic" or "exponential" numbers given that they are within bounds.

    Differentiable in the parameters, which are those of `sample`, and in the bounds. Parameters
    and bounds broadcast; the result has the shape ``shape`` + their broadcast shape.
    """
    standard, location, scale, bounds = _read(name, parameters, lower, upper)
    low, high = (_standardize(bound, location, scale) for bound in bounds)
    full = torch.broadcast_shapes(low.shape, high.shape)
    uniform = open_uniform((*shape, *full), generator, parameters[0].device)
    z = location + scale * standard.quantile(uniform, low, high)
    # Rounding must not lead out of the bounds.
    dtype = parameters[0].dtype
    return z.to(dtype).clamp(*(bound.to(dtype) for bound in bounds))


def truncated_log_prob(
    name: str,
    z: Tensor,
    *parameters: Tensor,
    lower: Tensor | float = -math.inf,
    upper: Tensor | float = math.inf,
) -> Tensor:
    """Log-density of `sample_truncated`: log p(z) − log(F(upper) − F(lower)), −∞ out of bounds."""
    standard, location, scale, bounds = _read(name, parameters, lower, upper)
    check_finite(z, "z")
    low, high = (_standardize(bound, location, scale) for bound in bounds)
    inside = (z >= bounds[0]) & (z <= bounds[1])
    log_p = checked_entry(name, parameters).log_prob(z, *parameters)
    return torch.where(inside, log_p - standard.log_mass(low, high).to(log_p.dtype), -torch.inf)


def _read(
    name: str, parameters: tuple[Tensor, ...], lower: Tensor | float, upper: Tensor | float
) -> tuple[_Standard, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """The standard distribution, location and scale, and the bounds, checked, in float64."""
    if name not in _STANDARDS:
        raise ValueError(f"name must be one of {', '.join(_STANDARDS)}, got {name!r}")
    checked_entry(name, parameters)
    values = [parameter.double() for parameter in parameters]
    device = parameters[0].device
    low, high = (torch.as_tensor(b, dtype=torch.float64, device=device) for b in (lower, upper))
    if name == "exponential":
        location, scale = torch.zeros_like(values[0]), 1.0 / values[0]
        low = low.clamp(min=0.0)
    else:
        location, scale = values
    if not bool((low < high).all()):
        raise ValueError(
            f"lower must be below upper, and the {name} distribution must reach that far: got "
            f"lower = {lower} and upper = {upper}"
        )
    return _STANDARDS[name], location, scale, (low, high)


def _standardize(bound: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """(bound − location)/scale; infinite bounds stay as they are and give no gradient."""
    finite = bound.isfinite()
    standard = (torch.where(finite, bound, 0.0) - location) / scale
    return torch.where(finite, standard, bound)


# Symmetric distributions ----------------------------------------------------------------------


def _symmetric(
    log_cdf: Callable[[Tensor], Tensor], inverse: Callable[[Tensor], Tensor]
) -> _Standard:
    """log_cdf:  log F of finite numbers.
    inverse:  F⁻¹ of log F ≤ log ½."""

    def log_f(z: Tensor) -> Tensor:
        finite = z.isfinite()
        at_infinity = torch.where(z > 0, 0.0, -torch.inf).to(z.dtype)
        return torch.where(finite, log_cdf(torch.where(finite, z, 0.0)), at_infinity)

    def quantile(u: Tensor, low: Tensor, high: Tensor) -> Tensor:
        log_u, log_rest = u.log(), torch.log1p(-u)
        below = torch.logaddexp(log_rest + log_f(low), log_u + log_f(high))
        above = torch.logaddexp(log_rest + log_f(-low), log_u + log_f(-high))
        in_lower_half = below < above
        z = inverse(torch.where(in_lower_half, below, above))
        return torch.where(in_lower_half, z, -z)

    def log_mass(low: Tensor, high: Tensor) -> Tensor:
        # The mirror image of an interval above the center has the same mass, without cancellation.
        low, high = torch.where(low > 0, -high, low), torch.where(low > 0, -low, high)
        log_high = log_f(high)
        return log_high + torch.log(-torch.expm1(log_f(low) - log_high))

    return _Standard(quantile, log_mass)


def _normal_quantile(log_p: Tensor) -> Tensor:
    """Φ⁻¹(e^{log_p}) for log_p ≤ log ½, by Newton's method on log Φ where e^{log_p} underflows."""

    def newton(z: Tensor, log_p: Tensor) -> Tensor:
        log_cdf = log_ndtr(z)
        slope = torch.exp(-0.5 * z.square() - 0.5 * math.log(2.0 * math.pi) - log_cdf)
        return z - (log_cdf - log_p) / slope

    with torch.no_grad():
        near = ndtri(log_p.clamp(min=_SMALLEST_LOG).exp())
        far = -torch.sqrt(-2.0 * log_p)
        for _ in range(_NEWTON_STEPS):
            far = newton(far, log_p)
        z = torch.where(log_p > _SMALLEST_LOG, near, far)
    # The derivative of this step by log_p is the derivative of the quantile, 1/slope.
    return newton(z, log_p)


def _logistic_quantile(log_p: Tensor) -> Tensor:
    return log_p - torch.log(-torch.expm1(log_p))


# The exponential distribution -----------------------------------------------------------------


def _exponential_quantile(u: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return low - torch.log1p(u * torch.expm1(low - high))


def _exponential_log_mass(low: Tensor, high: Tensor) -> Tensor:
    return torch.log(-torch.expm1(low - high)) - low


_STANDARDS: dict[str, _Standard] = {
    "gaussian": _symmetric(log_ndtr, _normal_quantile),
    "logistic": _symmetric(logsigmoid, _logistic_quantile),
    "exponential": _Standard(_exponential_quantile, _exponential_log_mass),
}
