"""The bag head on sparse rows: a learned bag of features under a linear head.

    u(x) = s Σ_f x_f e_f,   ξ_y(x) = √D w_y·u(x) + b_y,

e_f a vector of D numbers for each feature, learned together with the class vectors w; s is one
number for all rows, 1 / their root mean square length. This is fastText's model, under any sampled
objective. Classes share strength through the feature vectors: on rows of a few words out of
thousands, separate weights per class and feature would fit the training rows and little else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.heads.base import Head, HeadOptions
from extremax.heads.table import VectorTable
from extremax.kernels.cpu.threads import active, parallel
from extremax.random import Stream
from extremax.rows import Needs, Rows, Sizes, SparseRows
from extremax.tensors import Tensors, prefixed, under

# Rows per chunk of work.
_CHUNK = 256
# Pairs that one fused kernel may work through before anybody reads the clock.
_PAIRS_AT_ONCE = 2**19
# Both factors of a score move in a step, and all classes share the feature vectors: on the titles
# of `benchmarks/text_peers.py` a third of the rate that suits a linear head was best (0.1 of 0.03,
# 0.1 and 0.2).
RATE = 1.0 / 3.0
# Gradients on feature vectors are smaller than those on class vectors, because most features are
# rare: their accumulators start at a tenth, also chosen by trial on titles.
FEATURE_START = 0.1


class Bags(NamedTuple):
    """Sparse rows and their u(x)."""

    rows: SparseRows
    u: np.ndarray


class BagHead(Head):
    """A vector per feature and a vector and bias per class."""

    fuses_softmax = True

    def __init__(self, n_classes: int, n_features: int, options: HeadOptions) -> None:
        self.options = options
        start, width, form = options.accumulator_start, options.bag_size, options.accumulators
        self.classes = VectorTable(n_classes, width, start, True, form)
        self.features = VectorTable(n_features, width, FEATURE_START * start, False, form)
        # Class vectors start at zero, so feature vectors must not: neither would ever move.
        random = np.random.default_rng(options.seed).standard_normal(
            (n_features, width), np.float32
        )
        random /= math.sqrt(width)
        self.features.weight.copy_(torch.from_numpy(random))

    @classmethod
    def create(
        cls, rows: Rows, labels: np.ndarray, train: np.ndarray, n_classes: int, options: HeadOptions
    ) -> BagHead:
        return cls(n_classes, rows.n_features, options)

    @classmethod
    def needs(cls, sizes: Sizes, options: HeadOptions) -> Needs:
        given = options.bag_size, options.accumulators
        classes = VectorTable.bytes_needed(sizes.classes, *given)
        features = VectorTable.bytes_needed(sizes.features, *given, has_bias=False)
        accumulators = classes[1] + features[1]
        size = classes[0] + features[0] + accumulators
        # The random start of the feature vectors is drawn before it is copied into the table.
        return Needs(size, 4.0 * sizes.features * options.bag_size, size, accumulators)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def bias(self) -> torch.Tensor:
        return self.classes.bias

    @property
    def class_scale(self) -> float:
        """√D."""
        # u has a mean square of about 1/D per dimension; class vectors want inputs of about one.
        return math.sqrt(self.options.bag_size)

    def inputs(
        self, rows: Rows, numbers: np.ndarray | None = None, dropout: Stream | None = None
    ) -> Bags:
        chosen = (rows if numbers is None else rows[numbers]).sparse()
        if dropout is not None and self.options.dropout:
            chosen = chosen.with_dropout(self.options.dropout, dropout)
        return Bags(chosen, self.bags(chosen))

    def bags(self, rows: SparseRows) -> np.ndarray:
        """u(x) of every row, (n, D)."""
        from extremax.kernels.cpu.sparse import add_product

        indptr, indices, values = rows.arrays
        with np.errstate(over="ignore"):  # infinite scores are refused
            scaled = values * np.float32(self.options.scale)
        u = np.zeros((len(rows), self.features.width), np.float32)
        parallel(add_product, len(u), _CHUNK, indptr, indices, scaled, self.features.table(), u)
        return u

    def scores(self, inputs: Bags, classes: torch.Tensor) -> torch.Tensor:
        return self.classes.scores(inputs.u, np.arange(len(classes)), classes, self.class_scale)

    def scores_shared(self, inputs: Bags, own: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        u = torch.from_numpy(inputs.u) * self.class_scale
        together = torch.addmm(self.bias[shared], u, self.classes.weight[shared].T)
        return torch.cat([self.scores(inputs, own), together], 1)

    def scores_all(self, rows: Rows) -> torch.Tensor:
        u = torch.from_numpy(self.bags(rows.sparse()))
        return torch.addmm(self.bias, u * self.class_scale, self.classes.weight.T)

    def step(
        self, inputs: Bags, classes: torch.Tensor, gradient: torch.Tensor, learning_rate: float
    ) -> None:
        """One Adagrad step of both tables."""
        from extremax.kernels.cpu.bag import pull

        numbers = np.arange(len(classes))
        on_u = np.empty_like(inputs.u)
        parallel(
            pull, len(on_u), _CHUNK, self.classes.table(), classes.numpy(), gradient.numpy(),
            np.float32(self.class_scale * self.options.scale), on_u,
        )  # fmt: skip
        rate = RATE * learning_rate
        self.classes.step(inputs.u, numbers, classes, gradient, self.class_scale, rate)
        indptr, indices, values = inputs.rows.arrays
        # A feature's value plays the part that the gradient on its score plays for a class.
        self.features.step(
            on_u,
            np.repeat(numbers, np.diff(indptr)),
            torch.from_numpy(indices.astype(np.int64))[:, None],
            torch.from_numpy(values)[:, None],
            1.0,
            # Class vectors see inputs scaled to a mean square of one, feature vectors do not.
            rate * self.class_scale,
        )

    def fused_examples(self, rows: Rows, n_columns: int) -> int:
        return _PAIRS_AT_ONCE // n_columns

    def softmax_steps(
        self,
        rows: Rows,
        numbers: np.ndarray,
        dropout: Stream,
        classes: torch.Tensor,
        log_q: torch.Tensor,
        weights: np.ndarray | None,
        batch_size: int,
        learning_rates: np.ndarray,
    ) -> np.ndarray:
        """As many steps of ``batch_size`` examples as there are learning rates, of sampled softmax
        without penalty; returns the loss of each example.

        The same as scores, gradient and `step` in turn, in one kernel. It ends with a step whose
        loss is not finite; nothing that is not finite reaches a weight.
        """
        from extremax.kernels.cpu import bag_steps as kernel
        from extremax.kernels.cpu.step_groups import grouped
        from extremax.kernels.cpu.steps import StepPairs, counters

        indptr, indices, values = rows.sparse().arrays
        counts = indptr[numbers + 1] - indptr[numbers]
        ends = np.concatenate([[0], np.cumsum(counts)])
        entries = kernel.BagRows(ends, np.empty(ends[-1], np.int64), np.empty(ends[-1], np.float32))
        parallel(
            kernel.gather_rows, len(numbers), _CHUNK, indptr, indices, values, numbers,
            dropout.key, self.options.dropout, entries,
        )  # fmt: skip
        flat, (n, n_columns) = classes.numpy().ravel(), classes.shape
        first = np.minimum(np.arange(len(learning_rates) + 1) * batch_size, n)
        of_example = np.arange(n) % batch_size
        shape = min(n, batch_size), self.classes.width
        bags = kernel.Bags(
            np.empty(shape, np.float32), np.empty(shape, np.float32), of_example,
            np.repeat(of_example, n_columns), np.repeat(of_example, counts),
        )  # fmt: skip
        pairs = StepPairs(
            classes.numpy(), log_q.numpy(),
            np.empty(0, np.float32) if weights is None else weights.astype(np.float32),
        )  # fmt: skip
        rates = RATE * learning_rates
        losses = np.zeros(n)
        parallel(
            kernel.run_bag_steps, active(), 1, counters(len(rates)),
            kernel.Rates(
                batch_size,
                self.classes.rate(rates).astype(np.float32),
                self.features.rate(rates * self.class_scale).astype(np.float32),
            ),
            pairs, grouped(flat, first * n_columns, self.n_classes),
            entries, grouped(entries.columns, ends[first], len(self.features)),
            self.classes.arrays(), self.features.arrays(),
            kernel.Scales(np.float32(self.options.scale), np.float32(self.class_scale)),
            bags, np.empty(classes.shape, np.float32), losses,
        )  # fmt: skip
        return losses

    def grow(self, n_classes: int) -> None:
        self.classes.grow(n_classes)

    def state(self) -> dict[str, torch.Tensor]:
        return prefixed("classes", self.classes.state()) | prefixed(
            "features", self.features.state()
        )

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        width = VectorTable.validate(tensors.under("classes"), n_classes)
        VectorTable.validate(tensors.under("features"), n_features, width, has_bias=False)
        tensors.nothing_else()

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor], options: HeadOptions) -> BagHead:
        start, form = options.accumulator_start, options.accumulators
        width = state["classes.table"].shape[2]
        if width != options.bag_size:
            raise ArgumentError(
                f"bag_size is {options.bag_size}, but the vectors have {width} numbers"
            )
        head = cls(0, 0, options)
        head.classes = VectorTable.restore(under("classes", state), start, form)
        head.features = VectorTable.restore(under("features", state), FEATURE_START * start, form)
        return head
