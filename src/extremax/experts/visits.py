"""Items that are visited together: item-kNN as an expert.

    v_y(x) = Σ_i x_i s_iy,   s_ij = n_ij / √((n_i + 20)(n_j + 20)),

x_i the weight of item i in the bag of the sequence (`SequenceRows.sparse`), n_i the sequences in
which item i was visited, n_ij those with both (Hidasi et al., "Session-based recommendations with
recurrent neural networks", 2016, who use the last item only); n_ii = n_i, since items are visited
again.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from scipy import sparse

from extremax.errors import ModelFileError
from extremax.experts.base import Expert
from extremax.rows import Needs, Rows, SequenceRows, Sizes
from extremax.tensors import Tensors

# Added to the number of visits: lowers the similarity of rare items.
_SHRINK = 20.0


class VisitedTogether(Expert):
    """Numbers of sequences with pairs of items, (C, C) sparse; on the diagonal with one item."""

    little = 1e-4

    def __init__(self, together: sparse.csr_matrix | None = None) -> None:
        nothing = sparse.csr_matrix((0, 0), dtype=np.float32)
        self.together = nothing if together is None else together
        self._similar: sparse.csr_matrix | None = None

    def learn(self, rows: Rows, labels: np.ndarray, n_classes: int) -> None:
        """Of a sequence, a pair counts where the later of the two is visited for the first time:
        there the other one is in the row, and the later one is its label. So every pair of a
        sequence counts once, whether or not its examples come in order."""
        sequences = cast(SequenceRows, rows)
        row, items, _ = sequences.visits()
        again = np.zeros(len(rows), bool)
        again[row[items == labels[row]]] = True
        self.extend(n_classes)
        shape = len(rows), n_classes
        new = ~again[row]
        visited = sparse.csr_matrix((np.ones(new.sum(), np.float32), (row[new], items[new])), shape)
        visited.data[:] = 1.0
        first = np.flatnonzero(~again)
        ones = np.ones(len(first), np.float32)
        follows = sparse.csr_matrix((ones, (first, labels[first])), shape)
        pairs = visited.T @ follows
        # A row of one item begins a sequence.
        begins = sequences.sizes == 1
        starts = np.bincount(items[begins[row]], minlength=n_classes)
        alone = starts + np.bincount(labels[first], minlength=n_classes)
        self.together = sparse.csr_matrix(
            self.together + pairs + pairs.T + sparse.diags(alone.astype(np.float32)),
            dtype=np.float32,
        )
        self.together.sort_indices()
        self._similar = None

    @property
    def similar(self) -> sparse.csr_matrix:
        """s, (C, C)."""
        if self._similar is None:
            scale = sparse.diags((self.together.diagonal() + _SHRINK) ** -0.5)
            self._similar = sparse.csr_matrix(scale @ self.together @ scale, dtype=np.float32)
        return self._similar

    def evidence(self, rows: Rows) -> sparse.csr_matrix:
        """v, (n, C)."""
        bags = rows.sparse().matrix
        bags.resize((len(rows), len(self.similar.indptr) - 1))
        found = sparse.csr_matrix(bags @ self.similar)
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
        bags = rows.sparse().matrix
        bags.resize((len(rows), len(self.similar.indptr) - 1))
        totals = np.asarray(self.similar.sum(1)).ravel()
        return torch.from_numpy(np.log1p(bags @ totals).astype(np.float32))

    def extend(self, n_classes: int) -> None:
        self.together = sparse.csr_matrix(self.together)
        self.together.resize((n_classes, n_classes))
        self._similar = None

    @classmethod
    def needs(cls, sizes: Sizes) -> Needs:
        # Numbers and similarities of at most as many pairs as visits have been followed by labels.
        size = 24.0 * sizes.rows * sizes.nonzeros
        return Needs(size, size, size / 2)

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "first": torch.from_numpy(self.together.indptr.astype(np.int64)),
            "items": torch.from_numpy(self.together.indices.astype(np.int32)),
            "numbers": torch.from_numpy(self.together.data),
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
    def restore(cls, state: dict[str, torch.Tensor]) -> VisitedTogether:
        arrays = (state[name].numpy() for name in ("numbers", "items", "first"))
        n = len(state["first"]) - 1
        return cls(sparse.csr_matrix(tuple(arrays), (n, n)))
