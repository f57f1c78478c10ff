"""`LinearHead` on a GPU."""

from __future__ import annotations

import torch

from extremax.heads.device import DeviceHead
from extremax.heads.device_rows import DenseBatch, DenseOnDevice
from extremax.heads.device_table import Rate
from extremax.heads.linear import LinearHead
from extremax.heads.table import VectorTable
from extremax.rows import Rows


class LinearOnDevice(DeviceHead):
    """ξ_y(x) = s·w_y·x + b_y."""

    host: LinearHead

    def host_tables(self) -> tuple[VectorTable, ...]:
        return (self.host.classes,)

    def rows(self, rows: Rows) -> DenseOnDevice:
        return DenseOnDevice(rows.dense(), self.device)

    def noise_rows(self, inputs: DenseBatch) -> torch.Tensor:
        return inputs.features[inputs.rows]

    def scores(self, inputs: DenseBatch, classes: torch.Tensor) -> torch.Tensor:
        return self.classes.scores(*inputs, self.host.scale, classes)

    def step(
        self,
        inputs: DenseBatch,
        classes: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: Rate,
    ) -> None:
        self.classes.step(*inputs, self.host.scale, classes, gradient, learning_rate)

    def scores_shared(self, inputs: DenseBatch, shared: torch.Tensor) -> torch.Tensor:
        shared = shared.clamp(min=0)
        x = self.noise_rows(inputs) * self.host.scale
        return torch.addmm(self.bias[shared], x, self.weight[shared].T)

    def step_shared(
        self, inputs: DenseBatch, shared: torch.Tensor, gradient: torch.Tensor, learning_rate: Rate
    ) -> None:
        x = self.noise_rows(inputs) * self.host.scale
        self.classes.step_sums(shared, gradient.T @ x, gradient.sum(0), learning_rate)

    def exact_step(
        self,
        inputs: DenseBatch,
        truth: torch.Tensor,
        weights: torch.Tensor | None,
        regularization: float,
        learning_rate: Rate,
    ) -> torch.Tensor:
        from extremax.kernels.gpu.exact import exact_step
        from extremax.kernels.gpu.head import Inputs

        rate = self.host.classes.rate(learning_rate)
        given = Inputs(*inputs, self.host.scale)
        return exact_step(self.classes.vectors, given, truth, weights, regularization, rate)

    def decay(self, amount: float) -> None:
        self.classes.shrink(amount * self.host.scale**2)

    def scored(self, rows: Rows) -> tuple[torch.Tensor, float]:
        return torch.from_numpy(rows.dense().float32()).to(self.device), self.host.scale
