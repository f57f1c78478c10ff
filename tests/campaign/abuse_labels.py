"""Labels of all sorts: valid ones of any hashable kind, odd ones, and ones that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import torch
from scipy import sparse

from tests.campaign.abuse_values import GOOD, N_CLASSES, WRONG_TYPES, Changes, Value, change


def _objects(labels: list[Any]) -> np.ndarray:
    out = np.empty(len(labels), dtype=object)
    for i, label in enumerate(labels):
        out[i] = label
    return out


def _indicator(codes: np.ndarray) -> np.ndarray:
    return np.eye(N_CLASSES, dtype=int)[codes]


#: Labels by class number: every model must take these.
_GOOD: dict[str, Callable[[np.ndarray], Any]] = {
    "numbers": lambda codes: codes,
    "int8": lambda codes: codes.astype(np.int8),
    "negative numbers": lambda codes: codes - 5,
    "list of numbers": lambda codes: codes.tolist(),
    "whole floats": lambda codes: codes.astype(float),
    "strings": lambda codes: [f"class {c}" for c in codes],
    "array of strings": lambda codes: np.array([f"class {c}" for c in codes]),
    "tuples": lambda codes: [(int(c), "x") for c in codes],
    "strings and numbers": lambda codes: [f"{c}" if c % 2 else int(c) for c in codes],
    "booleans": lambda codes: codes > 3,
    "lists of numbers": lambda codes: [[int(c), int(c) // 2] for c in codes],
    "lists of strings": lambda codes: [[f"class {c}", "odd" if c % 2 else "even"] for c in codes],
    "sets": lambda codes: [{int(c), 99} for c in codes],
    "indicator": _indicator,
    "sparse indicator": lambda codes: sparse.csr_matrix(_indicator(codes)),
}
_ODD: Changes = {
    "one class": lambda y: np.zeros(_rows(y), int),
    "a class per row": lambda y: np.arange(_rows(y)),
    "column": lambda y: np.arange(_rows(y))[:, None] % 3,
    "largest integers": lambda y: np.arange(_rows(y)) % 3 + (2**63 - 3),
    "smallest integers": lambda y: -(2**63) + np.arange(_rows(y)) % 3,
    "uint64": lambda y: (np.arange(_rows(y)) % 3).astype(np.uint64) + np.uint64(2**64 - 5),
    "beyond int64": lambda y: [2**100 + i % 3 for i in range(_rows(y))],
    "beyond float": lambda y: [10**400 + i % 3 for i in range(_rows(y))],
    "signed zeros": lambda y: [0.0 if i % 2 else -0.0 for i in range(_rows(y))],
    "true and one": lambda y: _objects([(True, 1, 0, 1.0)[i % 4] for i in range(_rows(y))]),
    "long strings": lambda y: [f"{i % 3}" * 10_000 for i in range(_rows(y))],
    "empty strings": lambda y: ["" if i % 2 else " " for i in range(_rows(y))],
    "nul at the end": lambda y: ["a" + "\0" * (i % 3) for i in range(_rows(y))],
    "half characters": lambda y: [("\ud800", "\udfff")[i % 2] for i in range(_rows(y))],
    "bytes": lambda y: [b"a" if i % 2 else b"b" for i in range(_rows(y))],
    "array of bytes": lambda y: np.array([b"a" if i % 2 else b"b" for i in range(_rows(y))]),
    "dates": lambda y: (np.arange(_rows(y)) % 3).astype("M8[D]"),
    "complex": lambda y: (np.arange(_rows(y)) % 3) * 1j,
    "float16": lambda y: (np.arange(_rows(y)) % 3).astype(np.float16),
    "long double": lambda y: (np.arange(_rows(y)) % 3).astype(np.longdouble),
    "tensor": lambda y: torch.arange(_rows(y)) % 3,
    "nested tuples": lambda y: [((i % 2,), ()) for i in range(_rows(y))],
    "frozensets": lambda y: [frozenset({i % 2, "a"}) for i in range(_rows(y))],
    "fractions": lambda y: [Fraction(i % 3, 7) for i in range(_rows(y))],
    "types": lambda y: [(int, str, len)[i % 3] for i in range(_rows(y))],
    "empty lists between": lambda y: [[i % 3] if i % 2 == 0 else [] for i in range(_rows(y))],
    "the same label twice": lambda y: [[i % 3, i % 3] for i in range(_rows(y))],
    "lists of mixed types": lambda y: [[i % 3, "a", (1,)] for i in range(_rows(y))],
    "range": lambda y: range(_rows(y)),
}
_BAD: Changes = {
    "NaN": lambda y: np.where(np.arange(_rows(y)) == _rows(y) - 1, np.nan, 1.0),
    "NaN among objects": lambda y: _objects(["a"] * (_rows(y) - 1) + [float("nan")]),
    "None among strings": lambda y: _objects(["a"] * (_rows(y) - 1) + [None]),
    "None in lists": lambda y: [["a", None]] * _rows(y),
    "no date among objects": lambda y: _objects([np.datetime64("NaT")] * _rows(y)),
    "NaN in a tuple": lambda y: [(1, float("nan"))] * _rows(y),
    "only NaN in tuples": lambda y: [(float("nan"),)] * _rows(y),
    "NaN in lists": lambda y: [[1.0, float("nan")]] * _rows(y),
    "no date": lambda y: np.full(_rows(y), "NaT", "M8[D]"),
    "fractional floats": lambda y: np.arange(_rows(y)) + 0.5,
    "infinite floats": lambda y: np.full(_rows(y), np.inf),
    "too few": lambda y: np.arange(_rows(y) + 2)[: _rows(y) - 1],
    "too many": lambda y: np.arange(_rows(y) + 1),
    "too many lists": lambda y: [[1, 2]] * (_rows(y) + 1),
    "none": lambda y: [],
    "dicts": lambda y: [{"a": 1}] * _rows(y),
    "nested lists": lambda y: [[[1]]] * _rows(y),
    "lists and labels": lambda y: [[1]] * (_rows(y) - 1) + ["a", "a"],
    "only empty lists": lambda y: [[]] * _rows(y),
    "indicator of twos": lambda y: np.full((_rows(y), 3), 2),
    "indicator of NaN": lambda y: np.full((_rows(y), 3), np.nan),
    "indicator of strings": lambda y: np.full((_rows(y), 3), "1"),
    "indicator out of range": lambda y: _broken_indicator(_rows(y)),
    "three dimensions": lambda y: np.zeros((_rows(y), 2, 2), int),
    "zero dimensions": lambda y: np.int64(3),
    "a string": lambda y: "a" * (_rows(y) + 1),
}


def _rows(y: Any) -> int:
    return int(y.shape[0]) if hasattr(y, "shape") else len(y)


def _broken_indicator(n: int) -> sparse.csr_matrix:
    y = sparse.csr_matrix(np.ones((n, 3), int))
    y.indices[-1] = 10**8
    return y


def good_labels(codes: np.ndarray, kind: str) -> Value:
    """Valid labels of a kind from `LABEL_KINDS` for rows of these classes."""
    return Value(_GOOD[kind](codes), kind, GOOD)


def changed_labels(random: Random, labels: Any) -> Value:
    """Odd, bad or wrong labels in place of good ones."""
    return change(random, labels, _ODD, _BAD, WRONG_TYPES)


LABEL_KINDS = tuple(_GOOD)
