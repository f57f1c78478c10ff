"""Arguments that cannot be meant are refused here, with the name of the argument."""

from __future__ import annotations

import torch
from torch import Tensor

# log q is rounded, and so may lie a little above zero.
_ROUNDING = 1e-3


def check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")


def check_scores(scores: Tensor, log_q: Tensor, hits: Tensor | None) -> None:
    """Scores (..., 1 + m), log q that broadcasts to them, hits that broadcast to (..., m)."""
    for name, tensor in (("scores", scores), ("log_q", log_q)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
    if scores.ndim < 1 or scores.shape[-1] < 2:
        raise ValueError(
            "scores must have shape (..., 1 + m), the true class first and m >= 1 drawn ones "
            f"after it, got {tuple(scores.shape)}"
        )
    _check_broadcast("log_q", log_q, scores.shape)
    if log_q.numel() and float(log_q.detach().max()) > _ROUNDING:
        raise ValueError(
            f"log_q must be logarithms of probabilities, <= 0, got {float(log_q.max()):.4g}; "
            "is its sign flipped, or log m added?"
        )
    if hits is not None:
        if hits.dtype != torch.bool:
            raise TypeError(f"hits must be bool, got {hits.dtype}")
        _check_broadcast("hits", hits, (*scores.shape[:-1], scores.shape[-1] - 1))


def _check_broadcast(name: str, tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> None:
    try:
        fits = torch.broadcast_shapes(tensor.shape, shape) == torch.Size(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must broadcast to {tuple(shape)}, got {tuple(tensor.shape)}")


def check_hidden(hidden: Tensor, weight: Tensor) -> None:
    """Floating point of the weight's width, type and device."""
    if not isinstance(hidden, Tensor):
        raise TypeError(f"hidden must be a tensor, got {type(hidden).__name__}")
    if not hidden.is_floating_point():
        raise TypeError(f"hidden must be floating point, got {hidden.dtype}")
    if hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden must have shape (..., {weight.shape[1]}) (in_features), "
            f"got {tuple(hidden.shape)}"
        )
    if hidden.device != weight.device:
        raise ValueError(f"hidden is on {hidden.device} but the weight on {weight.device}")
    # Under autocast the layers before this one give half precision by design.
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden is {hidden.dtype} but the weight {weight.dtype}; convert one of them, or "
            "use torch.autocast"
        )


def check_finite(hidden: Tensor) -> None:
    """(n, K) without NaN or infinity."""
    # One pass that makes no copy: the sum is finite only if all are, or overflows if they are
    # huge, and then every number is looked at.
    if not bool(hidden.sum().isfinite()) and not bool(hidden.isfinite().all()):
        bad = int((~hidden.isfinite().all(1)).nonzero()[0])
        raise ValueError(
            f"hidden has NaN or infinity in row {bad} of {len(hidden)} (flattened, ignored ones "
            "left out); look for too large a learning rate or a division by zero before this layer"
        )


def check_target(target: Tensor, leading: torch.Size, n_classes: int, ignore_index: int) -> None:
    """Integers of the hidden states' leading shape, each a class or ``ignore_index``."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(
            f"target must be integers, got {target.dtype}; soft targets, of shape "
            f"(..., {n_classes}), need objective='exact'"
        )
    if target.shape != leading:
        raise ValueError(
            f"target must have the leading shape of hidden, {tuple(leading)}, "
            f"got {tuple(target.shape)}"
        )
    check_classes("target", target, n_classes, ignore_index)


def check_classes(name: str, classes: Tensor, n_classes: int, ignore_index: int | None) -> None:
    outside = (classes < 0) | (classes >= n_classes)
    if ignore_index is not None:
        outside &= classes != ignore_index
    if bool(outside.any()):
        also = "" if ignore_index is None else f" or ignore_index ({ignore_index})"
        raise ValueError(
            f"{name} has class {int(classes[outside][0])}, not in 0..{n_classes - 1} "
            f"(n_classes){also}"
        )


def check_soft_target(target: Tensor, leading: torch.Size, n_classes: int) -> None:
    if target.shape != (*leading, n_classes):
        raise ValueError(
            f"target of floating point must have shape {(*leading, n_classes)}, one weight a "
            f"class, got {tuple(target.shape)}"
        )
    if not bool((target >= 0).all()) or not bool(target.isfinite().all()):
        raise ValueError("target of floating point must be finite weights >= 0")
