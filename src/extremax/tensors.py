"""Tensors that come from a file, checked before anything of them reaches a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import numpy as np
import torch

from extremax.errors import ModelFileError

# The largest magnitude of a saved number; trained ones are smaller by many orders.
LARGEST = 1e15


class Tensors:
    """Named tensors of one part of a model. Every method raises `ModelFileError` with the name of
    the tensor, what was expected and what was found.

    owner:  what messages call the part, such as "TreeNoise".
    """

    def __init__(self, tensors: dict[str, torch.Tensor], owner: str) -> None:
        self.tensors, self.owner = tensors, owner
        self._checked: set[str] = set()

    def only(self, names: Iterable[str]) -> None:
        """Exactly these names must be there."""
        expected, found = set(names), set(self.tensors)
        if expected != found:
            missing, unknown = sorted(expected - found), sorted(found - expected)
            what = f"lacks {', '.join(missing)}" if missing else f"has unknown {', '.join(unknown)}"
            raise ModelFileError(f"the saved {self.owner} {what}")

    def nothing_else(self) -> None:
        """There must be no tensors besides those that were checked."""
        self.only(self._checked)

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise ModelFileError(f"{name} of the saved {self.owner} {what}")

    def array(
        self, name: str, dtype: torch.dtype, *shape: int | None, largest: float = LARGEST
    ) -> np.ndarray:
        """A tensor of this type and shape (None for any size); floats within ±``largest``."""
        if name not in self.tensors:
            raise ModelFileError(f"the saved {self.owner} lacks {name}")
        tensor = self.tensors[name]
        self._checked.add(name)
        found = tuple(tensor.shape)
        fits = len(found) == len(shape) and all(
            wanted in (None, size) for wanted, size in zip(shape, found, strict=True)
        )
        if tensor.dtype != dtype or not fits:
            self._refuse(name, f"is {tensor.dtype} {found}, expected {dtype} {shape}")
        # NaN is not within bounds either. Sums of products beyond them overflow in float32.
        if tensor.dtype.is_floating_point and not bool((tensor.abs() <= largest).all()):
            self._refuse(name, f"has NaN or values beyond ±{largest:g}")
        return tensor.numpy()

    def number(self, name: str, low: float, high: float, dtype: torch.dtype = torch.int64) -> float:
        """A single number in [low, high]."""
        value = self.array(name, dtype).item()
        if not low <= value <= high:
            self._refuse(name, f"is {value}, expected {low} to {high}")
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        """A single int64 in [low, high]."""
        return int(self.number(name, low, high))

    def indices(
        self, name: str, below: int, *shape: int | None, low: int = 0,
        dtype: torch.dtype = torch.int64,
    ) -> np.ndarray:  # fmt: skip
        """Integers in [low, below)."""
        array = self.array(name, dtype, *shape)
        if array.size and not (array.min() >= low and array.max() < below):
            found = f"has values from {array.min()} to {array.max()}"
            self._refuse(name, f"{found}, expected {low} to {below - 1}")
        return array

    def permutation(self, name: str, n: int | None = None) -> np.ndarray:
        """Each of 0..n−1 once."""
        array = self.array(name, torch.int64, n)
        seen = np.zeros(len(array), bool)
        seen[self.indices(name, len(array), n)] = True
        if not seen.all():
            self._refuse(name, "is not a permutation")
        return array

    def offsets(self, name: str, total: int, n: int | None = None) -> np.ndarray:
        """Rising int64 from 0 to ``total``."""
        array = self.array(name, torch.int64, n)
        if not len(array) or array[0] != 0 or array[-1] != total or (np.diff(array) < 0).any():
            self._refuse(name, f"must rise from 0 to {total}")
        return array

    def positive(self, *arrays: np.ndarray) -> None:
        """Accumulators must be above zero."""
        if any(array.size and not array.min() > 0 for array in arrays):
            self._refuse("accumulators", "must be above zero")

    def not_negative(self, name: str, array: np.ndarray) -> None:
        """Sums of squares must not be below zero."""
        if array.size and array.min() < 0:
            self._refuse(name, "must not be negative")

    def rising(self, name: str, differences: np.ndarray) -> None:
        """Neighboring values must rise."""
        if len(differences) and not differences.min() > 0:
            self._refuse(name, "must rise")

    def under(self, prefix: str, owner: str | None = None) -> Tensors:
        """The tensors whose names begin with ``prefix.``, without it."""
        below = under(prefix, self.tensors)
        self._checked |= prefixed(prefix, below).keys()
        return Tensors(below, owner or self.owner)


def under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with ``prefix.``, without it."""
    return {k[len(prefix) + 1 :]: v for k, v in tensors.items() if k.startswith(prefix + ".")}


def prefixed(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors under names that begin with ``prefix.``."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
