"""Relaxed samples: points inside the simplex instead of its corners, so that gradients can pass.

The Concrete distribution (Maddison et al. 2017), also called Gumbel-softmax (Jang et al. 2017). As
the temperature falls to 0, a relaxed sample becomes one-hot and the variance of its gradient
diverges. At low temperatures y underflows, so the densities are available for log y, too.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from extremax.discrete.gumbel import perturb
from extremax.discrete.logistic import logistic
from extremax.tensor_checks import check_logits, check_shape, check_temperature


def softmax_map(scores: Tensor, temperature: float | Tensor) -> Tensor:
    """softmax(ξ/τ) over the last dimension, the argmax as τ → 0 (Maddison et al. 2017)."""
    check_logits(scores, "scores", impossible=True)
    check_temperature(temperature)
    # With an infinite score, the gradient on the temperature would be 0 · ∞.
    impossible = scores == -torch.inf
    divided = scores.masked_fill(impossible, 0.0) / temperature
    return torch.softmax(divided.masked_fill(impossible, -torch.inf), -1)


def straight_through(soft: Tensor, hard: Tensor) -> Tensor:
    """Return the value of ``hard`` with the gradient of ``soft`` (Bengio et al. 2013)."""
    check_shape(hard, "hard", soft.shape, "soft")
    # In this order the difference is exactly zero, and so the value is exactly that of ``hard``.
    return hard + (soft - soft.detach())


def one_hot_argmax(scores: Tensor) -> Tensor:
    """One-hot encoding of the argmax of each row, in the dtype of the scores."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def concrete(
    logits: Tensor,
    temperature: float | Tensor,
    hard: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Draw a Gumbel-softmax sample, softmax((ξ + G)/τ), in the shape of logits (..., C).

    hard:  return the one-hot argmax, a sample of softmax(ξ), with the gradient of the soft sample.
    """
    z = perturb(logits, generator)
    soft = softmax_map(z, temperature)
    return straight_through(soft, one_hot_argmax(z.detach())) if hard else soft


def binary_concrete(
    logits: Tensor,
    temperature: float | Tensor,
    hard: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Draw σ((l + logit u)/τ) for each logit l (Maddison et al. 2017).

    hard:  return 0 or 1, a Bernoulli sample, with the gradient of the soft sample.
    """
    check_logits(logits)
    check_temperature(temperature)
    z = logits + logistic(logits.shape, generator, logits.dtype, logits.device)
    soft = torch.sigmoid(z / temperature)
    return straight_through(soft, (z.detach() > 0).to(soft.dtype)) if hard else soft


def log_concrete_log_prob(log_y: Tensor, logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Log-density of log y for Concrete y, shape (...); finite wherever log y is finite.

        log (C−1)! + (C−1) log τ + Σ (ξ_i − τ log y_i) − C LSE(ξ − τ log y)

    (Maddison et al. 2017, ExpConcrete).

    temperature:  one number, or shape (..., 1) for one temperature per row.
    """
    _check_point(log_y, "log_y", logits, temperature)
    total = log_y.detach().logsumexp(-1)
    if bool((total.abs() > 1e-3).any()):
        raise ValueError("log_y must be logarithms of rows that sum to one; apply log_softmax")
    n = logits.shape[-1]
    tau = torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device)
    if tau.ndim and tau.shape[-1] != 1:
        raise ValueError(
            "temperature must be one number or have shape (..., 1), one per row, got shape "
            f"{tuple(tau.shape)}"
        )
    tilted = logits - tau * log_y
    constant = math.lgamma(n) + (n - 1) * (tau.squeeze(-1) if tau.ndim else tau).log()
    return constant + tilted.sum(-1) - n * tilted.logsumexp(-1)


def concrete_log_prob(y: Tensor, logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Log-density of Concrete y (..., C) on the simplex (Maddison et al. 2017)."""
    _check_point(y, "y", logits, temperature)
    # A y that rounds to 1 is harmless: its logarithm is close to 0 anyway.
    _check_interior((y > 0) & (y <= 1), "log_concrete_log_prob")
    log_y = y.log()
    return log_concrete_log_prob(log_y, logits, temperature) - log_y.sum(-1)


def logit_binary_concrete_log_prob(
    x: Tensor, logits: Tensor, temperature: float | Tensor
) -> Tensor:
    """Log-density of x = logit y for binary Concrete y; finite wherever x is finite.

    log τ + r − 2 log(1 + e^r), r = l − τx (Maddison et al. 2017).
    """
    _check_point(x, "x", logits, temperature)
    r = logits - temperature * x
    log_temperature = torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device).log()
    return log_temperature + r - 2.0 * torch.logaddexp(r, torch.zeros_like(r))


def binary_concrete_log_prob(y: Tensor, logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Log-density of each element of binary Concrete y in (0, 1) (Maddison et al. 2017)."""
    _check_point(y, "y", logits, temperature)
    _check_interior((y > 0) & (y < 1), "logit_binary_concrete_log_prob")
    x = torch.logit(y)
    return logit_binary_concrete_log_prob(x, logits, temperature) - y.log() - torch.log1p(-y)


def _check_point(point: Tensor, name: str, logits: Tensor, temperature: float | Tensor) -> None:
    """Check the arguments of a density."""
    check_logits(logits)
    check_logits(point, name)
    check_shape(point, name, logits.shape, "logits")
    check_temperature(temperature)


def _check_interior(interior: Tensor, alternative: str) -> None:
    if not bool(interior.all()):
        raise ValueError(
            "y must lie strictly between 0 and 1; samples at low temperatures round to 0 or 1, so "
            f"use {alternative} for them"
        )
