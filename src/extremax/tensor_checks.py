"""Checks of tensor arguments: each raises a TypeError or ValueError that names the argument."""

from __future__ import annotations

import torch
from torch import Tensor


def check_count(value: int, name: str, least: int = 1, reason: str = "") -> None:
    """Require an integer >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}{reason}")


def check_tensor(value: Tensor, name: str) -> None:
    """Require a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")


def check_floating(tensor: Tensor, name: str) -> None:
    """Require a floating-point tensor."""
    check_tensor(tensor, name)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}; call .float() on it")


def check_shape(tensor: Tensor, name: str, shape: tuple[int, ...], source: str) -> None:
    """Require a shape; ``source`` names what determines it."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}, the shape of "
            f"{source}"
        )


def check_finite(tensor: Tensor, name: str) -> None:
    """Require a floating-point tensor without NaN and infinity."""
    check_floating(tensor, name)
    values = tensor.detach()
    # The sum needs one pass and no copy. It is finite only if every value is; where huge values
    # overflow it, a second pass tests every value.
    if not bool(values.sum().isfinite()) and not bool(values.isfinite().all()):
        index = (~values.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite, got {float(values[tuple(index)])} at {index}; check the code "
            "that computed it, such as for a division by zero or too large a learning rate"
        )


def check_classes(
    classes: Tensor, name: str, n_classes: int, ignore_index: int | None = None, hint: str = ""
) -> None:
    """Require integers in 0..n_classes−1, or ``ignore_index``.

    hint:  ends the message about tensors that are not integers.
    """
    check_tensor(classes, name)
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {classes.dtype}{hint}")
    outside = (classes < 0) | (classes >= n_classes)
    if ignore_index is not None:
        outside &= classes != ignore_index
    if bool(outside.any()):
        exception = "" if ignore_index is None else f" or ignore_index ({ignore_index})"
        raise ValueError(
            f"{name} has class {int(classes[outside][0])}, not in 0..{n_classes - 1} "
            f"(n_classes){exception}"
        )


def check_logits(logits: Tensor, name: str = "logits", impossible: bool = False) -> None:
    """Require a non-empty floating-point tensor without NaN or +inf.

    impossible:  allow -inf for classes that cannot occur, but not for all classes of a row.
    """
    check_floating(logits, name)
    if logits.ndim == 0 or logits.numel() == 0:
        raise ValueError(
            f"{name} must have at least one dimension and one element, got shape "
            f"{tuple(logits.shape)}"
        )
    if not impossible:
        check_finite(logits, name)
    # The largest element of a row is NaN if any is, and -inf if all are: one pass is enough.
    elif not bool(torch.isfinite(logits.detach().amax(-1)).all()):
        raise ValueError(
            f"{name} must have a finite maximum in every row: no NaN, no +inf, not all -inf; "
            "check the code that computed them"
        )


def check_temperature(temperature: float | Tensor) -> None:
    """Require a temperature > 0."""
    if not bool((torch.as_tensor(temperature) > 0).all()):
        raise ValueError(
            f"temperature must be > 0, got {temperature}; at 0 a sample has no gradient, so use a "
            "small number instead"
        )
