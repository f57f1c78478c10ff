"""Relaxed samples: from the corners of the simplex into it, so that gradients can pass.

Maddison et al. 2017 (the Concrete distribution) and Jang et al. 2017 (Gumbel-softmax), the same
thing. As the temperature falls to 0 a relaxed sample becomes a one-hot one, and its gradient
becomes noise. Low temperatures underflow in y; densities are therefore given of log y, too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from extremax.discrete.checks import check_floating, check_logits, check_shape, check_temperature
from extremax.discrete.gumbel import perturbed
from extremax.discrete.logistic import logistic


def softmax_map(scores: Tensor, temperature: float | Tensor) -> Tensor:
    """softmax(ξ/τ) over the last dimension, an argmax as τ → 0 (Maddison et al. 2017)."""
    check_logits(scores, "scores", impossible=True)
    check_temperature(temperature)
    # An infinite score would make the gradient of the temperature 0 · ∞.
    impossible = scores == -torch.inf
    divided = scores.masked_fill(impossible, 0.0) / temperature
    return torch.softmax(divided.masked_fill(impossible, -torch.inf), -1)


def straight_through(soft: Tensor, hard: Tensor) -> Tensor:
    """``hard`` in value, ``soft`` in gradient (Bengio et al. 2013)."""
    check_shape(hard, soft.shape, "hard", "soft")
    # In this order the difference is zero, and the value that of ``hard`` to the last bit.
    return hard + (soft - soft.detach())


def one_hot(scores: Tensor) -> Tensor:
    """The largest of each row as a one-hot row, in the dtype of the scores."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def concrete(
    logits: Tensor,
    temperature: float | Tensor,
    hard: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Gumbel-softmax, softmax((ξ + G)/τ), in the shape of logits (..., C).

    With ``hard`` its one-hot argmax, a sample of softmax(ξ), with the gradient of the soft one.
    """
    check_logits(logits, impossible=True)
    z = perturbed(logits, generator)
    soft = softmax_map(z, temperature)
    return straight_through(soft, one_hot(z.detach())) if hard else soft


def binary_concrete(
    logits: Tensor,
    temperature: float | Tensor,
    hard: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """σ((l + logit u)/τ) for each logit; with ``hard`` 0 or 1 with the gradient of the soft one
    (Maddison et al. 2017)."""
    check_logits(logits)
    check_temperature(temperature)
    z = logits + logistic(logits.shape, generator, logits.dtype, logits.device)
    soft = torch.sigmoid(z / temperature)
    return straight_through(soft, (z.detach() > 0).to(soft.dtype)) if hard else soft


def log_concrete_log_prob(log_y: Tensor, logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Log-density of log y for Concrete y, (...):

        log (C−1)! + (C−1) log τ + Σ (ξ_i − τ log y_i) − C LSE(ξ − τ log y)

    (Maddison et al. 2017, ExpConcrete). Finite wherever log y is. The temperature is one for all
    rows, or (..., 1), one for each.
    """
    check_logits(logits)
    check_logits(log_y, "log_y")
    check_temperature(temperature)
    check_shape(log_y, logits.shape, "log_y", "logits")
    total = log_y.detach().logsumexp(-1)
    if bool((total.abs() > 1e-3).any()):
        raise ValueError("log_y must be logarithms of rows that sum to one; take log_softmax")
    n = logits.shape[-1]
    tau = torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device)
    if tau.ndim and tau.shape[-1] != 1:
        raise ValueError(
            "temperature must be one number or have shape (..., 1), one for each row, got "
            f"{tuple(tau.shape)}"
        )
    tilted = logits - tau * log_y
    constant = math.lgamma(n) + (n - 1) * (tau.squeeze(-1) if tau.ndim else tau).log()
    return constant + tilted.sum(-1) - n * tilted.logsumexp(-1)


def concrete_log_prob(y: Tensor, logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Log-density of Concrete y (..., C) on the simplex (Maddison et al. 2017)."""
    check_logits(logits)
    check_floating(y, "y")
    check_shape(y, logits.shape, "y", "logits")
    # One that rounds to 1 does no harm: its logarithm is near 0.
    _check_inside((y > 0) & (y <= 1), "log_concrete_log_prob")
    log_y = y.log()
    return log_concrete_log_prob(log_y, logits, temperature) - log_y.sum(-1)


def logit_binary_concrete_log_prob(
    x: Tensor, logits: Tensor, temperature: float | Tensor
) -> Tensor:
    """Log-density of x = logit y for binary Concrete y: log τ + r − 2 log(1 + e^r), r = l − τx
    (Maddison et al. 2017). Finite wherever x is."""
    check_logits(logits)
    check_logits(x, "x")
    check_shape(x, logits.shape, "x", "logits")
    check_temperature(temperature)
    r = logits - temperature * x
    log_temperature = torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device).log()
    return log_temperature + r - 2.0 * torch.logaddexp(r, torch.zeros_like(r))


def binary_concrete_log_prob(y: Tensor, logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Log-density of binary Concrete y in (0, 1), each number its own."""
    check_logits(logits)
    check_floating(y, "y")
    check_shape(y, logits.shape, "y", "logits")
    _check_inside((y > 0) & (y < 1), "logit_binary_concrete_log_prob")
    x = torch.logit(y)
    return logit_binary_concrete_log_prob(x, logits, temperature) - y.log() - torch.log1p(-y)


def _check_inside(inside: Tensor, instead: str) -> None:
    if not bool(inside.all()):
        raise ValueError(
            "y must lie strictly between 0 and 1, where the density is; samples at low temperature "
            f"round to the border: use {instead}"
        )
