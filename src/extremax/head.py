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
# Scores that each thread holds in a step over every class.
_EXACT_SCORES = 1 << 20
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

    def exact_step(
        self,
        features: np.ndarray,
        rows: np.ndarray,
        truth: torch.Tensor,
        weights: torch.Tensor | None,
        penalty: float,
        learning_rate: float,
    ) -> float:
        """One Adagrad step of exact softmax; returns the summed loss. Nothing is touched if that
        is not finite.

        −log p_y + λ(ξ_y² + (1/C) Σ ξ²). Classes are taken in blocks, twice: for log Σ e^ξ, then
        for the gradient (p − y) ⊗ x of the block's rows. Memory does not grow with C. Threads
        share blocks and not a product: how BLAS adds up depends on its number of threads.
        """
        x = torch.from_numpy(features[rows]) * self.scale
        each = torch.ones(len(x)) if weights is None else weights
        rate = learning_rate / math.sqrt(self.weight.shape[1])
        size = max(1, _EXACT_SCORES // max(1, len(x)))
        n_blocks = -(-self.n_classes // size)
        parts, squares = torch.empty((n_blocks, len(x))), torch.zeros((n_blocks, len(x)))
        own = torch.empty(len(x))

        def scores_of(i: int) -> tuple[slice, torch.Tensor]:
            block = slice(i * size, min((i + 1) * size, self.n_classes))
            return block, torch.addmm(self.bias[block], x, self.weight[block].T)

        def add_up(start: int, stop: int) -> None:
            torch.set_num_threads(1)
            for i in range(start, stop):
                parts[i] = scores_of(i)[1].logsumexp(1)

        def update(start: int, stop: int) -> None:
            torch.set_num_threads(1)
            for i in range(start, stop):
                block, scores = scores_of(i)
                here = torch.nonzero((truth >= block.start) & (truth < block.stop))[:, 0]
                pairs = here, truth[here] - block.start
                own[here] = scores[pairs]
                gradient = torch.exp(scores - log_z[:, None])
                gradient[pairs] -= 1.0
                if penalty:
                    squares[i] = scores.square().sum(1)
                    gradient.add_(scores, alpha=2.0 * penalty / self.n_classes)
                    gradient[pairs] += 2.0 * penalty * scores[pairs]
                gradient *= each[:, None]
                _adagrad(self.weight[block], self.weight_acc[block], gradient.T @ x, rate)
                _adagrad(self.bias[block], self.bias_acc[block], gradient.sum(0), rate)

        n_threads = torch.get_num_threads()
        try:
            parallel(add_up, n_blocks, 1)
            log_z = parts.logsumexp(0)
            if not log_z.isfinite().all():
                return math.nan
            parallel(update, n_blocks, 1)
        finally:
            torch.set_num_threads(n_threads)
        loss = log_z - own + penalty * (own.square() + squares.sum(0) / self.n_classes)
        return float((loss * each).double().sum())

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


def _adagrad(
    parameter: torch.Tensor, accumulator: torch.Tensor, gradient: torch.Tensor, rate: float
) -> None:
    accumulator.addcmul_(gradient, gradient)
    parameter.addcdiv_(gradient, accumulator.sqrt(), value=-rate)


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
