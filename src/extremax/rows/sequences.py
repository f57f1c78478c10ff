"""Rows that are sequences: the latest items of a session, by their class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse

from extremax.errors import ArgumentError
from extremax.rows.base import Rows
from extremax.rows.dense import DenseRows
from extremax.rows.sparse import SparseRows

#: Items of a sequence that count, its latest ones.
LONGEST = 20
# What a visit weighs per step before the last one, in a bag of visits.
_DECAY = 0.7


class SequenceRows(Rows):
    """Sequences of items, all parts of one array: prefixes of a session share its memory.

    items:        (·,) int32, item numbers from 0 to ``n_items`` − 1.
    ends, sizes:  (n,) int64, where in ``items`` a sequence ends, and its number of items: 0, for
                  no item at all, to `LONGEST`.
    groups:       (n,) what session a sequence belongs to, where that matters.
    """

    name = "sequences"
    consists_of_classes = True

    def __init__(
        self,
        items: np.ndarray,
        ends: np.ndarray,
        sizes: np.ndarray,
        n_items: int,
        groups: np.ndarray | None = None,
    ) -> None:
        self.items = items.astype(np.int32, copy=False)
        self.ends, self.sizes = ends, np.minimum(sizes, LONGEST)
        self.n_items, self.groups = n_items, groups

    @classmethod
    def read(cls, X: Any, min_rows: int = 1) -> SequenceRows:
        raise ArgumentError("sequences need numbers for their items: use Sequences.rows")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ends), self.n_items

    @property
    def nbytes(self) -> int:
        return self.items.nbytes + self.ends.nbytes + self.sizes.nbytes

    @property
    def nonzeros(self) -> float:
        return float(self.sizes.mean()) if len(self) else 0.0

    def __getitem__(self, numbers: Any) -> SequenceRows:
        if torch.is_tensor(numbers):
            numbers = numbers.numpy()
        groups = None if self.groups is None else self.groups[numbers]
        return SequenceRows(
            self.items, self.ends[numbers], self.sizes[numbers], self.n_items, groups
        )

    def visits(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of every visit: its row, its item, and the steps between it and the last one."""
        row = np.repeat(np.arange(len(self)), self.sizes)
        first = np.cumsum(self.sizes) - self.sizes
        place = np.arange(len(row)) - first[row]
        items = self.items[(self.ends - self.sizes)[row] + place]
        return row, items, self.sizes[row] - 1 - place

    def dense(self) -> DenseRows:
        raise ArgumentError("these rows are sequences of items, and this needs dense rows")

    def sparse(self) -> SparseRows:
        """Bags of visits: 0.7^(steps before the last one), summed by item; rows of unit length."""
        row, items, steps = self.visits()
        weights = (_DECAY**steps).astype(np.float32)
        bags = sparse.csr_matrix((weights, (row, items)), self.shape)
        length = np.sqrt(np.asarray(bags.multiply(bags).sum(1))).ravel()
        bags.data /= np.repeat(length, np.diff(bags.indptr)).astype(np.float32)
        return SparseRows.of(bags)

    def joined(self, other: Rows) -> SequenceRows:
        if not isinstance(other, SequenceRows):
            raise ArgumentError(f"sequences cannot be joined with {other.name}")
        return SequenceRows(
            np.concatenate([self.items, other.items]),
            np.concatenate([self.ends, other.ends + len(self.items)]),
            np.concatenate([self.sizes, other.sizes]),
            max(self.n_items, other.n_items),
        )

    def unit_scale(self, numbers: np.ndarray | None = None) -> float:
        return 1.0

    @classmethod
    def synthetic(
        cls, n_rows: int, n_features: int, nonzeros: float, rng: np.random.Generator
    ) -> SequenceRows:
        """Sequences of equal length, with items as frequent as words are, P(i) ∝ 1/i."""
        size = int(np.clip(round(nonzeros), 1, LONGEST))
        n_rows = max(64, min(n_rows, 1 << 20))
        items = (n_features ** rng.random(n_rows * size)).astype(np.int32) - 1
        return cls(items, size * np.arange(1, n_rows + 1), np.full(n_rows, size), n_features)

    def fingerprint(self) -> bytes:
        row, items, _ = self[:: max(1, len(self) // 16)].visits()
        return np.concatenate([row, items]).astype(np.int64).tobytes()
