"""How frequent classes are where a model is used, if not as in training.

    p'(y|x)  ∝  p(y|x) · π'_y / π_y

π are the shares of the classes among the training examples, and π' those where the model is used
(Saerens et al., "Adjusting the outputs of a classifier to new a priori probabilities", 2002).
π' ∝ π^(1−τ) makes that p · π^−τ, the logit adjustment of Menon et al. ("Long-tail learning via
logit adjustment", 2021); with τ = 1 all classes are equally frequent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.checks import is_number
from extremax.errors import ArgumentError
from extremax.labels.classes import ClassLabels
from extremax.labels.index import label_array

# The largest |τ|: π^±10 of 10⁹ classes is within float64.
_MOST_TAU = 10.0


@dataclass(frozen=True, eq=False)
class Prior:
    """Shares of every class, (C,): ``before`` in training, π, and ``after``, π', where the model is
    used. π is nowhere zero: a class without an example counts as one with one."""

    before: np.ndarray
    after: np.ndarray

    @property
    def log_ratio(self) -> np.ndarray:
        """log π'/π of each class, float32; −∞ for classes that do not occur any more."""
        with np.errstate(divide="ignore"):
            return (np.log(self.after) - np.log(self.before)).astype(np.float32)

    @classmethod
    def of(cls, labels: ClassLabels, shares: Any, tau: float | None) -> Prior:
        """From π' or τ, of which the other is None.

        shares:  numbers in proportion to π', by label or in the order of the classes.
        """
        if (shares is None) == (tau is None):
            raise ArgumentError("pass either prior or tau")
        before = np.maximum(labels.counts, 1).astype(np.float64)
        before /= before.sum()
        if tau is not None:
            if not (is_number(tau) and abs(tau) <= _MOST_TAU):
                raise ArgumentError(f"tau must be a number from −10 to 10, got {tau!r}")
            # Relative to the largest, so that no power overflows.
            after = np.exp(
                (1.0 - tau) * np.log(before / (before.max() if tau < 1 else before.min()))
            )
        elif isinstance(shares, Mapping):
            after = _by_label(labels, shares)
        else:
            after = _numbers(shares, len(labels))
        return cls(before, after / after.sum())


def _by_label(labels: ClassLabels, shares: Mapping[Any, Any]) -> np.ndarray:
    """Shares of every class; labels that training never saw are ignored."""
    given = _numbers(list(shares.values()), len(shares))
    numbers = labels.encode(label_array(list(shares)))
    known = numbers >= 0
    missing = np.setdiff1d(np.arange(len(labels)), numbers[known])
    if len(missing):
        first = labels.values[missing[:1]].tolist()[0]
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise ArgumentError(
            f"prior has no share of {first!r}{more}; give 0 to a class that does not occur"
        )
    after = np.empty(len(labels))
    after[numbers[known]] = given[known]
    return _positive(after)


def _numbers(shares: Any, n: int) -> np.ndarray:
    try:
        array = np.asarray(shares, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"prior must have one number per class: {error}") from error
    if array.shape != (n,):
        raise ArgumentError(
            f"prior must have one number for each of the {n:,} classes, got shape {array.shape}"
        )
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0.0)))
    if len(bad):
        raise ArgumentError(
            f"prior must have finite numbers of at least 0, got {array[bad[0]]} in place {bad[0]}"
        )
    return _positive(array)


def _positive(shares: np.ndarray) -> np.ndarray:
    # Relative to the largest, so that no sum overflows.
    most = shares.max(initial=0.0)
    if not most:
        raise ArgumentError("prior is zero for every class; give some class a positive share")
    return shares / most
