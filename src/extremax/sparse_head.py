"""The head with a weight only where class and feature met in training, and exact softmax on it.

    ξ_y(x) = s Σ_{f in support of y} w_yf x_f + b_y

A row has a few features and each of them met a few classes, so the exact likelihood, its gradient
and the best classes cost no more than these entries (`extremax.kernels.cpu.sparse_head`). Nothing
is shared between classes: it is at home where features name the class, as the pieces of a word do
(`examples/spelling.py`), and elsewhere the yardstick, as exact softmax is on dense rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from extremax.features.rows import SparseRows
from extremax.kernels.cpu import sparse_head as kernel
from extremax.kernels.cpu.threads import active as n_threads
from extremax.kernels.cpu.threads import parallel

# A feature in more than this share of the rows is common.
_COMMON = 0.03
# Active classes that one step may have in all: memory, and so the size of a step, is bounded.
_ACTIVE = 1 << 24
# Rows that one thread takes at a time, at least and at most: each time it makes room for every
# class, but no thread should wait.
_CHUNK = 16, 128
# Class sums to this power: a feature that few rows of a class have tells more than their share. On
# held-out titles and misspelt words 0.7 was best together, of 0.3, 0.5, 0.7 and 1.
_DAMPING = 0.7


class Biases(NamedTuple):
    """b, e^(b − top), the highest b, and the sum of the second."""

    bias: np.ndarray
    rises: np.ndarray
    top: float
    rest: float


class SparseHead:
    def __init__(
        self, entries: np.ndarray, classes: np.ndarray, n_classes: int, start: float, scale: float
    ) -> None:
        """Feature f has a weight for classes[entries[f] : entries[f + 1]]."""
        self.entries, self.support = entries, classes
        self.accumulator_start, self.scale = start, scale
        self.entry_weight = np.zeros(len(classes), np.float32)
        self.entry_acc = np.full(len(classes), start, np.float32)
        self.bias = torch.zeros(n_classes)
        self.bias_acc = torch.full((n_classes,), start)

    @classmethod
    def of(
        cls,
        features: SparseRows,
        labels: np.ndarray,
        rows: np.ndarray,
        n_classes: int,
        start: float,
        scale: float,
        many: int = 1_000,
    ) -> SparseHead:
        """With the support of these rows. A feature in more than `_COMMON` of them that met more
        than ``many`` classes says little of any, and would have most entries; it gets none."""
        ones = np.ones(len(rows), np.float32)
        members = sparse.csr_matrix((ones, (labels[rows], rows)), shape=(n_classes, len(features)))
        pattern = features.matrix.copy()
        pattern.data = (pattern.data != 0).astype(np.float32)
        met = sparse.csc_matrix(members @ pattern)
        met.eliminate_zeros()
        met.sort_indices()
        sizes = np.diff(met.indptr)
        common = np.asarray(met.sum(0)).ravel() > _COMMON * len(rows)
        telling = ~common | (sizes <= many)
        kept = np.repeat(telling, sizes)
        sizes = np.where(telling, sizes, 0)
        entries = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(entries, met.indices[kept].astype(np.int64), n_classes, start, scale)

    @property
    def n_classes(self) -> int:
        return len(self.bias)

    def _scaled(
        self, features: SparseRows, temperature: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        indptr, indices, values = features.arrays
        return indptr, indices, values * np.float32(self.scale / temperature)

    def _biases(self, temperature: float = 1.0) -> Biases:
        bias = self.bias.numpy() / np.float32(temperature)
        top = float(bias.max())
        rises = np.exp(bias.astype(np.float64) - top)
        return Biases(bias, rises, top, float(rises.sum()))

    def exact_step(
        self,
        features: SparseRows,
        rows: np.ndarray,
        truth: torch.Tensor,
        weights: torch.Tensor | None,
        penalty: float,
        learning_rate: float,
    ) -> float:
        """Adagrad steps of exact softmax on these rows; returns the summed loss. As many steps as
        keep the active classes of each within bounds. None is taken whose loss is not finite."""
        if penalty:
            raise ValueError("exact softmax on sparse rows has no regularization; use 0")
        total = 0.0
        for some, room in self._parts(features):
            each = None if weights is None else weights.numpy()[some]
            total += self._step(features[some], truth.numpy()[some], each, room, learning_rate)
            if not math.isfinite(total):
                break
        return total

    def _parts(self, features: SparseRows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers of rows whose active classes fit in memory, and room for those of each."""
        size = np.empty(len(features), np.int64)
        parallel(
            kernel.most_active, len(size), 256, features.indptr, features.indices, self.entries,
            size,
        )  # fmt: skip
        size = np.minimum(size, self.n_classes)
        part = np.cumsum(size) // _ACTIVE
        for number in np.unique(part):
            some = np.flatnonzero(part == number)
            yield some, size[some]

    def _step(
        self,
        features: SparseRows,
        truth: np.ndarray,
        weights: np.ndarray | None,
        room: np.ndarray,
        rate: float,
    ) -> float:
        n = len(truth)
        each = np.ones(n) if weights is None else weights.astype(np.float64)
        rows = self._scaled(features)
        biases = self._biases()
        starts, found, share, counts, log_z, log_p = self._active(rows, biases, truth, room)
        loss = -float((each * log_p).sum())
        if not math.isfinite(loss):
            return loss
        if not hasattr(self, "_slope"):
            self._slope = np.zeros(len(self.support))
        parts = n_threads()
        parallel(
            kernel.add_gradients, parts, 1, parts, self.n_classes, *rows, self.entries,
            self.support, truth, each, starts, found, share, counts, self._slope,
        )  # fmt: skip
        slopes = np.empty(self.n_classes)
        kernel.bias_slopes(
            biases.rises, biases.top, truth, each, starts, found, share, counts, log_z, slopes
        )
        touched = np.unique(rows[1])
        parallel(
            kernel.adagrad_features, len(touched), 256, touched, self.entries, self.entry_weight,
            self.entry_acc, self._slope, rate,
        )  # fmt: skip
        slope = torch.from_numpy(slopes).float()
        self.bias_acc.addcmul_(slope, slope)
        self.bias.addcdiv_(slope, self.bias_acc.sqrt(), value=-rate)
        return loss

    def _active(
        self,
        rows: tuple[np.ndarray, ...],
        biases: Biases,
        truth: np.ndarray,
        room: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Where the active classes of each row begin, these and their p, how many they are, log Z,
        and log p of the true class."""
        n = len(truth)
        starts = np.concatenate([[0], np.cumsum(room)])
        found, share = np.empty(starts[-1], np.int64), np.empty(starts[-1])
        counts, log_z, log_p = np.empty(n, np.int64), np.empty(n), np.empty(n)
        parallel(
            kernel.probabilities, n, _chunk(n), *rows, self.entries, self.support,
            self.entry_weight, *biases, truth, starts, found, share, counts, log_z, log_p,
        )  # fmt: skip
        return starts, found, share, counts, log_z, log_p

    def log_probs(
        self, features: SparseRows, labels: np.ndarray, temperature: float = 1.0
    ) -> torch.Tensor:
        """log p of labels (n, j), exactly, at the cost of the active classes."""
        out = torch.empty(labels.shape)
        parallel(
            kernel.log_probs, len(labels), _chunk(len(labels)),
            *self._scaled(features, temperature), self.entries, self.support, self.entry_weight,
            *self._biases(temperature), labels, out.numpy(),
        )  # fmt: skip
        return out

    def set_means(self, features: SparseRows, labels: np.ndarray, rows: np.ndarray) -> None:
        """m_y ∝ sign(s_y) |s_y|^0.7, s_y the sum of the rows of class y, and of unit length: the
        means of classes whose rows differ are short, and would never win."""
        weight = self.entry_weight
        weight[:] = 0.0
        # Scaled, because sums of large features would be infinite.
        kernel.add_rows(
            rows, labels, self.scale, *features.arrays, self.entries, self.support, weight
        )
        weight[:] = np.sign(weight) * np.abs(weight) ** np.float32(_DAMPING)
        squares = np.bincount(self.support, np.square(weight, dtype=np.float64), self.n_classes)
        weight /= np.sqrt(np.maximum(squares, 1e-30))[self.support].astype(np.float32)

    def scores_all(self, features: SparseRows) -> torch.Tensor:
        """ξ of every class, (n, C)."""
        out = self.bias.repeat(len(features), 1)
        parallel(
            kernel.add_scores, len(out), _chunk(len(out)), *self._scaled(features), self.entries,
            self.support, self.entry_weight, out.numpy(),
        )  # fmt: skip
        return out

    def topk(
        self, features: SparseRows, k: int, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The k likeliest classes, exactly, and their log-probabilities, at the cost of the active
        ones."""
        labels = torch.empty((len(features), k), dtype=torch.int64)
        log_p = torch.empty((len(features), k))
        biases = self._biases(temperature)
        by_bias = np.argsort(-biases.bias, kind="stable")
        parallel(
            kernel.best, len(labels), _chunk(len(labels)), *self._scaled(features, temperature),
            self.entries, self.support, self.entry_weight, *biases, by_bias, labels.numpy(),
            log_p.numpy(),
        )  # fmt: skip
        return labels, log_p

    def grow(self, n_classes: int) -> None:
        """Classes that appear later get a bias, the least there is; what features they have was
        not known."""
        more = n_classes - self.n_classes
        self.bias = torch.cat([self.bias, torch.full((more,), float(self.bias.min()))])
        self.bias_acc = torch.cat([self.bias_acc, torch.full((more,), self.accumulator_start)])

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "entries": torch.from_numpy(self.entries),
            "support": torch.from_numpy(self.support),
            "entry_weight": torch.from_numpy(self.entry_weight),
            "entry_acc": torch.from_numpy(self.entry_acc),
            "bias": self.bias,
            "bias_acc": self.bias_acc,
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])


def _chunk(n_rows: int) -> int:
    """Rows that one thread takes at a time."""
    return int(np.clip(n_rows // (2 * n_threads()), *_CHUNK))
