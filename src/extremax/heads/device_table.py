"""`VectorTable` on a GPU."""

from __future__ import annotations

import torch

from extremax.heads.table import LARGEST_SHRINKAGE, VectorTable

#: A learning rate: a number, or a tensor of one on the device, for a graph that is replayed.
Rate = float | torch.Tensor


class DeviceTable:
    """A copy of a table of vectors with Adagrad state, weights and accumulators apart."""

    def __init__(self, host: VectorTable, device: torch.device) -> None:
        from extremax.kernels.gpu.head import Vectors

        self.rate = host.rate
        n = len(host)
        # Kernels expect biases.
        bias = host.bias if len(host.bias) else torch.zeros(n)
        bias_acc = host.bias_acc if len(host.bias_acc) else torch.ones(n)
        parts = host.weight, host.weight_acc, bias, bias_acc
        self.vectors = Vectors(*(part.to(device, copy=True).contiguous() for part in parts))

    @property
    def weight(self) -> torch.Tensor:
        return self.vectors.weight

    @property
    def bias(self) -> torch.Tensor:
        return self.vectors.bias

    def copy_to(self, host: VectorTable) -> None:
        """Copy everything back."""
        host.weight.copy_(self.vectors.weight)
        host.weight_acc.copy_(self.vectors.acc)
        if len(host.bias):
            host.bias.copy_(self.vectors.bias)
            host.bias_acc.copy_(self.vectors.bias_acc)

    def scores(
        self, features: torch.Tensor, rows: torch.Tensor, scale: float, classes: torch.Tensor
    ) -> torch.Tensor:
        """scale · w·features[rows[i]] + b of classes[i, j]."""
        from extremax.kernels.gpu.head import Inputs, score_pairs

        inputs = Inputs(features, rows, scale)
        return score_pairs(self.weight, self.bias, inputs, classes)

    def step(
        self,
        features: torch.Tensor,
        rows: torch.Tensor,
        scale: float,
        ids: torch.Tensor,
        coefficients: torch.Tensor,
        learning_rate: Rate,
    ) -> None:
        """As `VectorTable.step`."""
        from extremax.kernels.gpu.head import Inputs, group_by_class, update_rows

        inputs = Inputs(features, rows, scale)
        rate = self.rate(learning_rate)
        update_rows(group_by_class(ids), self.vectors, inputs, coefficients.contiguous(), rate)

    def step_sums(
        self, ids: torch.Tensor, sums: torch.Tensor, bias_sums: torch.Tensor, learning_rate: Rate
    ) -> None:
        """As `VectorTable.step_sums`; ids below 0 are left out."""
        from extremax.kernels.gpu.head import update_summed

        update_summed(ids, self.vectors, sums, bias_sums, self.rate(learning_rate))

    def shrink(self, amount: float) -> None:
        """As `VectorTable.shrink`."""
        strength = min(self.rate(amount), LARGEST_SHRINKAGE)
        root = self.vectors.acc.sqrt()
        share = strength / (root + strength)
        self.weight.sub_(self.weight * (share if share.ndim == 2 else share[:, None]))
