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


def check_not_negative(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0.0 <= value < float("inf"):
            raise ValueError(f"{name} must be a number >= 0, got {value!r}")


def check_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def check_device(name: str, tensor: Tensor, of: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(f"{name} is on {tensor.device} but {of} on {other.device}")


def check_integers(name: str, tensor: Tensor, instead: str = "") -> None:
    check_tensor(name, tensor)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {tensor.dtype}{instead}")


def check_scores(scores: Tensor, log_q: Tensor, hits: Tensor | None) -> None:
    """Scores (..., 1 + m), log q that broadcasts to them, hits that broadcast to (..., m)."""
    for name, tensor in (("scores", scores), ("log_q", log_q)):
        check_tensor(name, tensor)
        check_device(name, tensor, "scores", scores)
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
        check_tensor("hits", hits)
        check_device("hits", hits, "scores", scores)
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
    check_tensor("hidden", hidden)
    if not hidden.is_floating_point():
        raise TypeError(f"hidden must be floating point, got {hidden.dtype}")
    if hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden must have shape (..., {weight.shape[1]}) (in_features), "
            f"got {tuple(hidden.shape)}"
        )
    check_device("hidden", hidden, "the weight", weight)
    # Under autocast the layers before this one give half precision by design.
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden is {hidden.dtype} but the weight {weight.dtype}; convert one of them, or "
            "use torch.autocast"
        )


def check_finite(name: str, rows: Tensor) -> None:
    """(n, K) without NaN or infinity."""
    if not rows.is_floating_point():
        return
    # One pass that makes no copy: the sum is finite only if all are, or overflows if they are
    # huge, and then every number is looked at.
    if not bool(rows.sum().isfinite()) and not bool(rows.isfinite().all()):
        bad = int((~rows.isfinite().all(1)).nonzero()[0])
        raise ValueError(
            f"{name} has NaN or infinity in row {bad} of {len(rows)} (flattened, ignored ones "
            "left out); look for too large a learning rate or a division by zero before this layer"
        )


def check_target(target: Tensor, leading: torch.Size, n_classes: int, ignore_index: int) -> None:
    """Integers of the hidden states' leading shape, each a class or ``ignore_index``."""
    soft = f"; soft targets, of shape (..., {n_classes}), need objective='exact'"
    check_integers("target", target, soft)
    if target.shape != leading:
        raise ValueError(
            f"target must have the leading shape of hidden, {tuple(leading)}, "
            f"got {tuple(target.shape)}"
        )
    check_classes("target", target, n_classes, ignore_index)


def check_classes(name: str, classes: Tensor, n_classes: int, ignore_index: int | None) -> None:
    check_integers(name, classes)
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
