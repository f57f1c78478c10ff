"""Validate arguments and raise errors that explain the problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
from scipy.sparse import issparse

from extremax.errors import ArgumentError

# Kernels count in int32 and int64; products of two counts must fit the latter.
LARGEST_COUNT = 2**31 - 1
#: Models of an ensemble: more would bring next to nothing.
MOST_MODELS = 100


def is_number(value: Any, integer: bool = False) -> TypeGuard[float]:
    """Whether this is a finite real number or, if asked, an integer; booleans are neither."""
    if not isinstance(value, Integral if integer else Real) or isinstance(value, bool):
        return False
    # math.isfinite would refuse integers that are too large for a float.
    number: Any = value
    return bool(-math.inf < number < math.inf)


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn what numpy and scikit-learn raise for a bad argument into an `ArgumentError`."""
    try:
        yield
    except ArgumentError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(f"{name} cannot be used: {error}") from error


def check_rows(features: Any, labels: np.ndarray) -> None:
    """Refuse features that are not two-dimensional with one row per label."""
    if len(features.shape) != 2:
        raise ArgumentError(
            f"features must have two dimensions, one row per example, got shape {features.shape}"
        )
    if features.shape[0] != len(labels):
        raise ArgumentError(f"features have {features.shape[0]} rows but labels {len(labels)}")


def check_matrix(name: str, matrix: Any) -> None:
    """Refuse a scipy matrix with indices out of range, before compiled code follows them to memory
    beyond its arrays. Not by scipy's own check, which trusts ``indptr`` and cuts arrays."""
    if not issparse(matrix):
        return
    what = f"{name} is not a valid {matrix.format} matrix"
    if matrix.ndim != 2:
        raise ArgumentError(f"{what}: it has {matrix.ndim} dimensions, expected two")
    if matrix.format in ("csr", "csc", "bsr"):
        indptr, indices, (n_lines, width) = matrix.indptr, matrix.indices, matrix.shape
        if matrix.format == "bsr":
            n_lines, width = n_lines // matrix.blocksize[0], width // matrix.blocksize[1]
        elif matrix.format == "csc":
            n_lines, width = width, n_lines
        size = min(len(indices), len(matrix.data))
        if len(indptr) != n_lines + 1 or indptr[0] != 0 or not indptr[-1] <= size:
            raise ArgumentError(f"{what}: indptr does not fit the shape or the indices")
        if (np.diff(indptr) < 0).any():
            raise ArgumentError(f"{what}: indptr must not fall")
        used = [(indices[: indptr[-1]], width)]
    elif matrix.format == "coo":
        used = list(zip((matrix.row, matrix.col), matrix.shape, strict=True))
    else:  # Python's own objects, which check their indices themselves, or arrays of diagonals
        return
    for indices, below in used:
        if len(indices) and not (indices.min() >= 0 and indices.max() < below):
            raise ArgumentError(f"{what}: indices must be from 0 to {below - 1}")


def _is_count(value: Any) -> bool:
    return is_number(value, integer=True) and 1 <= value <= LARGEST_COUNT


def _is_small_count(value: Any) -> bool:
    return _is_count(value) and value <= 10**6


def _is_few(value: Any) -> bool:
    return _is_count(value) and value <= MOST_MODELS


def _is_size(value: Any) -> bool:
    return is_number(value, integer=True) and value >= 1


def _is_positive(value: Any) -> bool:
    return is_number(value) and 1e-30 <= value <= 1e30


def _is_decay(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1e6


def _is_seconds(value: Any) -> bool:
    return is_number(value) and 0 < value <= 1e15


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1


def _is_switch(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _is_class_weight(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return isinstance(value, str) and value == "balanced"
    return all(is_number(weight) and weight >= 0 for weight in value.values())


# Names, whether they may be None, and what they must be.
_PARAMETERS: tuple[tuple[tuple[str, ...], bool, str, Callable[[Any], bool]], ...] = (
    (("n_negatives",), True, "an integer from 1 to 1000000", _is_small_count),
    (("epochs",), True, f"an integer from 1 to {LARGEST_COUNT}", _is_count),
    (("batch_size",), True, f"None or an integer from 1 to {LARGEST_COUNT}", _is_count),
    (("patience",), True, "None or an integer >= 1", _is_count),
    (("bag_size",), False, "an integer >= 1", _is_count),
    (("n_models",), False, f"an integer from 1 to {MOST_MODELS}", _is_few),
    (("memory_budget",), False, "an integer >= 1", _is_size),
    (("learning_rate",), True, "> 0, from 1e-30 to 1e30", _is_positive),
    (("accumulator_start",), False, "> 0, from 1e-30 to 1e30", _is_positive),
    (("accumulators",), True, "None, 'weight' or 'row'", ["weight", "row"].__contains__),
    (("weight_decay",), False, "a number from 0 to 1e6", _is_decay),
    (("max_seconds",), True, "None or > 0, at most 1e15", _is_seconds),
    (("validation_fraction", "feature_dropout"), False, "in [0, 1)", _is_share),
    (("schedule",), False, "'linear' or 'constant'", ["linear", "constant"].__contains__),
    (
        ("start",),
        True,
        "None, 'class_means', 'frequencies' or 'zeros'",
        ["class_means", "frequencies", "zeros"].__contains__,
    ),
    (("device",), False, "'cpu', 'cuda' or 'auto'", ["cpu", "cuda", "auto"].__contains__),
    (("n_jobs",), True, "None or an integer", lambda value: is_number(value, integer=True)),
    (("verbose",), False, "an integer", lambda value: isinstance(value, Integral)),
    (("calibrate", "similar_rows"), False, "True or False", _is_switch),
    (
        ("class_weight",),
        True,
        "None, 'balanced' or a dictionary from labels to numbers >= 0",
        _is_class_weight,
    ),
    (("encoder",), True, "None or an Encoder", lambda value: hasattr(value, "rows_class")),
)


def check_parameters(model: Any, only: tuple[str, ...] = ()) -> None:
    """Refuse parameters of a classifier, or only some, that are of the wrong kind or out of range.
    Recipes check objective and noise."""
    for names, may_be_none, expected, is_right in _PARAMETERS:
        for name in names:
            value = getattr(model, name)
            if isinstance(value, np.number):
                value = value.item()  # In float16 the limits would overflow.
            is_fine = is_right(value) or (value is None and may_be_none)
            if not is_fine and (not only or name in only):
                raise ArgumentError(f"{name} must be {expected}, got {value!r}")
    if not only and model.encoder is not None:
        model.encoder.check_parameters()
    if not only and model.calibrate and not model.validation_fraction:
        raise ArgumentError("calibrate needs held-out rows: validation_fraction must be > 0")
