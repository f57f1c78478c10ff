"""Evidence from pairs of items: the items of a sequence speak for those they were seen with.

    v_y(x) = Σ_i x_i s_iy,

x_i the weight of item i in the bag of the sequence (`SequenceRows.sparse`), s a sparse matrix that
comes from numbers n_iy of what was seen.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import numpy as np
import torch
from scipy import sparse

from extremax.errors import ModelFileError
from extremax.experts.base import Expert
from extremax.rows import Needs, Rows, SequenceRows, Sizes
from extremax.tensors import Tensors


class PairExpert(Expert):
    """Numbers n of pairs of items, (C, C) sparse. A subclass says what is counted, and what it
    makes of the numbers."""

    def __init__(self, numbers: sparse.csr_matrix | None = None) -> None:
        nothing = sparse.csr_matrix((0, 0), dtype=np.float32)
        self.numbers = nothing if numbers is None else numbers
        self._similar: sparse.csr_matrix | None = None

    @abstractmethod
    def count(self, rows: SequenceRows, labels: np.ndarray, n_classes: int) -> sparse.csr_matrix:
        """What these examples add to n, (C, C)."""

    @abstractmethod
    def compare(self) -> sparse.csr_matrix:
        """s of all numbers so far, (C, C)."""

    def learn(self, rows: Rows, labels: np.ndarray, n_classes: int) -> None:
        self.extend(n_classes)
        more = self.count(cast(SequenceRows, rows), labels, n_classes)
        self.numbers = sparse.csr_matrix(self.numbers + more, dtype=np.float32)
        self.numbers.sort_indices()

    @property
    def similar(self) -> sparse.csr_matrix:
        """s, (C, C)."""
        if self._similar is None:
            self._similar = sparse.csr_matrix(self.compare(), dtype=np.float32)
        return self._similar

    def _bags(self, rows: Rows) -> sparse.csr_matrix:
        """x, (n, C)."""
        bags = rows.sparse().matrix
        bags.resize((len(rows), len(self.similar.indptr) - 1))
        return bags

    def evidence(self, rows: Rows) -> sparse.csr_matrix:
        """v, (n, C)."""
        found = sparse.csr_matrix(self._bags(rows) @ self.similar)
        found.sort_indices()
        return found

    def add_to(self, logits: torch.Tensor, rows: Rows, weight: float) -> None:
        found = self.evidence(rows)
        row = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
        more = torch.from_numpy(weight * np.log1p(found.data / self.little)).float()
        places = torch.from_numpy(row), torch.from_numpy(found.indices).long()
        logits.index_put_(places, more, accumulate=True)

    def at(self, rows: Rows, classes: torch.Tensor) -> torch.Tensor:
        found = self.evidence(rows)
        n, n_classes = found.shape
        keys = np.repeat(np.arange(n), np.diff(found.indptr)) * n_classes + found.indices
        wanted = (np.arange(n)[:, None] * n_classes + classes.numpy()).ravel()
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        values = np.zeros(len(wanted), np.float32)
        if len(keys):
            is_found = (keys[place] == wanted) & (classes.numpy().ravel() >= 0)
            values[is_found] = np.log1p(found.data[place[is_found]] / self.little)
        return torch.from_numpy(values).view(classes.shape)

    def reach(self, rows: Rows) -> torch.Tensor:
        """log(1 + Σ_y v_y)."""
        totals = np.asarray(self.similar.sum(1)).ravel()
        return torch.from_numpy(np.log1p(self._bags(rows) @ totals).astype(np.float32))

    def extend(self, n_classes: int) -> None:
        self.numbers = sparse.csr_matrix(self.numbers)
        self.numbers.resize((n_classes, n_classes))
        self._similar = None

    @classmethod
    def needs(cls, sizes: Sizes) -> Needs:
        # n and s of at most as many pairs as visits have been followed by labels.
        size = 24.0 * sizes.rows * sizes.nonzeros
        return Needs(size, size, size / 2)

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "first": torch.from_numpy(self.numbers.indptr.astype(np.int64)),
            "items": torch.from_numpy(self.numbers.indices.astype(np.int32)),
            "numbers": torch.from_numpy(self.numbers.data),
        }

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        numbers = tensors.array("numbers", torch.float32, None)
        tensors.not_negative("numbers", numbers)
        first = tensors.offsets("first", len(numbers), n_classes + 1)
        items = tensors.indices("items", n_classes, len(numbers), dtype=torch.int32)
        row = np.repeat(np.arange(n_classes), np.diff(first))
        same = row[1:] == row[:-1]
        if (np.diff(items)[same] <= 0).any():
            raise ModelFileError(f"items of the saved {tensors.owner} must rise in every row")
        tensors.nothing_else()

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> PairExpert:
        arrays = (state[name].numpy() for name in ("numbers", "items", "first"))
        n = len(state["first"]) - 1
        return cls(sparse.csr_matrix(tuple(arrays), (n, n)))
