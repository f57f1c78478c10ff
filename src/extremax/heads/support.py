"""The support head on sparse rows: a weight only where class and feature met in training.

    ξ_y(x) = s Σ_{f in support of y} w_yf x_f + b_y

A row has a few features, and each of them met a few classes, so the exact likelihood, its gradient
and the best classes cost no more than these entries (`extremax.kernels.cpu.support`). Classes share
nothing. This head fits where features name the class, as the pieces of a word do
(`examples/spelling.py`); elsewhere it is the yardstick that exact softmax is on dense rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import sparse

from extremax.errors import ArgumentError
from extremax.heads.base import Head, HeadOptions
from extremax.heads.blocks import Ranking
from extremax.heads.table import LARGEST_SHRINKAGE, chunk_size
from extremax.kernels.cpu.threads import active as n_threads
from extremax.kernels.cpu.threads import parallel
from extremax.random import Stream
from extremax.rows import Needs, Rows, Sizes, SparseRows
from extremax.tensors import Tensors

# A feature in more than this share of the rows is common; one that is common and met more classes
# than the limit says little about any of them, would have most of the entries, and gets none.
_COMMON, _MANY_CLASSES = 0.03, 1_000
# Active classes that one step may have in all: bounds its memory, and so its size.
_MOST_ACTIVE = 1 << 24
# Rows per chunk, at least and at most: each chunk allocates a number per class, but no thread
# should wait for another.
_CHUNK = 16, 128
# Class sums are raised to this power: a feature that few rows of a class have says more than its
# share. On held-out titles and misspelled words 0.7 was best, of 0.3, 0.5, 0.7 and 1.
_DAMPING = np.float32(0.7)
# Entries up to which new classes get weights for every feature.
_MOST_GROWN = 1 << 26


class SupportHead(Head):
    """Feature f has a weight for classes[first[f] : first[f + 1]]."""

    decays = True

    def __init__(
        self, first: np.ndarray, classes: np.ndarray, n_classes: int, options: HeadOptions
    ) -> None:
        start = options.accumulator_start
        self.options = options
        self.first, self.classes = first, classes
        self.weight = np.zeros(len(classes), np.float32)
        self.weight_acc = np.full(len(classes), start, np.float32)
        self._bias = torch.zeros(n_classes)
        self.bias_acc = torch.full((n_classes,), float(start))
        self._gradient = np.zeros(0)

    @classmethod
    def create(
        cls, rows: Rows, labels: np.ndarray, train: np.ndarray, n_classes: int, options: HeadOptions
    ) -> SupportHead:
        """With the support of the training rows."""
        ones = np.ones(len(train), np.float32)
        members = sparse.csr_matrix((ones, (labels[train], train)), shape=(n_classes, len(rows)))
        pattern = rows.sparse().matrix.copy()
        pattern.data = (pattern.data != 0).astype(np.float32)
        met = sparse.csc_matrix(members @ pattern)
        met.eliminate_zeros()
        met.sort_indices()
        sizes = np.diff(met.indptr)
        common = np.asarray(met.sum(0)).ravel() > _COMMON * len(train)
        kept = ~common | (sizes <= _MANY_CLASSES)
        first = np.concatenate([[0], np.cumsum(np.where(kept, sizes, 0))]).astype(np.int64)
        classes = met.indices[np.repeat(kept, sizes)].astype(np.int64)
        return cls(first, classes, n_classes, options)

    @classmethod
    def needs(cls, sizes: Sizes, options: HeadOptions) -> Needs:
        values = sizes.nonzeros * sizes.rows
        pairs = min(values, float(sizes.classes) * sizes.features)
        # Per pair a class, a weight, its accumulator and, in training, its gradient. Starting holds
        # the pairs of class and feature of every value, by class and by feature, and the means.
        return Needs(
            kept=24.0 * pairs + 8.0 * (sizes.classes + sizes.features),
            passing=32.0 * values,
            saved=16.0 * pairs + 8.0 * (sizes.classes + sizes.features),
            accumulators=4.0 * pairs + 4.0 * sizes.classes,
        )

    @property
    def n_classes(self) -> int:
        return len(self._bias)

    @property
    def bias(self) -> torch.Tensor:
        return self._bias

    # What kernels read ------------------------------------------------------------------------

    @property
    def _support(self) -> Any:
        from extremax.kernels.cpu.support import Support

        return Support(self.first, self.classes, self.weight)

    def _scaled(self, rows: Rows, temperature: float = 1.0) -> Any:
        from extremax.kernels.cpu.support import Csr

        indptr, indices, values = rows.sparse().arrays
        return Csr(indptr, indices, values * np.float32(self.options.scale / temperature))

    def _biases(self, temperature: float = 1.0) -> Any:
        from extremax.kernels.cpu.support import Biases

        bias = self._bias.numpy() / np.float32(temperature)
        top = float(bias.max())
        with np.errstate(invalid="ignore"):
            exp = np.exp(bias.astype(np.float64) - top)
        return Biases(bias, exp, top, float(exp.sum()))

    # Scores and steps -------------------------------------------------------------------------

    def inputs(
        self, rows: Rows, numbers: np.ndarray | None = None, dropout: Stream | None = None
    ) -> SparseRows:
        return (rows if numbers is None else rows[numbers]).sparse()

    def scores(self, inputs: SparseRows, classes: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.support import add_pair_scores

        out = self._bias[classes]
        parallel(
            add_pair_scores, len(out), 256, self._scaled(inputs), self._support, classes.numpy(),
            out.numpy(),
        )  # fmt: skip
        return out

    def scores_all(self, rows: Rows) -> torch.Tensor:
        from extremax.kernels.cpu.support import add_scores

        out = self._bias.repeat(len(rows), 1)
        chunk = _chunk(len(out))
        parallel(add_scores, len(out), chunk, self._scaled(rows), self._support, out.numpy())
        return out

    def step(
        self,
        inputs: SparseRows,
        classes: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
    ) -> None:
        from extremax.kernels.cpu.support import add_pair_gradients

        rows = self._scaled(inputs)
        add_pair_gradients(
            rows, self._support, classes.numpy(), gradient.numpy(), self._gradients()
        )
        on_bias = torch.zeros(self.n_classes).index_add_(0, classes.ravel(), gradient.ravel())
        self._adagrad(rows.indices, on_bias, learning_rate)

    def _gradients(self) -> np.ndarray:
        """One number per entry, zero between steps; allocated by the first step."""
        if len(self._gradient) != len(self.weight):
            self._gradient = np.zeros(len(self.weight))
        return self._gradient

    def _adagrad(self, features: np.ndarray, on_bias: torch.Tensor, rate: float) -> None:
        """Adagrad on the entries of these features, by their gradients, and on the biases."""
        from extremax.kernels.cpu.support import adagrad_features

        touched = np.unique(features)
        parallel(
            adagrad_features, len(touched), 256, touched, self._support, self.weight_acc,
            self._gradients(), rate,
        )  # fmt: skip
        self.bias_acc.addcmul_(on_bias, on_bias)
        self._bias.addcdiv_(on_bias, self.bias_acc.sqrt(), value=-rate)

    def exact_step(
        self,
        inputs: SparseRows,
        truth: torch.Tensor,
        weights: torch.Tensor | None,
        regularization: float,
        learning_rate: float,
    ) -> float:
        """As `Head.exact_step` at the cost of the active classes, without regularization, in as
        many steps as keep the active classes of each within memory."""
        if regularization:
            raise ArgumentError(
                "exact softmax on sparse rows supports no regularization; use "
                "ExactSoftmax(regularization=0)"
            )
        example_weights = np.ones(len(truth)) if weights is None else weights.double().numpy()
        total = 0.0
        for numbers, room in self._steps_that_fit(inputs):
            total += self._exact_step(
                inputs[numbers], truth.numpy()[numbers], example_weights[numbers], room,
                learning_rate,
            )  # fmt: skip
            if not math.isfinite(total):
                break
        return total

    def _steps_that_fit(self, rows: SparseRows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers of rows whose active classes fit in memory, and room for those of each row."""
        # A row has no more active classes than its features have entries.
        entries = np.concatenate([[0], np.cumsum(np.diff(self.first)[rows.indices])])
        room = np.minimum(np.diff(entries[rows.indptr]), self.n_classes)
        step = np.cumsum(room) // _MOST_ACTIVE
        for number in np.unique(step):
            numbers = np.flatnonzero(step == number)
            yield numbers, room[numbers]

    def _exact_step(
        self,
        inputs: SparseRows,
        truth: np.ndarray,
        weights: np.ndarray,
        room: np.ndarray,
        rate: float,
    ) -> float:
        from extremax.kernels.cpu import support as kernel

        n, rows, biases = len(truth), self._scaled(inputs), self._biases()
        starts = np.concatenate([[0], np.cumsum(room)])
        active = kernel.Active(
            starts, np.empty(starts[-1], np.int64), np.empty(starts[-1]), np.empty(n, np.int64)
        )
        log_z, log_p = np.empty(n), np.empty(n)
        parallel(
            kernel.probabilities, n, _chunk(n), rows, self._support, biases, truth, active, log_z,
            log_p,
        )  # fmt: skip
        loss = -float((weights * log_p).sum())
        if not math.isfinite(loss):
            return loss
        shares = n_threads()
        parallel(
            kernel.add_gradients, shares, 1, shares, self.n_classes, rows, self._support, truth,
            weights, active, self._gradients(),
        )  # fmt: skip
        on_bias = np.empty(self.n_classes)
        kernel.bias_slopes(biases, truth, weights, active, log_z, on_bias)
        self._adagrad(rows.indices, torch.from_numpy(on_bias).float(), rate)
        return loss

    def decay(self, amount: float) -> None:
        from extremax.kernels.cpu.support import shrink_entries

        n = len(self.weight)
        parallel(
            shrink_entries, n, chunk_size(n, 2), self.weight, self.weight_acc,
            np.float32(min(amount * self.options.scale**2, LARGEST_SHRINKAGE)),
        )  # fmt: skip

    # Probabilities at the cost of the active classes --------------------------------------------

    def rank_and_score(
        self, rows: Rows, labels: np.ndarray, k: int, temperature: float, budget: int
    ) -> tuple[Ranking, torch.Tensor]:
        from extremax.kernels.cpu import support as kernel

        n, k = len(rows), min(k, self.n_classes)
        best = Ranking(torch.empty((n, k), dtype=torch.int64), torch.empty((n, k)))
        log_p, biases = torch.empty(labels.shape), self._biases(temperature)
        shared = _chunk(n), self._scaled(rows, temperature), self._support, biases
        if k:
            by_bias = np.argsort(-biases.bias, kind="stable")
            parallel(kernel.best, n, *shared, by_bias, *(tensor.numpy() for tensor in best))
        if labels.size:
            parallel(kernel.log_probs, n, *shared, labels, log_p.numpy())
        return best, log_p

    # Starting, growing and saving ---------------------------------------------------------------

    def set_means(self, rows: Rows, labels: np.ndarray, train: np.ndarray) -> None:
        """m_y ∝ sign(s_y) |s_y|^0.7, s_y the sum of the rows of class y, of unit length: the means
        of classes whose rows differ are short, and would never win."""
        from extremax.kernels.cpu.support import add_rows

        self.weight[:] = 0.0
        # Scaled, because sums of large features would overflow.
        add_rows(train, labels, self._scaled(rows), self._support)
        self.weight[:] = np.sign(self.weight) * np.abs(self.weight) ** _DAMPING
        squares = np.bincount(
            self.classes, np.square(self.weight, dtype=np.float64), self.n_classes
        )
        norms = np.sqrt(np.maximum(squares, 1e-30))[self.classes]
        self.weight /= norms.astype(np.float32)

    def set_weights(self, columns: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
        """The support becomes every pair of one of the columns and a class."""
        self._set_support(columns, self.n_classes)
        self.weight = np.float32(weight / self.options.scale).ravel()
        self.weight_acc = np.full(len(self.weight), self.options.accumulator_start, np.float32)
        self._bias.copy_(torch.from_numpy(bias))

    def _set_support(self, columns: np.ndarray, n_classes: int) -> None:
        sizes = np.zeros(len(self.first) - 1, np.int64)
        sizes[columns] = n_classes
        self.first = np.concatenate([[0], np.cumsum(sizes)])
        self.classes = np.tile(np.arange(n_classes), len(columns))

    def grow(self, n_classes: int) -> None:
        """New classes get the lowest bias there is and, since their features are unknown, no
        weights, unless every class has some for the same features (`set_weights`)."""
        more, sizes = n_classes - self.n_classes, np.diff(self.first)
        columns = np.flatnonzero(sizes)
        if (sizes[columns] == self.n_classes).all() and len(columns) * n_classes <= _MOST_GROWN:
            weight, acc = (
                np.pad(part.reshape(len(columns), -1), ((0, 0), (0, more)), constant_values=start)
                for part, start in (
                    (self.weight, 0.0), (self.weight_acc, self.options.accumulator_start),
                )
            )  # fmt: skip
            self._set_support(columns, n_classes)
            self.weight, self.weight_acc = weight.ravel(), acc.ravel()
        self._bias = torch.cat([self._bias, torch.full((more,), float(self._bias.min()))])
        start = torch.full((more,), float(self.options.accumulator_start))
        self.bias_acc = torch.cat([self.bias_acc, start])

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "first": torch.from_numpy(self.first),
            "classes": torch.from_numpy(self.classes),
            "weight": torch.from_numpy(self.weight),
            "weight_acc": torch.from_numpy(self.weight_acc),
            "bias": self._bias,
            "bias_acc": self.bias_acc,
        }

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        tensors.only(("first", "classes", "weight", "weight_acc", "bias", "bias_acc"))
        classes = tensors.indices("classes", n_classes, None)
        first = tensors.offsets("first", len(classes), n_features + 1)
        inside = np.ones(len(classes), bool)
        inside[first[:-1][first[:-1] < len(classes)]] = False
        tensors.rising("classes", np.diff(classes)[inside[1:]])
        tensors.array("weight", torch.float32, len(classes))
        tensors.array("bias", torch.float32, n_classes)
        tensors.positive(
            tensors.array("weight_acc", torch.float32, len(classes)),
            tensors.array("bias_acc", torch.float32, n_classes),
        )

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor], options: HeadOptions) -> SupportHead:
        first, classes = state["first"].numpy(), state["classes"].numpy()
        head = cls(first, classes, len(state["bias"]), options)
        head.load_state(state)
        return head


def _chunk(n_rows: int) -> int:
    """Rows that one thread takes at a time."""
    return int(np.clip(n_rows // (2 * n_threads()), *_CHUNK))
