"""Exact softmax formulas, the reference for every approximation in this package.

Tensors have any leading batch shape and classes in the last dimension, in float32 or float64.
A score of -inf means that the class cannot occur: its probability is 0. If every score is -inf, or
any score is +inf, no distribution exists and the probabilities are NaN.

Sources: Xu 2019, "Story of Softmax"; Waite 2020, "Calculating textbook softmax derivatives";
Tian 2016, "Softmax". Tian maximizes the log-likelihood, so his gradient has the other sign.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_sum_exp(scores: Tensor) -> Tensor:
    """LSE(ξ) = max + log Σ_i exp(ξ_i − max), with ∂LSE/∂ξ_i = p_i (Xu 2019, "LogSumExp").

    max ≤ LSE ≤ max + log n, and LSE(ξ + c) = LSE(ξ) + c. The result is -inf if all scores are
    -inf, and +inf if any score is +inf; in both cases the gradient is NaN.
    """
    # torch.logsumexp alone returns the right value, but its gradient exp(ξ − LSE) inherits the
    # rounding error of LSE: at scores of 1e4 in float32, probabilities are off by up to 5e-4.
    highest = scores.detach().amax(dim=-1, keepdim=True)
    shift = torch.where(highest.isfinite(), highest, 0.0)
    return shift.squeeze(-1) + torch.logsumexp(scores - shift, dim=-1)


def log_softmax(scores: Tensor) -> Tensor:
    """log p_i = ξ_i − LSE(ξ) (Tian 2016, eq. 1)."""
    return torch.log_softmax(scores, dim=-1)


def softmax(scores: Tensor) -> Tensor:
    """p_i = exp(ξ_i) / Σ_j exp(ξ_j), invariant to ξ + c (Tian 2016, eq. 1; Xu 2019)."""
    return torch.softmax(scores, dim=-1)


def sigmoid(scores: Tensor) -> Tensor:
    """σ(z) = 1 / (1 + exp(−z)); for two classes p_1 = σ(ξ_1 − ξ_2) (Xu 2019)."""
    return torch.sigmoid(scores)


def logit(probabilities: Tensor) -> Tensor:
    """logit(p) = log(p / (1 − p)), the inverse of the sigmoid (Xu 2019, "What is Logit?").

    Returns -inf at 0, +inf at 1 and NaN outside [0, 1].
    """
    return torch.logit(probabilities)


def log_sigmoid(scores: Tensor) -> Tensor:
    """log σ(z) = −log(1 + exp(−z)), finite where σ(z) itself underflows (Xu 2019)."""
    return torch.nn.functional.logsigmoid(scores)


def log_complement(log_p: Tensor) -> Tensor:
    """log(1 − p) from log p, computed in float64 and in the dtype of log p.

    If p has been rounded to 1 or above, 1 − p counts as 1e-12, so that the result is finite.
    """
    return torch.log(-torch.expm1(log_p.double().clamp(max=-1e-12))).to(log_p.dtype)


def softmax_jacobian(scores: Tensor) -> Tensor:
    """∂p_i/∂ξ_j = p_i (δ_ij − p_j), of shape (..., n, n) (Tian 2016, eq. 7)."""
    p = softmax(scores)
    delta = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    return p.unsqueeze(-1) * (delta - p.unsqueeze(-2))


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """J = −Σ log p_y over all examples, a float64 scalar (Waite 2020, section 2)."""
    _check_one_label_per_row(scores, labels)
    # Not LSE − ξ_y, which for large scores is the difference of two large rounded numbers.
    log_p = log_softmax(scores).gather(-1, labels.unsqueeze(-1))
    return -log_p.sum(dtype=torch.float64)


def cross_entropy_gradient(scores: Tensor, labels: Tensor) -> Tensor:
    """∂J/∂ξ = s − y, probabilities minus one-hot labels (Waite 2020, section 3)."""
    _check_one_label_per_row(scores, labels)
    p = softmax(scores)
    return p.scatter_add(-1, labels.unsqueeze(-1), -torch.ones_like(p[..., :1]))


def weight_gradient(features: Tensor, probabilities: Tensor, targets: Tensor) -> Tensor:
    """∂J/∂W = Σ x ⊗ (s − y), one row per class (Waite 2020, section 3).

    targets:  y, one-hot rows or any distributions, in the shape of ``probabilities``.
    """
    # Labels would broadcast without an error if the batch size equaled the number of classes.
    if targets.shape != probabilities.shape:
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}; expected {tuple(probabilities.shape)}, "
            "the shape of probabilities. Pass one-hot rows, not labels"
        )
    return torch.einsum("...c,...k->ck", probabilities - targets, features)


def _check_one_label_per_row(scores: Tensor, labels: Tensor) -> None:
    # gather and scatter accept fewer labels than rows and would ignore the remaining rows.
    if labels.shape != scores.shape[:-1]:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}; expected {tuple(scores.shape[:-1])}, one "
            "label per row of scores"
        )
