"""Training rows that resemble a row vote for their classes.

    v_y(x) = Σ_{i: y_i = y} max(0, cos(x, x_i))³.

The head has learned what rows have in common and forgets single rows; this expert keeps them. On
titles held out of the training file of `benchmarks/text_peers.py` it brought 0.8 points of accuracy
and 0.12 nat; powers of 2 and 4 were no better than 3. The rows are part of the model: whoever has
it can read their features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from extremax.errors import ModelFileError
from extremax.experts.base import Expert
from extremax.kernels.cpu.threads import parallel
from extremax.rows import Needs, Rows, Sizes
from extremax.tensors import Tensors

_CHUNK = 64


class SimilarRows(Expert):
    """The training rows, scaled to unit length, by class."""

    little = 1e-3
    #: Values below this share of a row's largest do not count: frequent features, which say little
    #: and which most rows have.
    share = 1.0 / 3.0
    keeps_rows = True

    def __init__(self) -> None:
        #: Rows of each class.
        self.rows = np.zeros(0, np.int64)
        #: Values sorted by class, feature and row; see `RowsByClass`.
        self.first = np.zeros(1, np.int64)
        self.features, self.row = np.empty(0, np.int32), np.empty(0, np.int32)
        self.values = np.empty(0, np.float32)
        self._by_feature: Any = None

    def learn(self, rows: Rows, labels: np.ndarray, n_classes: int) -> None:
        self.extend(n_classes)
        order = np.argsort(labels, kind="stable")
        labels = labels[order]
        indptr, indices, values = rows[order].sparse().arrays
        size = np.diff(indptr)
        row = np.repeat(np.arange(len(labels)), size)
        length = np.sqrt(np.bincount(row, np.square(values, dtype=np.float64), len(labels)))
        values = (values / np.maximum(length, 1e-30)[row]).astype(np.float32)
        counts = np.bincount(labels, minlength=n_classes)
        # Rows of a class are numbered on from those it has.
        number = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels] + self.rows[labels]
        owner = np.concatenate([np.repeat(np.arange(n_classes), np.diff(self.first)), labels[row]])
        features = np.concatenate([self.features, indices])
        n_features = int(features.max(initial=0)) + 1
        # Stable: within class and feature, rows keep their order.
        order = np.argsort(owner * n_features + features, kind="stable")
        self.features = features[order]
        self.row = np.concatenate([self.row, number[row].astype(np.int32)])[order]
        self.values = np.concatenate([self.values, values])[order]
        self.first = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n_classes))])
        self.rows = self.rows + counts
        self._by_feature = None

    def extend(self, n_classes: int) -> None:
        more = n_classes - len(self.rows)
        self.rows = np.pad(self.rows, (0, more))
        self.first = np.pad(self.first, (0, more), mode="edge")
        self._by_feature = None

    def at(self, rows: Rows, classes: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.similar import RowsByClass, votes_at

        known = RowsByClass(self.first, self.rows, self.features, self.row, self.values)
        out = torch.empty(classes.shape)
        parallel(
            votes_at, len(rows), _CHUNK, *rows.sparse().arrays, known,
            np.ascontiguousarray(classes.numpy()), (self.little, self.share), out.numpy(),
        )  # fmt: skip
        return out

    def add_to(self, logits: torch.Tensor, rows: Rows, weight: float) -> None:
        from extremax.kernels.cpu.similar import add_votes

        parallel(
            add_votes, len(rows), _CHUNK, *rows.sparse().arrays, self._inverted(rows.n_features),
            weight, (self.little, self.share), logits.numpy(),
        )  # fmt: skip

    def _inverted(self, n_features: int) -> Any:
        """The same values by feature, made when first needed."""
        from extremax.kernels.cpu.similar import RowsByFeature

        if self._by_feature is None:
            owner = np.repeat(np.arange(len(self.rows)), np.diff(self.first))
            row = (np.cumsum(self.rows) - self.rows)[owner] + self.row
            order = np.argsort(self.features, kind="stable")
            counts = np.bincount(self.features, minlength=n_features)
            self._by_feature = RowsByFeature(
                np.concatenate([[0], np.cumsum(counts)]),
                row[order],
                self.values[order],
                np.repeat(np.arange(len(self.rows)), self.rows),
            )
        return self._by_feature

    @classmethod
    def needs(cls, sizes: Sizes) -> Needs:
        n = sizes.rows * sizes.nonzeros
        size = 12.0 * n + 16.0 * sizes.classes
        # Sorting takes a key and an order, by feature another copy.
        return Needs(size, 40.0 * n, size)

    def state(self) -> dict[str, torch.Tensor]:
        names = ("rows", "first", "features", "row", "values")
        return {name: torch.from_numpy(getattr(self, name)) for name in names}

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        values = tensors.array("values", torch.float32, None)
        n = len(values)
        first = tensors.offsets("first", n, n_classes + 1)
        rows = tensors.indices("rows", 2**31, n_classes)
        features = tensors.indices("features", n_features, n, dtype=torch.int32)
        row = tensors.indices("row", 2**31 - 1, n, dtype=torch.int32)
        owner = np.repeat(np.arange(n_classes), np.diff(first))
        if (row >= rows[owner]).any():
            raise ModelFileError(
                f"row of the saved {tensors.owner} is beyond the rows of its class"
            )
        # A class of rows without values may have any number of rows, and so ask for any memory.
        if rows.sum() > n + n_classes + 2**24:
            raise ModelFileError(f"rows of the saved {tensors.owner} are far more than its values")
        same = owner[1:] == owner[:-1]
        if (np.diff(features)[same] < 0).any():
            raise ModelFileError(f"features of the saved {tensors.owner} must not fall in a class")
        tensors.nothing_else()

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> SimilarRows:
        expert = cls()
        for name, tensor in state.items():
            setattr(expert, name, tensor.numpy())
        return expert
