"""Validate arguments and raise errors that explain the problem."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np


def is_number(value: Any, integer: bool = False) -> TypeGuard[float]:
    """Whether this is a finite real number or, if asked, an integer; booleans are neither."""
    kind = Integral if integer else Real
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)


def check_rows(features: Any, labels: np.ndarray) -> None:
    """Refuse features that are not two-dimensional with one row per label."""
    if len(features.shape) != 2:
        raise ValueError(
            f"features must have two dimensions, one row per example, got shape {features.shape}"
        )
    if features.shape[0] != len(labels):
        raise ValueError(f"features have {features.shape[0]} rows but labels {len(labels)}")


def check_parameters(model: Any) -> None:
    """Refuse parameters of a classifier that are out of range."""
    for name, least in (("n_negatives", 1), ("epochs", 1), ("patience", 1), ("bag_size", 1)):
        value = getattr(model, name)
        if value is None and name in ("n_negatives", "epochs"):
            continue
        if not (isinstance(value, (int, np.integer)) and value >= least):
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    for name in ("learning_rate", "accumulator_start"):
        if not getattr(model, name) > 0:
            raise ValueError(f"{name} must be > 0, got {getattr(model, name)!r}")
    if model.schedule not in ("linear", "constant"):
        raise ValueError(f"schedule must be 'linear' or 'constant', got {model.schedule!r}")
    if not 0 <= model.validation_fraction < 1:
        raise ValueError(
            f"validation_fraction must be in [0, 1), got {model.validation_fraction!r}"
        )
    if not 0 <= model.feature_dropout < 1:
        raise ValueError(f"feature_dropout must be in [0, 1), got {model.feature_dropout!r}")
    if model.calibrate and not model.validation_fraction:
        raise ValueError("calibrate needs held-out rows: validation_fraction must be > 0")
    if model.max_seconds is not None and not model.max_seconds > 0:
        raise ValueError(f"max_seconds must be None or > 0, got {model.max_seconds!r}")
    if model.batch_size is not None and model.batch_size < 1:
        raise ValueError(f"batch_size must be None or >= 1, got {model.batch_size!r}")
