"""Checks of a layer's and a loss's arguments.

Values are not checked while `torch.compile` traces, where they are not known; operators
(`extremax.nn.ops`) check theirs when they run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.tensor_checks import check_finite, check_floating, check_shape, check_tensor

# Rounding may push log q slightly above zero.
_ROUNDING = 1e-3


def check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def check_device(tensor: Tensor, name: str, other: Tensor, other_name: str) -> None:
    """Require a tensor on the device of another."""
    check_tensor(tensor, name)
    if tensor.device != other.device:
        raise ValueError(f"{name} is on {tensor.device} but {other_name} is on {other.device}")


def check_scores(scores: Tensor, log_q: Tensor, hits: Tensor | None) -> None:
    """Scores (..., 1 + m), log q that broadcasts to them, hits that broadcast to (..., m)."""
    for tensor, name in ((scores, "scores"), (log_q, "log_q")):
        check_floating(tensor, name)
        check_device(tensor, name, scores, "scores")
    if scores.ndim < 1 or scores.shape[-1] < 2:
        raise ValueError(
            "scores must have shape (..., 1 + m), the true class first and then m >= 1 drawn "
            f"classes, got {tuple(scores.shape)}"
        )
    _check_broadcast(log_q, "log_q", scores.shape)
    if log_q.numel() and float(log_q.detach().max()) > _ROUNDING:
        raise ValueError(
            f"log_q must hold log-probabilities <= 0, got {float(log_q.max()):.4g}; check that "
            "its sign is not flipped and that log m is not added"
        )
    if hits is not None:
        check_device(hits, "hits", scores, "scores")
        if hits.dtype != torch.bool:
            raise TypeError(f"hits must be bool, got {hits.dtype}")
        _check_broadcast(hits, "hits", (*scores.shape[:-1], scores.shape[-1] - 1))


def _check_broadcast(tensor: Tensor, name: str, shape: tuple[int, ...] | torch.Size) -> None:
    try:
        fits = torch.broadcast_shapes(tensor.shape, shape) == torch.Size(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must broadcast to {tuple(shape)}, got {tuple(tensor.shape)}")


def check_hidden(hidden: Tensor, weight: Tensor) -> None:
    """Floating-point hidden states with the width, type and device of the weight."""
    check_floating(hidden, "hidden")
    if hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden must have shape (..., {weight.shape[1]}) (in_features), "
            f"got {tuple(hidden.shape)}"
        )
    check_device(hidden, "hidden", weight, "the weight")
    # Under autocast, preceding layers return half precision by design.
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden is {hidden.dtype} but the weight is {weight.dtype}; convert one of them, or "
            "use torch.autocast"
        )


def check_finite_rows(rows: Tensor, name: str) -> None:
    """Rows (n, K) without NaN and infinity; integers have none."""
    if rows.is_floating_point() and not torch.compiler.is_compiling():
        check_finite(rows, f"{name} (flattened)")


def check_target(target: Tensor, leading: torch.Size, n_classes: int) -> None:
    """One integer per hidden state."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(
            f"target must be integers, got {target.dtype}; soft targets, of shape "
            f"(..., {n_classes}), need objective='exact'"
        )
    check_shape(target, "target", leading, "hidden without its last dimension")


def check_soft_target(target: Tensor, leading: torch.Size, n_classes: int) -> None:
    """One finite weight >= 0 per hidden state and class."""
    source = "the scores, one weight per class"
    check_shape(target, "a floating-point target", (*leading, n_classes), source)
    if torch.compiler.is_compiling():
        return
    if not bool((target >= 0).all()) or not bool(target.isfinite().all()):
        raise ValueError("a floating-point target must hold finite weights >= 0")


def check_examples(examples: Tensor, n_examples: int) -> None:
    """Distinct integers in 0..n_examples−1."""
    if examples.is_floating_point() or examples.is_complex() or examples.dtype == torch.bool:
        raise TypeError(f"examples must be integers, got {examples.dtype}")
    outside = (examples < 0) | (examples >= n_examples)
    if bool(outside.any()):
        raise ValueError(
            f"examples has number {int(examples[outside][0])}, not in 0..{n_examples - 1} "
            "(n_examples)"
        )
    values, counts = examples.unique(return_counts=True)
    if len(values) < len(examples):
        raise ValueError(
            f"examples has number {int(values[counts > 1][0])} twice in one batch; number the "
            "(hidden, target) pairs of the training data, each once per batch"
        )
