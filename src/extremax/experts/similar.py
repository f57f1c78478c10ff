"""Training rows that resemble a row vote for their classes.

    v_y(x) = Σ_{i: y_i = y} max(0, cos(x, x_i))³.

The head has learned what rows have in common and forgets single rows; this expert keeps them. On
titles held out of the training file of `benchmarks/text_peers.py` it brought 0.8 points of accuracy
and 0.12 nat; powers of 2 and 4 were no better than 3. The rows are part of the model: whoever has
it can read their features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import sparse

from extremax.errors import ModelFileError
from extremax.experts.base import Expert
from extremax.kernels.cpu.threads import parallel
from extremax.rows import Needs, Rows, Sizes, SparseRows
from extremax.tensors import Tensors

if TYPE_CHECKING:
    from extremax.kernels.cpu.similar import KnownRows

# Rows per chunk of work: where every class gets votes, a chunk clears a number for each known row.
_CHUNK = 16
# Blocks of rows that are sorted by feature side by side.
_BLOCKS = 16

#: Values sorted by feature and row: where each feature begins, rows and values.
Sorted = tuple[np.ndarray, np.ndarray, np.ndarray]


class SimilarRows(Expert):
    """The training rows, scaled to unit length."""

    little = 1e-3
    #: Values below this share of a row's largest do not count: frequent features, which say little
    #: and which most rows have.
    share = 0.5
    keeps_rows = True

    def __init__(self) -> None:
        #: Rows of each class. Rows are numbered class by class.
        self.rows = np.zeros(0, np.int64)
        #: Values sorted by feature and row, see `KnownRows`.
        self.first = np.zeros(1, np.int64)
        self.row, self.values = np.empty(0, np.int32), np.empty(0, np.float32)
        self._owner_of = self.rows, np.zeros(0, np.int64)

    @property
    def _start(self) -> np.ndarray:
        """The first row of each class, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.rows)])

    def learn(self, rows: Rows, labels: np.ndarray, n_classes: int) -> None:
        self.extend(n_classes)
        order = np.argsort(labels, kind="stable")
        labels = labels[order]
        counts = np.bincount(labels, minlength=n_classes)
        before, old = self._start, self.rows
        self.rows = old + counts
        # Rows of a class follow those it has, and push on the rows of later classes.
        now = self._start
        within = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels]
        number = (now[labels] + old[labels] + within).astype(np.int32)
        new = _by_feature(rows.sparse(), order, number)
        if len(self.row):
            shift = np.repeat((now - before)[:-1], old)
            known = self.first, (self.row + shift[self.row]).astype(np.int32), self.values
            new = _merged(known, new)
        self.first, self.row, self.values = new

    def examples(self, length: float) -> tuple[SparseRows, np.ndarray]:
        labels = np.repeat(np.arange(len(self.rows)), self.rows)
        shape = len(labels), len(self.first) - 1
        values = self.values * np.float32(length)
        by_feature = sparse.csc_matrix((values, self.row, self.first), shape)
        return SparseRows(sparse.csr_matrix(by_feature)), labels

    def extend(self, n_classes: int) -> None:
        self.rows = np.pad(self.rows, (0, n_classes - len(self.rows)))

    def at(self, rows: Rows, classes: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.similar import votes_at

        rising, order = classes.sort(1)
        votes = torch.empty(classes.shape)
        parallel(
            votes_at, len(rows), _CHUNK, *rows.sparse().arrays, self._known,
            np.ascontiguousarray(rising.numpy()), (self.little, self.share), votes.numpy(),
        )  # fmt: skip
        return torch.empty_like(votes).scatter_(1, order, votes)

    def add_to(self, logits: torch.Tensor, rows: Rows, weight: float) -> None:
        from extremax.kernels.cpu.similar import add_votes

        parallel(
            add_votes, len(rows), _CHUNK, *rows.sparse().arrays, self._known, self._owner, weight,
            (self.little, self.share), logits.numpy(),
        )  # fmt: skip

    def reach(self, rows: Rows) -> torch.Tensor:
        """log(1 + Σ_f n_f x_f³) over the features that count, n_f how many known rows have f."""
        from extremax.kernels.cpu.similar import reach

        out = torch.empty(len(rows))
        parallel(
            reach, len(rows), 1024, *rows.sparse().arrays, self._known, self.share, out.numpy()
        )
        return out

    @property
    def _owner(self) -> np.ndarray:
        """The class of each row; made again when there are other rows."""
        rows, owner = self._owner_of
        if rows is not self.rows:
            owner = np.repeat(np.arange(len(self.rows)), self.rows)
            self._owner_of = self.rows, owner
        return owner

    @property
    def _known(self) -> KnownRows:
        from extremax.kernels.cpu.similar import KnownRows

        return KnownRows(self.first, self.row, self.values, self._start)

    @classmethod
    def needs(cls, sizes: Sizes) -> Needs:
        n = sizes.rows * sizes.nonzeros
        size = 8.0 * (n + sizes.classes + sizes.features)
        # Counts of features, and what a later learning merges into.
        return Needs(size, size, size)

    def state(self) -> dict[str, torch.Tensor]:
        names = ("rows", "first", "row", "values")
        return {name: torch.from_numpy(getattr(self, name)) for name in names}

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        n = len(tensors.array("values", torch.float32, None))
        first = tensors.offsets("first", n, n_features + 1)
        rows = tensors.indices("rows", 2**31, n_classes)
        # A class of rows without values may have any number of rows, and so ask for any memory.
        if rows.sum() > n + n_classes + 2**24:
            raise ModelFileError(f"rows of the saved {tensors.owner} are far more than its values")
        row = tensors.indices("row", int(rows.sum()), n, dtype=torch.int32)
        feature = np.repeat(np.arange(n_features), np.diff(first))
        if (np.diff(row)[feature[1:] == feature[:-1]] < 0).any():
            raise ModelFileError(f"row of the saved {tensors.owner} must not fall in a feature")
        tensors.nothing_else()

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> SimilarRows:
        expert = cls()
        for name, tensor in state.items():
            setattr(expert, name, tensor.numpy())
        return expert


def _by_feature(rows: SparseRows, order: np.ndarray, number: np.ndarray) -> Sorted:
    """The values of rows order[i] of rising numbers, scaled to unit length."""
    from extremax.kernels.cpu.similar import by_feature, count_features

    # A count for each block and feature must be little beside the values.
    n_blocks = int(np.clip(len(rows.values) // (4 * rows.n_features), 1, _BLOCKS))
    bounds = np.linspace(0, len(order), n_blocks + 1).astype(np.int64)
    counts = np.zeros((n_blocks, rows.n_features), np.int64)
    parallel(count_features, n_blocks, 1, bounds, rows.arrays, order, counts)
    first = np.concatenate([[0], np.cumsum(counts.sum(0))])
    place = first[:-1] + np.cumsum(counts, 0) - counts
    row, values = np.empty(first[-1], np.int32), np.empty(first[-1], np.float32)
    parallel(by_feature, n_blocks, 1, bounds, rows.arrays, order, number, place, row, values)
    return first, row, values


def _merged(old: Sorted, new: Sorted) -> Sorted:
    from extremax.kernels.cpu.similar import merge

    first = old[0] + new[0]
    out = np.empty(first[-1], np.int32), np.empty(first[-1], np.float32)
    n = len(first) - 1
    parallel(merge, n, max(1, n // 64), first, old, new, out)
    return first, *out
