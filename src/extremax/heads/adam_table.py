"""A table of vectors with the state of Adam, at the cost of the rows that a step touches.

Under Adam every number keeps moving after a gradient: its mean fades by β₁ per step, which moves it
about β₁/(1 − β₁) further steps. Optimizers that leave untouched rows alone, such as torch's
SparseAdam, are another method. Here a row that was left alone for some steps makes up for them when
it is next read, by the sum of a geometric series (`extremax.kernels.cpu.adam`): the result of dense
Adam (Kingma & Ba 2015), at sparse cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from extremax.kernels.cpu.threads import parallel
from extremax.tensors import Tensors

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_CHUNK = 256


class AdamTable:
    """n vectors of ``width`` numbers. `values` is up to date after `catch_up` only."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.means, self.squares = torch.zeros_like(values), torch.zeros_like(values)
        self.last = torch.zeros(len(values), dtype=torch.int64)
        self.steps = torch.zeros(1, dtype=torch.int64)
        # The last learning rate, at which rows that lag behind make up for their steps.
        self.rate = torch.zeros(1)

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: np.ndarray) -> torch.Tensor:
        """A copy of these rows, up to date."""
        self.catch_up(rows)
        return self.values[torch.from_numpy(rows)]

    def catch_up(self, rows: np.ndarray | None = None) -> None:
        """Bring these rows, by default all, to the current step."""
        from extremax.kernels.cpu.adam import catch_up

        rows = np.arange(len(self)) if rows is None else rows
        parallel(catch_up, len(rows), _CHUNK, rows, self._arrays(), self._rates())

    def step(self, rows: np.ndarray, gradients: torch.Tensor, rate: float) -> None:
        """One step of Adam; ``rows`` are distinct and were read since the last step."""
        from extremax.kernels.cpu.adam import update

        self.steps += 1
        self.rate.fill_(rate)
        parallel(update, len(rows), _CHUNK, rows, gradients.numpy(), self._arrays(), self._rates())

    def _arrays(self) -> Any:
        from extremax.kernels.cpu.adam import AdamRows

        return AdamRows(
            self.values.numpy(), self.means.numpy(), self.squares.numpy(), self.last.numpy()
        )

    def _rates(self) -> Any:
        from extremax.kernels.cpu.adam import Rates

        return Rates(int(self.steps), float(self.rate), _BETA1, _BETA2, _EPSILON)

    def grow(self, more: torch.Tensor) -> None:
        """Append vectors that no step has touched."""
        grown = AdamTable(torch.cat([self.values, more]))
        for name, value in grown.state().items():
            before = self.state()[name]
            value[: len(before)] = before
        self.__dict__.update(vars(grown))

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "values": self.values,
            "means": self.means,
            "squares": self.squares,
            "last": self.last,
            "steps": self.steps,
            "rate": self.rate,
        }

    @staticmethod
    def validate(tensors: Tensors, n: int, width: int | None) -> int:
        """Check a saved state; returns the width of the vectors."""
        found = tensors.array("values", torch.float32, n, width).shape[1]
        tensors.array("means", torch.float32, n, found)
        tensors.not_negative("squares", tensors.array("squares", torch.float32, n, found))
        (steps,) = tensors.indices("steps", 2**53, 1)
        tensors.indices("last", int(steps) + 1, n)
        tensors.not_negative("rate", tensors.array("rate", torch.float32, 1))
        tensors.nothing_else()
        return found

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> AdamTable:
        table = cls(state["values"].clone())
        for name, value in table.state().items():
            value.copy_(state[name])
        return table

    @staticmethod
    def bytes_needed(n: int, width: int) -> float:
        return n * (12.0 * width + 8) + 12
