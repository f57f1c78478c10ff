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

_CHUNK = 64


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

    @property
    def _start(self) -> np.ndarray:
        """The first row of each class, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.rows)])

    def learn(self, rows: Rows, labels: np.ndarray, n_classes: int) -> None:
        self.extend(n_classes)
        order = np.argsort(labels, kind="stable")
        labels = labels[order]
        indptr, indices, values = rows[order].sparse().arrays
        row = np.repeat(np.arange(len(labels)), np.diff(indptr))
        length = np.sqrt(np.bincount(row, np.square(values, dtype=np.float64), len(labels)))
        values = (values / np.maximum(length, 1e-30)[row]).astype(np.float32)
        counts = np.bincount(labels, minlength=n_classes)
        before, old = self._start, self.rows
        self.rows = old + counts
        # Rows of a class follow those it has, and push on the rows of later classes.
        now = self._start
        within = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels]
        number = now[labels] + old[labels] + within
        shift = np.repeat((now - before)[:-1], old)
        known = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        features = np.concatenate([known, indices])
        number = np.concatenate([self.row + shift[self.row], number[row]])
        # Stable sorts take what is in order already as it is: rows that come later cost little.
        order = np.argsort(features * now[-1] + number, kind="stable" if len(known) else None)
        self.row = number[order].astype(np.int32)
        self.values = np.concatenate([self.values, values])[order]
        sizes = np.bincount(features, minlength=rows.n_features)
        self.first = np.concatenate([[0], np.cumsum(sizes)])

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

        owner = np.repeat(np.arange(len(self.rows)), self.rows)
        parallel(
            add_votes, len(rows), _CHUNK, *rows.sparse().arrays, self._known, owner, weight,
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
    def _known(self) -> KnownRows:
        from extremax.kernels.cpu.similar import KnownRows

        return KnownRows(self.first, self.row, self.values, self._start)

    @classmethod
    def needs(cls, sizes: Sizes) -> Needs:
        n = sizes.rows * sizes.nonzeros
        size = 8.0 * (n + sizes.classes + sizes.features)
        # Sorting takes features, rows, keys and an order.
        return Needs(size, 40.0 * n, size)

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
