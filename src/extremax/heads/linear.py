"""The linear head on dense rows, ξ_y(x) = s·w_y·x + b_y.

s is one number for all features, 1 / their root mean square, so that a learning rate means the same
on features of any scale; features themselves are never copied or changed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from extremax.heads.base import Head, HeadOptions
from extremax.heads.table import VectorTable, add_rows
from extremax.kernels.cpu.threads import active, parallel
from extremax.random import Stream
from extremax.rows import Needs, Rows, Sizes
from extremax.tensors import Tensors

# Below this many floats touched by a batch, threads cost more than they bring, where they need not
# be woken for it.
_PARALLEL_FLOATS = 1 << 16
# Pairs that one fused kernel may work through before anybody reads the clock, and floats that may
# be copied for them where kernels cannot read the rows in place.
_PAIRS_AT_ONCE, _FLOATS_AT_ONCE = 2**17, 2**21
# Scores that each thread holds in a step over every class.
_EXACT_SCORES = 1 << 20


class DenseInputs(NamedTuple):
    """The rows features[rows[i]]: the whole array where that saves a copy."""

    features: np.ndarray
    rows: np.ndarray


class LinearHead(Head):
    """One vector and bias per class."""

    fuses_steps = True
    decays = True
    has_vectors = True

    def __init__(
        self,
        n_classes: int,
        n_features: int,
        accumulator_start: float = 1.0,
        scale: float = 1.0,
        accumulators: str = "weight",
    ) -> None:
        self.options = HeadOptions(accumulator_start, scale, accumulators=accumulators)
        self.classes = VectorTable(
            n_classes, n_features, accumulator_start, accumulators=accumulators
        )

    @classmethod
    def create(
        cls, rows: Rows, labels: np.ndarray, train: np.ndarray, n_classes: int, options: HeadOptions
    ) -> LinearHead:
        head = cls(n_classes, rows.n_features, *_table_options(options))
        head.options = options
        return head

    @classmethod
    def needs(cls, sizes: Sizes, options: HeadOptions) -> Needs:
        weights, accumulators = VectorTable.bytes_needed(
            sizes.classes, sizes.features, options.accumulators
        )
        size = weights + accumulators
        return Needs(kept=size, saved=size, accumulators=accumulators)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def scale(self) -> float:
        return self.options.scale

    @property
    def weight(self) -> torch.Tensor:
        """w, (C, K)."""
        return self.classes.weight

    @property
    def bias(self) -> torch.Tensor:
        return self.classes.bias

    # `ClassVectors`, for noises that follow the head.

    @property
    def vectors(self) -> LinearHead:
        return self

    def table(self) -> np.ndarray:
        return self.classes.table()

    def pair_scores(
        self, features: np.ndarray, rows: np.ndarray, classes: torch.Tensor
    ) -> torch.Tensor:
        return self.classes.scores(features, rows, classes, self.scale)

    def all_scores(self, features: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, features * self.scale, self.weight.T)

    # `Head`.

    def inputs(
        self, rows: Rows, numbers: np.ndarray | None = None, dropout: Stream | None = None
    ) -> DenseInputs:
        return DenseInputs(
            *rows.dense().batch(np.arange(len(rows)) if numbers is None else numbers)
        )

    def scores(self, inputs: DenseInputs, classes: torch.Tensor) -> torch.Tensor:
        return self.pair_scores(*inputs, classes)

    def scores_shared(
        self, inputs: DenseInputs, own: torch.Tensor, shared: torch.Tensor
    ) -> torch.Tensor:
        features, numbers = inputs
        x = torch.from_numpy(np.asarray(features[numbers], np.float32)) * self.scale
        together = torch.addmm(self.bias[shared], x, self.classes.weight[shared].T)
        return torch.cat([self.scores(inputs, own), together], 1) if own.shape[1] else together

    def scores_all(self, rows: Rows) -> torch.Tensor:
        return self.all_scores(torch.from_numpy(rows.dense().float32()))

    def step(
        self,
        inputs: DenseInputs,
        classes: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        self.classes.step(*inputs, classes, gradient, self.scale, learning_rate)

    def step_shared(
        self,
        inputs: DenseInputs,
        own: torch.Tensor,
        shared: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        features, numbers = inputs
        x = torch.from_numpy(np.asarray(features[numbers], np.float32)) * self.scale
        n_own = own.shape[1]
        on_own, on_shared = gradient[:, :n_own].reshape(-1), gradient[:, n_own:]
        touched, place = torch.unique(torch.cat([shared, own.reshape(-1)]), return_inverse=True)
        if len(touched) == len(shared) and not n_own:
            self.classes.step_sums(shared, on_shared.T @ x, on_shared.sum(0), learning_rate)
            return
        shared_place, own_place = place[: len(shared)], place[len(shared) :]
        sums, bias_sums = torch.zeros((len(touched), x.shape[1])), torch.zeros(len(touched))
        sums.index_add_(0, shared_place, on_shared.T @ x)
        add_rows(sums, own_place, on_own, torch.arange(len(x)).repeat_interleave(n_own), x)
        bias_sums.index_add_(0, place, torch.cat([on_shared.sum(0), on_own]))
        self.classes.step_sums(touched, sums, bias_sums, learning_rate)

    def fused_examples(self, rows: Rows, n_columns: int) -> int:
        n_examples, dense = _PAIRS_AT_ONCE // n_columns, rows.dense()
        return (
            n_examples if dense.readable else min(n_examples, _FLOATS_AT_ONCE // dense.n_features)
        )

    def logistic_steps(
        self,
        inputs: DenseInputs,
        classes: torch.Tensor,
        log_q: torch.Tensor,
        weights: np.ndarray | None,
        form: tuple[float, ...],
        batch_size: int,
        learning_rates: np.ndarray,
    ) -> np.ndarray:
        """As many steps of ``batch_size`` examples as there are learning rates, for an objective of
        the logistic ``form`` (`extremax.kernels.cpu.steps`); returns the loss of each example.

        The same as scores, gradient and `step` in turn, in one kernel. It ends with a step whose
        loss is not finite; nothing that is not finite reaches a weight.
        """
        from extremax.kernels.cpu import steps as kernel
        from extremax.kernels.cpu.head import Inputs
        from extremax.kernels.cpu.step_groups import grouped

        features, rows = inputs
        flat, n_steps = classes.numpy().ravel(), len(learning_rates)
        per_step = batch_size * classes.shape[1]
        rates = self.classes.rate(learning_rates).astype(np.float32)
        pairs = kernel.StepPairs(
            classes.numpy(),
            log_q.numpy(),
            np.empty(0, np.float32) if weights is None else weights.astype(np.float32),
        )
        bounds = np.minimum(np.arange(n_steps + 1) * per_step, len(flat))
        groups = grouped(flat, bounds, self.n_classes)
        scores, loss = np.empty(classes.shape, np.float32), np.zeros(len(classes))
        threaded = per_step * self.classes.width >= _PARALLEL_FLOATS
        parallel(
            kernel.run_steps, active() if threaded else 1, 1, kernel.counters(n_steps),
            kernel.Schedule(batch_size, rates), pairs, groups,
            kernel.Logistic(*(np.float32(value) for value in form)), self.classes.arrays(),
            Inputs(features, rows, np.float32(self.scale)), np.repeat(rows, classes.shape[1]),
            scores, loss,
        )  # fmt: skip
        return loss

    def exact_step(
        self,
        inputs: DenseInputs,
        truth: torch.Tensor,
        weights: torch.Tensor | None,
        regularization: float,
        learning_rate: float,
    ) -> float:
        """As `Head.exact_step`, in memory that does not grow with C.

        Classes are taken in blocks, twice: for log Σ e^ξ, then for the gradient (p − y) ⊗ x of the
        block's rows. Threads share blocks and not a product: the order in which BLAS adds depends
        on its number of threads.
        """
        x = torch.from_numpy(inputs.features[inputs.rows]) * self.scale
        example_weights = torch.ones(len(x)) if weights is None else weights
        rate = self.classes.rate(learning_rate)
        size = max(1, _EXACT_SCORES // max(1, len(x)))
        n_blocks = -(-self.n_classes // size)
        log_sums, squares = torch.empty((n_blocks, len(x))), torch.zeros((n_blocks, len(x)))
        true_scores = torch.empty(len(x))

        def scores_of(i: int) -> tuple[slice, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
            """Block i of the classes, their scores, and where those of the true classes are."""
            block = slice(i * size, min((i + 1) * size, self.n_classes))
            inside = torch.nonzero((truth >= block.start) & (truth < block.stop))[:, 0]
            scores = torch.addmm(self.bias[block], x, self.weight[block].T)
            return block, scores, (inside, truth[inside] - block.start)

        def add_up(start: int, stop: int) -> None:
            torch.set_num_threads(1)
            for i in range(start, stop):
                _, scores, pairs = scores_of(i)
                log_sums[i] = scores.logsumexp(1)
                true_scores[pairs[0]] = scores[pairs]
                if regularization:
                    squares[i] = scores.square().sum(1)

        def update(start: int, stop: int) -> None:
            torch.set_num_threads(1)
            for i in range(start, stop):
                block, scores, pairs = scores_of(i)
                gradient = torch.exp(scores - log_z[:, None])
                gradient[pairs] -= 1.0
                if regularization:
                    gradient.add_(scores, alpha=2.0 * regularization / self.n_classes)
                    gradient[pairs] += 2.0 * regularization * scores[pairs]
                gradient *= example_weights[:, None]
                self.classes.step_block(block, gradient.T @ x, gradient.sum(0), rate)

        n_threads = torch.get_num_threads()
        try:
            parallel(add_up, n_blocks, 1)
            log_z = log_sums.logsumexp(0)
            penalty = regularization * (true_scores.square() + squares.sum(0) / self.n_classes)
            loss = float(((log_z - true_scores + penalty) * example_weights).double().sum())
            if math.isfinite(loss):
                parallel(update, n_blocks, 1)
        finally:
            torch.set_num_threads(n_threads)
        return loss

    def set_weights(self, columns: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
        self.weight.zero_()
        self.weight[:, torch.from_numpy(columns)] = torch.from_numpy(weight.T / self.scale)
        self.bias.copy_(torch.from_numpy(bias))

    def decay(self, amount: float) -> None:
        self.classes.shrink(amount * self.scale**2)

    def grow(self, n_classes: int) -> None:
        self.classes.grow(n_classes)

    def state(self) -> dict[str, torch.Tensor]:
        return self.classes.state()

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        VectorTable.validate(tensors, n_classes, n_features)

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor], options: HeadOptions) -> LinearHead:
        head = cls(0, 0, *_table_options(options))
        head.options = options
        head.classes = VectorTable.restore(state, options.accumulator_start, options.accumulators)
        return head


def _table_options(options: HeadOptions) -> tuple[float, float, str]:
    return options.accumulator_start, options.scale, options.accumulators
