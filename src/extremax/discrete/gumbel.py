"""Gumbels: sampling from a softmax by an argmax, and what is known once the argmax is.

G = −log(−log U) has the distribution function exp(−e^{−g}). With z = log p + G

    argmax z ~ p                                                (Xu 2019, "Gumbel-max trick"),
    z_b | b = argmax is Gumbel again, whatever b was,
    z_i | b, z_b is Gumbel at log p_i, truncated at z_b         (Maddison et al. 2014, A* sampling).

The last slide of Xu 2019 on the posterior divides log v_b by p_i as well; only log v_i is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.discrete.checks import (
    check_classes,
    check_count,
    check_floating,
    check_logits,
    check_shape,
)

# Uniforms have 53 bits: an exponential of exactly 0 would give an infinite Gumbel.
_LEAST = 2.0**-54


def gumbel(
    shape: tuple[int, ...] | torch.Size,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Standard Gumbels −log(−log U), always finite.

    Drawn in float64 whatever the dtype: 24 bits of U end the upper tail at 16.6, which the largest
    of 10⁶ Gumbels passes in 6% of all rows.
    """
    exponential = torch.empty(shape, dtype=torch.float64, device=device)
    exponential.exponential_(generator=generator).clamp_(min=_LEAST)
    return exponential.log_().neg_().to(dtype)


def gumbel_max(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One class a row of logits (..., C), drawn from their softmax: argmax(ξ + G), shape (...).

    A logit of −inf is a class that is never drawn.
    """
    return perturbed(logits, generator).argmax(-1)


def gumbel_top_k(logits: Tensor, k: int, generator: torch.Generator | None = None) -> Tensor:
    """k different classes a row, (..., k), as drawn one after the other without replacement.

    The k largest of ξ + G, in order: P(i_1..i_k) = Π_j p_{i_j}/(1 − p_{i_1} − .. − p_{i_{j−1}})
    (Kool et al. 2019).
    """
    check_logits(logits, impossible=True)
    check_count(k, "k", 1)
    possible = int((logits > -torch.inf).sum(-1).min())
    if k > possible:
        raise ValueError(f"k must be at most the number of possible classes, {possible}, got {k}")
    return perturbed(logits, generator).topk(k, -1).indices


def perturbed(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """log p + G, differentiable in the logits."""
    check_logits(logits, impossible=True)
    log_p = logits.log_softmax(-1)
    return log_p + gumbel(logits.shape, generator, logits.dtype, logits.device)


def truncated_gumbel(
    location: Tensor, upper: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """A Gumbel at a location, given that it is at most ``upper``; the two broadcast.

    CDF⁻¹(v·CDF(upper)) = −log(e^{−upper} + e^{−(location + G)}) (Maddison et al. 2014).
    """
    for name, values in (("location", location), ("upper", upper)):
        check_floating(values, name)
        if bool(torch.isnan(values).any()):
            raise ValueError(f"{name} must not be NaN; look at what computed it")
    shape = torch.broadcast_shapes(location.shape, upper.shape)
    dtype = torch.promote_types(location.dtype, upper.dtype)
    return _below(location + gumbel(shape, generator, dtype, location.device), upper)


def gumbel_posterior(
    logits: Tensor,
    chosen: Tensor,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """z = log p + G given that ``chosen`` (...) is the argmax, for logits (..., C):

        z̃_b = −log(−log v_b),   z̃_i = −log(−log v_i/p_i − log v_b)  for i ≠ b

    (Xu 2019; Tucker et al. 2017). ``noise`` are −log(−log v), drawn if not given;
    differentiable in the logits with the noise held.
    """
    check_logits(logits, impossible=True)
    check_classes(chosen, logits.shape[-1], logits.shape[:-1], "chosen")
    impossible = logits.gather(-1, chosen.unsqueeze(-1)) == -torch.inf
    if bool(impossible.any()):
        bad = int(chosen[impossible.squeeze(-1)][0])
        raise ValueError(f"chosen has class {bad} where its logit is -inf: it cannot be drawn")
    if noise is None:
        noise = gumbel(logits.shape, generator, logits.dtype, logits.device)
    check_shape(noise, logits.shape, "noise", "logits")
    at = chosen.unsqueeze(-1)
    top = noise.gather(-1, at)
    others = _below(logits.log_softmax(-1) + noise, top)
    # Rounding may lift another class to the very value of the chosen one.
    below = torch.nextafter(top, torch.full_like(top, -torch.inf))
    return torch.where(others < top, others, below).scatter(-1, at, top)


def gumbel_posterior_noise(logits: Tensor, z: Tensor, chosen: Tensor) -> Tensor:
    """The noise with which `gumbel_posterior` gives just this z, whose argmax is ``chosen``.

    −log(−log v_i) = z_i − log p_i − log(1 − e^{z_i − z_b}). Given b it is independent of it: so z
    and z̃ may share their random numbers (Tucker et al. 2017, "common random numbers"). Of a class
    whose logit is −inf no noise can be told from another; it gets 0.
    """
    check_logits(logits, impossible=True)
    check_logits(z, "z", impossible=True)
    check_shape(z, logits.shape, "z", "logits")
    check_classes(chosen, logits.shape[-1], logits.shape[:-1], "chosen")
    at = chosen.unsqueeze(-1)
    top = z.gather(-1, at)
    if bool((z > top).any()):
        raise ValueError("chosen must be the argmax of z in every row")
    # A tie with the chosen class asks for noise without end: the largest there is stands for it.
    largest = torch.finfo(z.dtype).max
    impossible = logits == -torch.inf
    log_p = logits.log_softmax(-1).masked_fill(impossible, 0.0)
    others = z - log_p - torch.log(-torch.expm1(z - top))
    return others.clamp(-largest, largest).masked_fill(impossible, 0.0).scatter(-1, at, top)


def _below(values: Tensor, upper: Tensor) -> Tensor:
    """−log(e^{−values} + e^{−upper}): Gumbels at some location become Gumbels truncated there."""
    # At −inf the slope of logaddexp is NaN.
    impossible = values == -torch.inf
    below = -torch.logaddexp(-values.masked_fill(impossible, 0.0), -upper)
    return below.masked_fill(impossible, -torch.inf)
