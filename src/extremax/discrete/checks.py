"""Arguments that cannot be meant are refused here, by name, before they become NaN."""

from __future__ import annotations

import torch
from torch import Tensor


def check_logits(logits: Tensor, name: str = "logits", impossible: bool = False) -> None:
    """Floating point, at least one number, no NaN or +inf; −inf only where a class may be
    ``impossible``, and then not all of them."""
    check_floating(logits, name)
    if logits.ndim == 0 or logits.numel() == 0:
        raise ValueError(
            f"{name} must have at least one dimension and one number, got shape "
            f"{tuple(logits.shape)}"
        )
    if not impossible:
        check_finite(logits, name)
    # The largest of a row is NaN if one is, −inf if all are: one pass tells everything.
    elif not bool(torch.isfinite(logits.detach().amax(-1)).all()):
        raise ValueError(
            f"{name} must have a finite largest number in every row: no NaN, no +inf, not all "
            "-inf; look at what computed them"
        )


def check_floating(values: Tensor, name: str) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(values).__name__}")
    if not values.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {values.dtype}; call .float() on it")


def check_finite(values: Tensor, name: str) -> None:
    finite = torch.isfinite(values.detach())
    if not bool(finite.all()):
        bad = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite, got {float(values.detach()[tuple(bad)])} at {bad}; look at "
            "what computed them"
        )


def check_temperature(temperature: float | Tensor) -> None:
    if not bool((torch.as_tensor(temperature) > 0).all()):
        raise ValueError(
            f"temperature must be > 0, got {temperature}; it may be small, but at 0 nothing is "
            "left to differentiate"
        )


def check_count(value: int, name: str, least: int, why: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}{why}")


def check_shape(values: Tensor, shape: tuple[int, ...], name: str, of: str) -> None:
    if tuple(values.shape) != tuple(shape):
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}, expected {tuple(shape)}, that of {of}"
        )


def check_classes(classes: Tensor, n_classes: int, shape: tuple[int, ...], name: str) -> None:
    """Integer classes in 0..n_classes−1, one for each row."""
    if classes.is_floating_point() or classes.dtype == torch.bool:
        raise TypeError(f"{name} must be integer classes, got {classes.dtype}")
    check_shape(classes, shape, name, "the rows of logits")
    outside = (classes < 0) | (classes >= n_classes)
    if bool(outside.any()):
        raise ValueError(
            f"{name} has {int(classes[outside][0])}, which is not in 0..{n_classes - 1}"
        )
