"""Arguments with a verdict: valid ones, bad ones that must be refused, and odd ones that need not.

Problems have a handful of classes and six features, so that a call takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from scipy import sparse

GOOD, ODD, BAD = 0, 1, 2
KINDS = ("dense", "sparse", "text")
N_FEATURES, N_CLASSES = 6, 8


@dataclass(frozen=True)
class Value:
    """An argument, what is special about it, and whether it is of the wrong Python type."""

    value: Any
    name: str = ""
    verdict: int = GOOD
    wrong_type: bool = False


#: By name: what makes an odd or bad value of a good one, see `change`.
Changes = dict[str, Callable[[Any], Any]]


def change(random: Random, good: Any, odd: Changes, bad: Changes, wrong: Changes) -> Value:
    """Change a good value to one of the others; those of a wrong type are bad."""
    verdict, changes, wrong_type = random.choice(
        ((ODD, odd, False), (ODD, odd, False), (BAD, bad, False), (BAD, wrong, True))
    )
    name = random.choice(sorted(changes))
    return Value(changes[name](good), name, verdict, wrong_type)


def codes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Class numbers of n rows, some classes more frequent than others."""
    return np.minimum(rng.integers(N_CLASSES, size=n), rng.integers(N_CLASSES + 3, size=n))


def good_rows(rng: np.random.Generator, kind: str, labels: np.ndarray, width: int) -> Any:
    """Rows that resemble those of the same class."""
    centers = np.random.default_rng(0).normal(size=(N_CLASSES, width))
    X = (centers[labels] + rng.normal(size=(len(labels), width))).astype(np.float32)
    if kind == "dense":
        return X
    if kind == "sparse":
        return sparse.csr_matrix(np.where(X > 0.3, X, 0))
    return [" ".join(f"word{j}" for j in np.flatnonzero(row > 0.3)) for row in X]


def with_value(value: Any, dtype: Any = None) -> Callable[[np.ndarray], np.ndarray]:
    """Replace the last number of an array."""

    def replaced(X: np.ndarray) -> np.ndarray:
        X = np.array(X, dtype=dtype or X.dtype)
        with np.errstate(over="ignore"):
            X[-1, -1] = value
        return X

    return replaced


WRONG_TYPES: Changes = {
    "None": lambda X: None,
    "a number": lambda X: 5,
    "a function": lambda X: len,
    "a dict": lambda X: {"a": 1},
    "a set": lambda X: {1, 2},
    "a generator": lambda X: iter(X),
    "an object": lambda X: object(),
    "bytes": lambda X: b"abc",
}
