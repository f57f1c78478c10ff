"""Inner loops in plain torch: slow, short, and the reference that the kernels must match.

Each function works in the dtype of its arguments, so that tests can compare in float64.
"""

from __future__ import annotations

from torch import Tensor, arange, empty, float64, int64, zeros, zeros_like
from torch.nn.functional import logsigmoid


def score_pairs(
    weight: Tensor, bias: Tensor, features: Tensor, classes: Tensor, scale: float
) -> Tensor:
    """ξ[i, j] = scale · weight[classes[i, j]]·features[i] + bias[classes[i, j]]."""
    return scale * (weight[classes] * features[:, None, :]).sum(-1) + bias[classes]


def adagrad_step(
    weight: Tensor,
    bias: Tensor,
    weight_acc: Tensor,
    bias_acc: Tensor,
    features: Tensor,
    classes: Tensor,
    gradient: Tensor,
    scale: float,
    learning_rate: float,
) -> None:
    """Update every class in the batch, in place: A += G², θ −= lr G / √A. With one accumulator per
    row, weight_acc (C,), A += mean of G².

    G is summed over all pairs of a class before it is squared: a class that occurs twice takes one
    step, not two.

    gradient:  ∂loss/∂ξ[i, j] of the pairs (example i, class classes[i, j]).
    """
    flat_classes, flat_gradient = classes.reshape(-1), gradient.reshape(-1)
    example = arange(len(features)).repeat_interleave(classes.shape[1])
    weight_gradient = zeros_like(weight).index_add(
        0, flat_classes, scale * flat_gradient[:, None] * features[example]
    )
    bias_gradient = zeros_like(bias).index_add(0, flat_classes, flat_gradient)
    touched = flat_classes.unique()
    for parameter, accumulator, total in (
        (weight, weight_acc, weight_gradient[touched]),
        (bias, bias_acc, bias_gradient[touched]),
    ):
        per_row = accumulator.ndim < parameter.ndim
        accumulator[touched] += (total**2).mean(1) if per_row else total**2
        root = accumulator[touched].sqrt()
        parameter[touched] -= learning_rate * total / (root[:, None] if per_row else root)


def tree_log_prob_all(nodes: Tensor, order: Tensor, z: Tensor) -> Tensor:
    """log q of every class, (n, C) float64, by descending every branch from the root."""
    nodes, z = nodes.double(), z.double()
    out = empty((len(z), len(order)), dtype=float64)

    def descend(lo: int, hi: int, log_q: Tensor) -> None:
        if hi - lo == 1:
            out[:, order[lo]] = log_q
            return
        mid = lo + (hi - lo) // 2
        activation = z @ nodes[mid, :-1] + nodes[mid, -1]
        descend(lo, mid, log_q + logsigmoid(-activation))
        descend(mid, hi, log_q + logsigmoid(activation))

    descend(0, len(order), zeros(len(z), dtype=float64))
    return out


def tree_sample(nodes: Tensor, order: Tensor, z: Tensor, uniform: Tensor) -> Tensor:
    """Draw (n, m) classes: at each level, go right if uniform[i, j, level] < σ(w·z + b)."""
    nodes, z = nodes.double(), z.double()
    labels = empty(uniform.shape[:2], dtype=int64)
    for i in range(len(z)):
        for j in range(uniform.shape[1]):
            lo, hi, level = 0, len(order), 0
            while hi - lo > 1:
                mid = lo + (hi - lo) // 2
                right = (z[i] @ nodes[mid, :-1] + nodes[mid, -1]).sigmoid()
                lo, hi = (mid, hi) if uniform[i, j, level] < right else (lo, mid)
                level += 1
            labels[i, j] = order[lo]
    return labels


def newton_objective(
    examples: Tensor, zeta: Tensor, weight: float, penalties: Tensor, theta: Tensor
) -> Tensor:
    """Objective that a node of the tree maximizes over θ = (w, b).

    L = weight · Σ log σ(ζ (w·z + b)) − ½ λ_w‖w‖² − ½ λ_b b², penalties = (λ_w, λ_b).

    zeta:  ±1 per example: the side of the node that its class is on.
    """
    w, b = theta[:-1], theta[-1]
    fit = logsigmoid(zeta * (examples @ w + b)).sum()
    return weight * fit - 0.5 * penalties[0] * (w @ w) - 0.5 * penalties[1] * b**2
