"""Copies of heads on a GPU, where they are trained and scored.

The head itself stays in the memory of the host, in the form that is saved: `DeviceHead.fetch`
brings it up to date with its copy, `DeviceHead.send` the copy with it. A seed gives the same bits
on the same GPU; the CPU adds in another order, and draws other random numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from extremax.heads.base import Head
from extremax.heads.blocks import Ranking, check_overflow
from extremax.heads.device_rows import RowsOnDevice, free_bytes
from extremax.heads.device_table import DeviceTable, Rate
from extremax.heads.table import VectorTable
from extremax.rows import Rows

# Rows whose features are sent at a time.
_ROWS = 8192
# Share of the free memory of the device that a copy of the head may take.
_SHARE = 0.5


class DeviceHead(ABC):
    """A copy of a head on a device.

    Nothing here waits for the device, except what answers with tensors of the host.
    """

    def __init__(self, host: Head, device: torch.device) -> None:
        self.host, self.device = host, device
        self._kept: list[list[torch.Tensor]] | None = None
        self.send()

    @abstractmethod
    def host_tables(self) -> tuple[VectorTable, ...]:
        """The tables of the host's head."""

    def send(self) -> None:
        """Copy the head of the host to the device."""
        self.tables = tuple(DeviceTable(table, self.device) for table in self.host_tables())

    def fetch(self) -> None:
        """Copy what the device has to the head of the host."""
        for table, host in zip(self.tables, self.host_tables(), strict=True):
            table.copy_to(host)

    def keep(self) -> bool:
        """Remember the head as it is, on the device; False if there is no room for it."""
        n_bytes = sum(part.nbytes for table in self.tables for part in table.vectors)
        if self._kept is None and n_bytes > _SHARE * free_bytes(self.device):
            return False
        self._kept = [[part.clone() for part in table.vectors] for table in self.tables]
        return True

    def recall(self) -> None:
        """Make the head what was remembered."""
        assert self._kept is not None
        for table, kept in zip(self.tables, self._kept, strict=True):
            for part, value in zip(table.vectors, kept, strict=True):
                part.copy_(value)

    @abstractmethod
    def rows(self, rows: Rows) -> RowsOnDevice:
        """Rows to train on, for batches that the other methods take as ``inputs``."""

    def dropped(self, inputs: Any, generator: torch.Generator) -> Any:
        """The same batch with values dropped at random, in training; here none are."""
        return inputs

    def noise_rows(self, inputs: Any) -> torch.Tensor:
        """What a noise reads of a batch, (n, K)."""
        raise NotImplementedError

    @property
    def classes(self) -> DeviceTable:
        """The vectors and biases of classes."""
        return self.tables[0]

    @property
    def weight(self) -> torch.Tensor:
        """w of the classes, (C, K)."""
        return self.classes.weight

    @property
    def bias(self) -> torch.Tensor:
        """b, (C,)."""
        return self.classes.bias

    @abstractmethod
    def scores(self, inputs: Any, classes: torch.Tensor) -> torch.Tensor:
        """ξ of classes[i, j] on row i, same shape."""

    @abstractmethod
    def step(
        self, inputs: Any, classes: torch.Tensor, gradient: torch.Tensor, learning_rate: Rate
    ) -> None:
        """One Adagrad step given ∂loss/∂ξ of every pair."""

    def scores_shared(self, inputs: Any, shared: torch.Tensor) -> torch.Tensor:
        """ξ of every shared class (m,) on each row, (n, m)."""
        raise NotImplementedError

    def step_shared(
        self, inputs: Any, shared: torch.Tensor, gradient: torch.Tensor, learning_rate: Rate
    ) -> None:
        """`step` on shared classes, all distinct except for those below 0, which are left out."""
        raise NotImplementedError

    def exact_step(
        self,
        inputs: Any,
        truth: torch.Tensor,
        weights: torch.Tensor | None,
        regularization: float,
        learning_rate: Rate,
    ) -> torch.Tensor:
        """As `Head.exact_step`; returns the loss of each example."""
        raise NotImplementedError

    def decay(self, amount: float) -> None:
        """As `Head.decay`."""
        raise NotImplementedError

    # Answers ------------------------------------------------------------------------------------

    @abstractmethod
    def scored(self, rows: Rows) -> tuple[torch.Tensor, float]:
        """What is multiplied with the class vectors for these rows, (n, K) on the device, and the
        factor of the product."""

    def scores_all(self, rows: Rows) -> torch.Tensor:
        """As `Head.scores_all`, on the host."""
        x, scale = self.scored(rows)
        return torch.addmm(self.bias, x * scale, self.weight.T).cpu()

    def rank_and_score(
        self, rows: Rows, labels: np.ndarray, k: int, temperature: float, budget: int
    ) -> tuple[Ranking, torch.Tensor]:
        """As `Head.rank_and_score`, without the scores of every class in memory."""
        from extremax.kernels.gpu.topk import rank_and_score

        k = min(k, self.host.n_classes)
        ranked = torch.empty((len(rows), k), dtype=torch.int64)
        best, out = torch.empty((len(rows), k)), torch.empty(labels.shape)
        for start in range(0, len(rows), _ROWS):
            block = slice(start, min(start + _ROWS, len(rows)))
            x, scale = self.scored(rows[block])
            wanted = torch.from_numpy(np.ascontiguousarray(labels[block])).to(self.device)
            found = rank_and_score(self.weight, self.bias, x, scale, wanted, k, temperature)
            ranked[block], best[block], out[block] = (part.cpu() for part in found)
            check_overflow(best[block] if k else out[block], block)
        return Ranking(ranked, best), out
