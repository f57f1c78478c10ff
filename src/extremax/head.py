"""The linear head ξ_y(x) = s·w_y·x + b_y and its Adagrad state.

s is one number for all features, 1 / their root mean square, so that a learning rate means the
same on features of any scale; features themselves are never copied or changed.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from extremax.kernels.cpu import head as kernel
from extremax.kernels.cpu.threads import parallel

# Under this many floats a batch touches, threads cost more than they bring.
_PARALLEL_FLOATS = 1 << 19
# Floats in a cache line.
_LINE = 16


class LinearHead:
    def __init__(
        self, n_classes: int, n_features: int, accumulator_start: float, scale: float = 1.0
    ) -> None:
        if not accumulator_start > 0:
            raise ValueError(f"accumulator_start must be > 0, got {accumulator_start}")
        self.accumulator_start, self.scale = accumulator_start, scale
        self.weight = _filled((n_classes, n_features), 0.0)
        self.bias = _filled((n_classes,), 0.0)
        self.weight_acc = _filled((n_classes, n_features), accumulator_start)
        self.bias_acc = _filled((n_classes,), accumulator_start)

    @property
    def n_classes(self) -> int:
        return len(self.bias)

    def scores(self, features: np.ndarray, rows: np.ndarray, classes: torch.Tensor) -> torch.Tensor:
        """ξ of classes[i, j] on features[rows[i]], for float32 features."""
        out = torch.empty(classes.shape)
        parallel(
            kernel.score_pairs, len(rows), self._chunk(len(rows), classes.shape[1]),
            self.weight.numpy(), self.bias.numpy(), features, rows, classes.numpy(),
            np.float32(self.scale), out.numpy(),
        )  # fmt: skip
        return out

    def scores_all(self, features: torch.Tensor) -> torch.Tensor:
        """ξ of every class, (n, C)."""
        return torch.addmm(self.bias, features * self.scale, self.weight.T)

    def step(
        self,
        features: np.ndarray,
        rows: np.ndarray,
        classes: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        """One Adagrad step, given ∂loss/∂ξ of every pair. Each touched row is written once."""
        flat = classes.numpy().ravel()
        order, starts = np.empty(len(flat), np.int64), np.empty(len(flat) + 1, np.int64)
        n_groups = kernel.group_by_class(flat, self.n_classes, order, starts)
        parallel(
            kernel.update_rows, n_groups, self._chunk(n_groups, 2), flat, order, starts,
            self.weight.numpy(), self.bias.numpy(), self.weight_acc.numpy(), self.bias_acc.numpy(),
            features, rows, gradient.numpy(), np.float32(self.scale),
            np.float32(learning_rate / math.sqrt(self.weight.shape[1])),
        )  # fmt: skip

    def _chunk(self, n: int, rows_each: int) -> int:
        floats = n * rows_each * self.weight.shape[1]
        return n if floats < _PARALLEL_FLOATS else max(1, n // 16)

    def grow(self, n_classes: int) -> None:
        """Rows for classes that appear later, as they would have started."""
        for name, start in (
            ("weight", 0.0),
            ("bias", 0.0),
            ("weight_acc", self.accumulator_start),
            ("bias_acc", self.accumulator_start),
        ):
            old = getattr(self, name)
            new = _filled((n_classes, *old.shape[1:]), start)
            new[: len(old)] = old
            setattr(self, name, new)

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "weight": self.weight,
            "bias": self.bias,
            "weight_acc": self.weight_acc,
            "bias_acc": self.bias_acc,
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)


def _filled(shape: tuple[int, ...], value: float) -> torch.Tensor:
    # numpy asks the kernel for huge pages, torch does not: rows are visited at random. Rows that
    # begin on a cache line (where their length allows it) are one line shorter to read.
    size = math.prod(shape)
    buffer = np.zeros(size + _LINE, np.float32)
    skip = -buffer.ctypes.data // buffer.itemsize % _LINE
    array = buffer[skip : skip + size].reshape(shape)
    if value:
        array.fill(value)
    return torch.from_numpy(array)
