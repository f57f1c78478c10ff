"""Exact facts about softmax: the formulas every approximation here is measured against.

Tensors have any leading batch shape and classes in the last dimension, in float32 or float64.
A score of -inf is a class that cannot occur: its probability is 0. Where no distribution
exists, with every score -inf or any score +inf, probabilities are NaN rather than a guess.

Sources: Xu 2019, "Story of Softmax"; Waite 2020, "Calculating textbook softmax derivatives";
Tian 2016, "Softmax". Tian maximises the log-likelihood, so his gradient has the other sign.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_sum_exp(scores: Tensor) -> Tensor:
    """LSE(ξ) = max + log Σ_i exp(ξ_i − max), with ∂LSE/∂ξ_i = p_i (Xu 2019, "LogSumExp").

    max ≤ LSE ≤ max + log n, and LSE(ξ + c) = LSE(ξ) + c. All scores -inf give -inf, any +inf
    gives +inf; in those two cases the value is the limit and the gradient is NaN.
    """
    # torch.logsumexp alone has the right value, but its gradient exp(ξ − LSE) inherits the
    # rounding of LSE: at scores of 1e4 in float32 probabilities are off by up to 5e-4.
    highest = scores.detach().amax(dim=-1, keepdim=True)
    shift = torch.where(highest.isfinite(), highest, 0.0)
    return shift.squeeze(-1) + torch.logsumexp(scores - shift, dim=-1)


def log_softmax(scores: Tensor) -> Tensor:
    """log p_i = ξ_i − LSE(ξ) (Tian 2016, eq. 1)."""
    return torch.log_softmax(scores, dim=-1)


def softmax(scores: Tensor) -> Tensor:
    """p_i = exp(ξ_i) / Σ_j exp(ξ_j), unchanged by ξ + c (Tian 2016, eq. 1; Xu 2019)."""
    return torch.softmax(scores, dim=-1)


def sigmoid(scores: Tensor) -> Tensor:
    """σ(z) = 1 / (1 + exp(−z)), so that with two classes p_1 = σ(ξ_1 − ξ_2) (Xu 2019)."""
    return torch.sigmoid(scores)


def logit(probabilities: Tensor) -> Tensor:
    """logit(p) = log(p / (1 − p)), the inverse of the sigmoid (Xu 2019, "What is Logit?").

    0 gives -inf, 1 gives +inf, and what is not a probability gives NaN.
    """
    return torch.logit(probabilities)


def log_sigmoid(scores: Tensor) -> Tensor:
    """log σ(z) = −log(1 + exp(−z)), about z where σ(z) itself would underflow (Xu 2019)."""
    return torch.nn.functional.logsigmoid(scores)


def softmax_jacobian(scores: Tensor) -> Tensor:
    """∂p_i/∂ξ_j = p_i (δ_ij − p_j), of shape (..., n, n) (Tian 2016, eq. 7)."""
    p = softmax(scores)
    delta = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    return p.unsqueeze(-1) * (delta - p.unsqueeze(-2))


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """J = −Σ log p_y over all examples, one float64 number (Waite 2020, section 2)."""
    _check_one_label_each(scores, labels)
    # Not LSE − ξ_y: for large scores that is the difference of two rounded large numbers.
    log_p = log_softmax(scores).gather(-1, labels.unsqueeze(-1))
    return -log_p.sum(dtype=torch.float64)


def cross_entropy_gradient(scores: Tensor, labels: Tensor) -> Tensor:
    """∂J/∂ξ = s − y: probabilities less the one-hot labels (Waite 2020, section 3)."""
    _check_one_label_each(scores, labels)
    p = softmax(scores)
    return p.scatter_add(-1, labels.unsqueeze(-1), -torch.ones_like(p[..., :1]))


def weight_gradient(features: Tensor, probabilities: Tensor, targets: Tensor) -> Tensor:
    """∂J/∂W = Σ x ⊗ (s − y), a row for each class (Waite 2020, section 3).

    ``targets`` is y itself, one-hot or any distribution, in the shape of ``probabilities``.
    """
    # Labels instead of one-hot rows would broadcast silently when a batch is as long as a row.
    if targets.shape != probabilities.shape:
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, probabilities "
            f"{tuple(probabilities.shape)}; give one-hot rows, not labels"
        )
    return torch.einsum("...c,...k->ck", probabilities - targets, features)


def _check_one_label_each(scores: Tensor, labels: Tensor) -> None:
    # gather and scatter accept fewer labels than rows, and would leave the rest out in silence.
    if labels.shape != scores.shape[:-1]:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}, scores {tuple(scores.shape)}; "
            f"expected one label for each row of scores, shape {tuple(scores.shape[:-1])}"
        )
