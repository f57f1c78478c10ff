"""Logistic noise: the binary case, where one logistic number replaces two Gumbels.

The difference of two Gumbels is logistic. z = logit θ + logit u, b = 1 if z > 0, has P(b = 1) = θ
(Xu 2019, "Logistic distribution").
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid

from extremax.tensor_checks import check_logits, check_shape

_MIN_UNIFORM = 2.0**-54


def open_uniform(
    shape: tuple[int, ...], generator: Generator | None, device: torch.device | str | None
) -> Tensor:
    """Draw from the open interval (0, 1) in float64; float32 would cut off the tails."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
    return uniform.clamp_(min=_MIN_UNIFORM)


def logistic(
    shape: tuple[int, ...],
    generator: Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw standard logistic numbers log u − log(1 − u), always finite.

    They are drawn in float64 and then converted to ``dtype``, as in `gumbel`.
    """
    return torch.logit(open_uniform(shape, generator, device)).to(dtype)


def logistic_posterior(
    logits: Tensor, chosen: Tensor, generator: Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """Draw z = logit θ + logit u given b = ``chosen``.

        z̃ = logit θ + logit v',   v' = v(1 − θ) if b = 0 else vθ + 1 − θ

    (Tucker et al. 2017). With s = 2b − 1 and the noise L = logit v, z̃ = s log(1 + e^{sL}/P(1 − b)),
    which stays accurate where θ rounds to 0 or 1. Differentiable in the logits for fixed noise.

    chosen:  0 or 1, in the shape of the logits.
    noise:   L, in the shape of the logits; drawn if None.
    """
    check_logits(logits)
    sign = _sign(chosen, logits)
    if noise is None:
        noise = logistic(logits.shape, generator, logits.dtype, logits.device)
    check_shape(noise, "noise", logits.shape, "logits")
    exponent = sign * noise - logsigmoid(-sign * logits)
    return sign * torch.logaddexp(exponent, torch.zeros_like(exponent))


def logistic_posterior_noise(logits: Tensor, z: Tensor, chosen: Tensor) -> Tensor:
    """Invert `logistic_posterior`: the noise that gives z, which is > 0 where ``chosen`` is 1.

    Given b, the noise is independent of b, as in `gumbel_posterior_noise`.
    """
    check_shape(z, "z", logits.shape, "logits")
    sign = _sign(chosen, logits)
    size = (sign * z).clamp(min=torch.finfo(z.dtype).tiny)
    # log(e^size − 1) without overflow.
    return sign * (size + torch.log(-torch.expm1(-size)) + logsigmoid(-sign * logits))


def _sign(chosen: Tensor, logits: Tensor) -> Tensor:
    """−1 where ``chosen`` is 0, +1 where it is 1."""
    check_shape(chosen, "chosen", logits.shape, "logits")
    if not bool(((chosen == 0) | (chosen == 1)).all()):
        raise ValueError("chosen must be 0 or 1 everywhere")
    return 2.0 * chosen.to(logits.dtype) - 1.0
