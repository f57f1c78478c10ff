"""Argument checks. Each raises a TypeError or ValueError that names the argument."""

from __future__ import annotations

import torch
from torch import Tensor

# Rounding may push log q slightly above zero.
_ROUNDING = 1e-3


def check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def check_count(value: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")


def check_not_negative(value: float, name: str) -> None:
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number >= 0, got {value!r}")


def check_tensor(value: Tensor, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def check_floating(tensor: Tensor, name: str) -> None:
    check_tensor(tensor, name)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}")


def check_integers(tensor: Tensor, name: str, hint: str = "") -> None:
    check_tensor(tensor, name)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {tensor.dtype}{hint}")


def check_device(tensor: Tensor, name: str, other: Tensor, other_name: str) -> None:
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
        check_tensor(hits, "hits")
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


def check_finite(rows: Tensor, name: str) -> None:
    """Rows (n, K) without NaN or infinity."""
    if not rows.is_floating_point():
        return
    # The sum needs one pass and no copy. It is finite only if every value is; where huge values
    # overflow it, a second pass tests every value.
    if not bool(rows.sum().isfinite()) and not bool(rows.isfinite().all()):
        bad = int((~rows.isfinite().all(1)).nonzero()[0])
        raise ValueError(
            f"{name} has NaN or infinity in row {bad} of {len(rows)} (flattened, without ignored "
            "targets); check for a learning rate that is too large or a division by zero in an "
            "earlier layer"
        )


def check_classes(classes: Tensor, name: str, n_classes: int, ignore_index: int | None) -> None:
    """Integers in 0..n_classes−1, or ``ignore_index``."""
    check_integers(classes, name)
    outside = (classes < 0) | (classes >= n_classes)
    if ignore_index is not None:
        outside &= classes != ignore_index
    if bool(outside.any()):
        exception = "" if ignore_index is None else f" or ignore_index ({ignore_index})"
        raise ValueError(
            f"{name} has class {int(classes[outside][0])}, not in 0..{n_classes - 1} "
            f"(n_classes){exception}"
        )


def check_target(target: Tensor, leading: torch.Size, n_classes: int, ignore_index: int) -> None:
    """One class or ``ignore_index`` per hidden state."""
    hint = f"; soft targets, of shape (..., {n_classes}), need objective='exact'"
    check_integers(target, "target", hint)
    if target.shape != leading:
        raise ValueError(
            f"target must have the leading shape of hidden, {tuple(leading)}, "
            f"got {tuple(target.shape)}"
        )
    check_classes(target, "target", n_classes, ignore_index)


def check_soft_target(target: Tensor, leading: torch.Size, n_classes: int) -> None:
    """One finite weight >= 0 per hidden state and class."""
    if target.shape != (*leading, n_classes):
        raise ValueError(
            f"a floating-point target must have shape {(*leading, n_classes)}, one weight per "
            f"class, got {tuple(target.shape)}"
        )
    if not bool((target >= 0).all()) or not bool(target.isfinite().all()):
        raise ValueError("a floating-point target must hold finite weights >= 0")
