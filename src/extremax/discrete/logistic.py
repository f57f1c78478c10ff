"""The binary case: a difference of two Gumbels is logistic, and one number does for two.

z = logit θ + logit u, b = 1 if z > 0, has P(b = 1) = θ (Xu 2019, "Logistic distribution").
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from extremax.discrete.checks import check_logits, check_shape

_LEAST = 2.0**-54


def logistic(
    shape: tuple[int, ...] | torch.Size,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Standard logistic numbers log u − log(1 − u), always finite; drawn in float64, as `gumbel`
    does."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
    return torch.logit(uniform.clamp_(min=_LEAST)).to(dtype)


def logistic_posterior(
    logits: Tensor,
    chosen: Tensor,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """z = logit θ + logit u given b = ``chosen``, 0 or 1, in the shape of the logits:

        z̃ = logit θ + logit v',   v' = v(1 − θ) if b = 0 else vθ + 1 − θ

    (Tucker et al. 2017). With s = 2b − 1 and the noise L = logit v that is
    s log(1 + e^{sL}/P(b̄)), which stays accurate where θ is 0 or 1 to rounding. ``noise`` is drawn
    if not given; differentiable in the logits with the noise held.
    """
    check_logits(logits)
    sign = _sign(chosen, logits)
    if noise is None:
        noise = logistic(logits.shape, generator, logits.dtype, logits.device)
    check_shape(noise, logits.shape, "noise", "logits")
    away = sign * noise - logsigmoid(-sign * logits)
    return sign * torch.logaddexp(away, torch.zeros_like(away))


def logistic_posterior_noise(logits: Tensor, z: Tensor, chosen: Tensor) -> Tensor:
    """The noise with which `logistic_posterior` gives just this z, whose sign is ``chosen``'s.

    Given b it is independent of it, as with `gumbel_posterior_noise`.
    """
    check_shape(z, logits.shape, "z", "logits")
    sign = _sign(chosen, logits)
    size = (sign * z).clamp(min=torch.finfo(z.dtype).tiny)
    # log(e^size − 1) without overflow.
    return sign * (size + torch.log(-torch.expm1(-size)) + logsigmoid(-sign * logits))


def _sign(chosen: Tensor, logits: Tensor) -> Tensor:
    check_shape(chosen, logits.shape, "chosen", "logits")
    if not bool(((chosen == 0) | (chosen == 1)).all()):
        raise ValueError("chosen must be 0 or 1 everywhere")
    return 2.0 * chosen.to(logits.dtype) - 1.0
