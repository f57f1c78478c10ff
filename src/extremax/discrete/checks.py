"""Checks of arguments: each raises an error that names the parameter, before it becomes NaN."""

from __future__ import annotations

import torch
from torch import Tensor


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


def check_floating(values: Tensor, name: str) -> None:
    """Require a floating-point tensor."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(values).__name__}")
    if not values.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {values.dtype}; call .float() on it")


def check_finite(values: Tensor, name: str) -> None:
    """Require finite elements."""
    finite = torch.isfinite(values.detach())
    if not bool(finite.all()):
        index = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite, got {float(values.detach()[tuple(index)])} at {index}; check "
            "the code that computed them"
        )


def check_temperature(temperature: float | Tensor) -> None:
    """Require a temperature > 0."""
    if not bool((torch.as_tensor(temperature) > 0).all()):
        raise ValueError(
            f"temperature must be > 0, got {temperature}; at 0 a sample has no gradient, so use a "
            "small number instead"
        )


def check_count(value: int, name: str, least: int, reason: str = "") -> None:
    """Require an integer >= ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}{reason}")


def check_shape(values: Tensor, name: str, shape: tuple[int, ...], source: str) -> None:
    """Require a shape; ``source`` names the argument that determines it."""
    if tuple(values.shape) != tuple(shape):
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}, expected {tuple(shape)}, the shape of "
            f"{source}"
        )


def check_classes(classes: Tensor, name: str, n_classes: int, shape: tuple[int, ...]) -> None:
    """Require integer classes in 0..n_classes−1, one per row of logits."""
    if classes.is_floating_point() or classes.dtype == torch.bool:
        raise TypeError(f"{name} must be integer classes, got {classes.dtype}")
    check_shape(classes, name, shape, "logits without their last dimension")
    outside = (classes < 0) | (classes >= n_classes)
    if bool(outside.any()):
        raise ValueError(
            f"{name} has class {int(classes[outside][0])}, which is not in 0..{n_classes - 1}"
        )
