"""`BagHead` on a GPU."""

from __future__ import annotations

import numpy as np
import torch

from extremax.heads.bag import RATE, BagHead
from extremax.heads.device import DeviceHead
from extremax.heads.device_rows import SparseBatch, SparseOnDevice
from extremax.heads.device_table import DeviceTable, Rate
from extremax.heads.table import VectorTable
from extremax.rows import Rows


class BagOnDevice(DeviceHead):
    """u(x) = s Σ_f x_f e_f,  ξ_y(x) = √D w_y·u(x) + b_y."""

    host: BagHead

    def host_tables(self) -> tuple[VectorTable, ...]:
        return self.host.classes, self.host.features

    def rows(self, rows: Rows) -> SparseOnDevice:
        return SparseOnDevice(rows.sparse(), self.device)

    @property
    def features(self) -> DeviceTable:
        """The vectors of features."""
        return self.tables[1]

    def bags(self, batch: SparseBatch) -> torch.Tensor:
        """u(x) of every row, (n, D)."""
        return torch.nn.functional.embedding_bag(
            batch.columns, self.features.weight, batch.offsets, mode="sum",
            per_sample_weights=batch.values * self.host.options.scale,
        )  # fmt: skip

    def scores(self, inputs: SparseBatch, classes: torch.Tensor) -> torch.Tensor:
        u = self.bags(inputs)
        numbers = torch.arange(len(u), device=self.device)
        return self.classes.scores(u, numbers, self.host.class_scale, classes)

    def step(
        self, inputs: SparseBatch, classes: torch.Tensor, gradient: torch.Tensor,
        learning_rate: Rate,
    ) -> None:  # fmt: skip
        from extremax.kernels.gpu.head import sum_rows

        u, scale = self.bags(inputs), self.host.class_scale
        numbers = torch.arange(len(u), device=self.device)
        on_u = sum_rows(self.weight, classes, gradient.contiguous())
        on_u *= scale * self.host.options.scale
        rate = RATE * learning_rate
        self.classes.step(u, numbers, scale, classes, gradient, rate)
        # Rates and scales as in `BagHead.step`.
        self.features.step(
            on_u, inputs.rows, 1.0, inputs.columns[:, None], inputs.values[:, None], rate * scale
        )

    def dropped(self, batch: SparseBatch, generator: torch.Generator) -> SparseBatch:
        """Each value is zero with the probability of dropout, otherwise larger by as much."""
        share = self.host.options.dropout
        if not share:
            return batch
        uniform = torch.rand(batch.values.shape, generator=generator, device=self.device)
        values = torch.where(uniform >= share, batch.values / (1.0 - share), 0.0)
        return batch._replace(values=values)

    def scored(self, rows: Rows) -> tuple[torch.Tensor, float]:
        if not len(rows):
            return torch.empty((0, self.weight.shape[1]), device=self.device), 1.0
        (batch,) = self.rows(rows).batches(np.arange(len(rows)), len(rows))
        return self.bags(batch), self.host.class_scale
