"""Gumbel noise: sampling from a softmax by an argmax, and the posterior given the argmax.

G = −log(−log U) has the distribution function exp(−e^{−g}). With z = log p + G,

    argmax z ~ p                                                (Xu 2019, "Gumbel-max trick"),
    z_b | b = argmax is standard Gumbel, independent of b,
    z_i | b, z_b is Gumbel at log p_i, truncated at z_b         (Maddison et al. 2014, A* sampling).

The last slide of Xu 2019 on the posterior divides both log v_i and log v_b by p_i; only log v_i
must be divided.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from extremax.tensor_checks import (
    check_classes,
    check_count,
    check_floating,
    check_logits,
    check_shape,
)

# Uniforms have 53 bits. An exponential of exactly 0 would give an infinite Gumbel.
_MIN_EXPONENTIAL = 2.0**-54


def gumbel(
    shape: tuple[int, ...],
    generator: Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw standard Gumbels −log(−log U), always finite.

    They are drawn in float64 and then converted to ``dtype``: with the 24 bits of a float32 U the
    upper tail would end at 16.6, which the largest of 10⁶ Gumbels exceeds in 6% of all rows.
    """
    exponential = torch.empty(shape, dtype=torch.float64, device=device)
    exponential.exponential_(generator=generator).clamp_(min=_MIN_EXPONENTIAL)
    return exponential.log_().neg_().to(dtype)


def gumbel_max(logits: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw one class per row of logits (..., C) from their softmax: argmax(ξ + G), shape (...).

    A class with a logit of -inf is never drawn.
    """
    return perturb(logits, generator).argmax(-1)


def gumbel_top_k(logits: Tensor, k: int, generator: Generator | None = None) -> Tensor:
    """Draw k different classes per row, (..., k), in order and without replacement.

    Returns the k largest of ξ + G: P(i_1..i_k) = Π_j p_{i_j}/(1 − p_{i_1} − .. − p_{i_{j−1}})
    (Kool et al. 2019).
    """
    check_count(k, "k")
    z = perturb(logits, generator)
    possible = int((z > -torch.inf).sum(-1).min())
    if k > possible:
        raise ValueError(f"k must be at most the number of possible classes, {possible}, got {k}")
    return z.topk(k, -1).indices


def perturb(logits: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw z = log p + G, differentiable in the logits."""
    check_logits(logits, impossible=True)
    log_p = logits.log_softmax(-1)
    return log_p + gumbel(logits.shape, generator, logits.dtype, logits.device)


def truncated_gumbel(location: Tensor, upper: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw Gumbels at ``location``, given that they are at most ``upper``; the two broadcast.

    CDF⁻¹(v·CDF(upper)) = −log(e^{−upper} + e^{−(location + G)}) (Maddison et al. 2014).
    """
    for name, values in (("location", location), ("upper", upper)):
        check_floating(values, name)
        if bool(torch.isnan(values).any()):
            raise ValueError(f"{name} must not be NaN; check the code that computed it")
    shape = torch.broadcast_shapes(location.shape, upper.shape)
    dtype = torch.promote_types(location.dtype, upper.dtype)
    return _truncate(location + gumbel(shape, generator, dtype, location.device), upper)


def gumbel_posterior(
    logits: Tensor, chosen: Tensor, generator: Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """Draw z = log p + G given that its argmax is ``chosen``.

        z̃_b = −log(−log v_b),   z̃_i = −log(−log v_i/p_i − log v_b)  for i ≠ b

    (Xu 2019; Tucker et al. 2017). Differentiable in the logits for fixed noise.

    logits:  (..., C).
    chosen:  (...), the class b of each row.
    noise:   −log(−log v), in the shape of the logits; drawn if None.
    """
    index = _class_index(logits, chosen)
    impossible = logits.gather(-1, index) == -torch.inf
    if bool(impossible.any()):
        raise ValueError(
            f"chosen has class {int(index[impossible][0])} where its logit is -inf: the class "
            "cannot be drawn"
        )
    if noise is None:
        noise = gumbel(logits.shape, generator, logits.dtype, logits.device)
    check_shape(noise, "noise", logits.shape, "logits")
    top = noise.gather(-1, index)
    others = _truncate(logits.log_softmax(-1) + noise, top)
    # Rounding may lift another class to exactly the value of the chosen class.
    below = torch.nextafter(top, torch.full_like(top, -torch.inf))
    return torch.where(others < top, others, below).scatter(-1, index, top)


def gumbel_posterior_noise(logits: Tensor, z: Tensor, chosen: Tensor) -> Tensor:
    """Invert `gumbel_posterior`: the noise that gives z, whose argmax is ``chosen``.

    −log(−log v_i) = z_i − log p_i − log(1 − e^{z_i − z_b}). Given b, the noise is independent of b,
    so z and z̃ may share their random numbers (Tucker et al. 2017, "common random numbers"). For a
    class with a logit of -inf any noise gives the same z; it gets 0.
    """
    index = _class_index(logits, chosen)
    check_logits(z, "z", impossible=True)
    check_shape(z, "z", logits.shape, "logits")
    top = z.gather(-1, index)
    if bool((z > top).any()):
        raise ValueError("chosen must be the argmax of z in every row")
    # A tie with the chosen class would need infinite noise; the largest float stands in for it.
    largest = torch.finfo(z.dtype).max
    impossible = logits == -torch.inf
    log_p = logits.log_softmax(-1).masked_fill(impossible, 0.0)
    others = z - log_p - torch.log(-torch.expm1(z - top))
    return others.clamp(-largest, largest).masked_fill(impossible, 0.0).scatter(-1, index, top)


def _class_index(logits: Tensor, chosen: Tensor) -> Tensor:
    """Check one class per row of logits, and return the classes as an index into the logits."""
    check_logits(logits, impossible=True)
    check_classes(chosen, "chosen", logits.shape[-1])
    check_shape(chosen, "chosen", logits.shape[:-1], "logits without their last dimension")
    return chosen.unsqueeze(-1)


def _truncate(values: Tensor, upper: Tensor) -> Tensor:
    """−log(e^{−values} + e^{−upper}): turns Gumbels into Gumbels truncated at ``upper``."""
    # The gradient of logaddexp at -inf is NaN.
    impossible = values == -torch.inf
    truncated = -torch.logaddexp(-values.masked_fill(impossible, 0.0), -upper)
    return truncated.masked_fill(impossible, -torch.inf)
