"""The linear head ξ_y(x) = s·w_y·x + b_y and its Adagrad state.

s is one number for all features, 1 / their root mean square, so that a learning rate means the
same on features of any scale; features themselves are never copied or changed.

Weights and Adagrad accumulators of a class lie side by side: a step needs both, and finds them on
one page of memory. With rows of 512 floats that made the step 15% faster.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from extremax.kernels.cpu import head as kernel
from extremax.kernels.cpu import steps as steps_kernel
from extremax.kernels.cpu.threads import active, parallel

# Under this many floats a batch touches, threads cost more than they bring.
_PARALLEL_FLOATS = 1 << 19
# The same, where threads need not be woken for it.
_PARALLEL_FLOATS_IN_STEPS = 1 << 16
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
        self._allocate(n_classes, n_features)

    def _allocate(self, n_classes: int, n_features: int) -> None:
        self._table = _zeros((n_classes, 2, n_features))
        self.weight, self.weight_acc = self._table[:, 0], self._table[:, 1]
        self.bias, self.bias_acc = _zeros((n_classes,)), _zeros((n_classes,))
        self.weight_acc.fill_(self.accumulator_start)
        self.bias_acc.fill_(self.accumulator_start)

    def __getstate__(self) -> dict[str, Any]:
        # Weights and accumulators are views of the table, which pickle would tear apart.
        views = ("weight", "weight_acc")
        return {name: value for name, value in vars(self).items() if name not in views}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.weight, self.weight_acc = self._table[:, 0], self._table[:, 1]

    def table(self) -> np.ndarray:
        """For kernels: contiguous rows that begin with the weights of a class."""
        width = self.weight.stride(0)
        return self.weight.as_strided((self.n_classes, width), (width, 1)).numpy()

    @property
    def n_classes(self) -> int:
        return len(self.bias)

    def inputs(self, features: np.ndarray) -> np.ndarray:
        """What `scores` and `step` take: the features as they are."""
        return features

    def scores(self, features: np.ndarray, rows: np.ndarray, classes: torch.Tensor) -> torch.Tensor:
        """ξ of classes[i, j] on features[rows[i]], for float32 features."""
        out = torch.empty(classes.shape)
        parallel(
            kernel.score_pairs, len(rows), self._chunk(len(rows), classes.shape[1]),
            self.table(), self.bias.numpy(), features, rows, classes.numpy(),
            np.float32(self.scale), out.numpy(),
        )  # fmt: skip
        return out

    def scores_all(self, features: np.ndarray | torch.Tensor) -> torch.Tensor:
        """ξ of every class, (n, C)."""
        features = torch.as_tensor(features)
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
            self.table(), self.bias.numpy(), self.bias_acc.numpy(), features,
            np.repeat(rows, classes.shape[1]), gradient.numpy().ravel(), np.float32(self.scale),
            np.float32(self._rate(learning_rate)),
        )  # fmt: skip

    def steps(
        self,
        features: np.ndarray,
        rows: np.ndarray,
        classes: torch.Tensor,
        log_q: torch.Tensor,
        weights: np.ndarray | None,
        form: tuple[float, ...],
        batch_size: int,
        learning_rates: np.ndarray,
    ) -> np.ndarray:
        """As many steps of ``batch_size`` examples as there are learning rates, for an objective
        of the logistic ``form``; returns the loss of each example.

        The same as scores, gradient and `step` in turn, in one kernel. It ends with a step whose
        loss is not finite; what is not finite changes no row.
        """
        flat, n_steps = classes.numpy().ravel(), len(learning_rates)
        pairs = batch_size * classes.shape[1]
        order, n_groups = np.empty(len(flat), np.int64), np.empty(n_steps, np.int64)
        alone = np.zeros(len(flat), np.bool_)
        starts = np.empty((n_steps, min(pairs, len(flat)) + 1), np.int64)
        parallel(
            steps_kernel.group_steps, n_steps, max(1, n_steps // 4), flat, pairs, self.n_classes,
            order, starts, n_groups, alone,
        )  # fmt: skip
        scores = np.empty(classes.shape, np.float32)
        loss = np.zeros(len(classes))
        threaded = pairs * self.weight.shape[1] >= _PARALLEL_FLOATS_IN_STEPS
        parallel(
            steps_kernel.run_steps, active() if threaded else 1, 1, batch_size,
            steps_kernel.counters(n_steps), self._rate(learning_rates).astype(np.float32),
            classes.numpy(), order, starts, n_groups, alone, log_q.numpy(),
            np.empty(0, np.float32) if weights is None else weights.astype(np.float32),
            tuple(np.float32(value) for value in form),
            self.table(), self.bias.numpy(), self.bias_acc.numpy(), features, rows,
            np.repeat(rows, classes.shape[1]), np.float32(self.scale), scores, loss,
        )  # fmt: skip
        return loss

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
        rate = self._rate(learning_rate)
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

    def _rate(self, learning_rate: Any) -> Any:
        """With K features a step of one example moves its score by K times as much."""
        return learning_rate / math.sqrt(self.weight.shape[1])

    def _chunk(self, n: int, rows_each: int) -> int:
        floats = n * rows_each * self.weight.shape[1]
        return n if floats < _PARALLEL_FLOATS else max(1, n // 16)

    def grow(self, n_classes: int) -> None:
        """Rows for classes that appear later, as they would have started."""
        old, n = self.state(), self.n_classes
        self._allocate(n_classes, self.weight.shape[1])
        for name, value in self.state().items():
            value[:n] = old[name]

    def state(self) -> dict[str, torch.Tensor]:
        """``table`` is (C, 2, K): the weights and the accumulators of a class side by side."""
        return {"table": self._table, "bias": self.bias, "bias_acc": self.bias_acc}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])


def _adagrad(
    parameter: torch.Tensor, accumulator: torch.Tensor, gradient: torch.Tensor, rate: float
) -> None:
    accumulator.addcmul_(gradient, gradient)
    parameter.addcdiv_(gradient, accumulator.sqrt(), value=-rate)


def _zeros(shape: tuple[int, ...]) -> torch.Tensor:
    # numpy asks the kernel for huge pages, torch does not: rows are visited at random. Rows that
    # begin on a cache line (where their length allows it) are one line shorter to read.
    size = math.prod(shape)
    buffer = np.zeros(size + _LINE, np.float32)
    skip = -buffer.ctypes.data // buffer.itemsize % _LINE
    return torch.from_numpy(buffer[skip : skip + size].reshape(shape))
