"""The nearest training rows vote for their classes.

    v_y(x) = Σ_{i among the k nearest rows, y_i = y} exp(−4 ‖x − x_i‖² / h²(x)),

h²(x) the mean squared distance from x to its k nearest rows: rows lie closer together in one place
than in another (Zelnik-Manor & Perona, "Self-tuning spectral clustering", 2004). With one h for all
places, patches of photographs were given the right tile in 21% of cases instead of 26%. Boundaries
between classes that a linear head cannot draw are there in the rows themselves, as long as there
are few enough of them to measure every distance. The rows are part of the model: whoever has it can
read them.
"""

from __future__ import annotations

import numpy as np
import torch

from extremax.errors import ModelFileError
from extremax.experts.base import Expert
from extremax.kernels.cpu.threads import one_torch_thread, parallel
from extremax.rows import Needs, Rows, Sizes
from extremax.tensors import Tensors

# Numbers of all rows at most, neighbors that vote, and how sharply their votes fall with distance.
_MOST_VALUES, _NEIGHBORS, _SHARPNESS = 1 << 24, 10, 4.0
# Distances at a time.
_DISTANCES = 1 << 20


class NearestRows(Expert):
    """The training rows, scaled to unit mean square, and their classes."""

    little = 0.01
    keeps_rows = True

    def __init__(self) -> None:
        self.rows = torch.empty((0, 0))
        self.labels = torch.empty(0, dtype=torch.int64)
        #: What rows are multiplied by.
        self.scale = 1.0

    @classmethod
    def suits(cls, sizes: Sizes) -> bool:
        return sizes.rows * sizes.features <= _MOST_VALUES

    def learn(self, rows: Rows, labels: np.ndarray, n_classes: int) -> None:
        if not len(self.rows):
            self.scale = rows.unit_scale()
            self.rows = torch.empty((0, rows.n_features))
        # Rows may come without end: what is beyond the bound has no votes.
        room = max(0, _MOST_VALUES // max(1, rows.n_features) - len(self.rows))
        rows, labels = rows[:room], labels[:room]
        more = torch.from_numpy(rows.dense().float32()) * self.scale
        self.rows = torch.cat([self.rows, more])
        self.labels = torch.cat([self.labels, torch.from_numpy(np.asarray(labels, np.int64))])

    def _nearest(self, x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared distances of the k nearest rows, rising, and which they are, (n, k) each."""
        squares, k = self.rows.square().sum(1), min(k, len(self.rows))
        distances, places = torch.empty((len(x), k)), torch.empty((len(x), k), dtype=torch.int64)
        size = max(1, _DISTANCES // max(1, len(self.rows)))

        def measure(start: int, stop: int) -> None:
            for first in range(start * size, min(stop * size, len(x)), size):
                part = x[first : first + size]
                every = torch.addmm(squares, part, self.rows.T, alpha=-2.0)
                every += part.square().sum(1, keepdim=True)
                found = every.topk(k, dim=1, largest=False)
                block = slice(first, first + size)
                distances[block], places[block] = found.values.clamp_(min=0.0), found.indices

        # Threads share blocks and not a product, whose sums depend on the number of threads.
        with one_torch_thread():
            parallel(measure, -(-len(x) // size), 1)
        return distances, places

    def _votes(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """(classes, votes) of the nearest rows, (n, k) each."""
        x = torch.from_numpy(rows.dense().float32()) * self.scale
        distances, places = self._nearest(x, _NEIGHBORS)
        usual = distances.mean(1, keepdim=True).clamp(min=1e-12)
        return self.labels[places], distances.mul_(-_SHARPNESS).div_(usual).exp_()

    def at(self, rows: Rows, classes: torch.Tensor) -> torch.Tensor:
        near, votes = self._votes(rows)
        total = torch.zeros(classes.shape)
        for column in range(near.shape[1]):
            total += votes[:, column, None] * (near[:, column, None] == classes)
        return total.div_(self.little).log1p_()

    def add_to(self, logits: torch.Tensor, rows: Rows, weight: float) -> None:
        near, votes = self._votes(rows)
        same = near[:, :, None] == near[:, None]
        total = (votes[:, None] * same).sum(2).div_(self.little).log1p_()
        # A class that has several neighbors counts once.
        total /= same.sum(2)
        logits.scatter_add_(1, near, total.mul_(weight))

    def reach(self, rows: Rows) -> torch.Tensor:
        """Zero: k rows vote, whatever the row."""
        return torch.zeros(len(rows))

    def extend(self, n_classes: int) -> None:
        """Nothing is kept for each class."""

    @classmethod
    def needs(cls, sizes: Sizes) -> Needs:
        size = 4.0 * sizes.rows * sizes.features + 8.0 * sizes.rows
        return Needs(size, size + 8.0 * _DISTANCES, size)

    def state(self) -> dict[str, torch.Tensor]:
        scale = torch.tensor([self.scale], dtype=torch.float64)
        return {"rows": self.rows, "labels": self.labels, "scale": scale}

    @classmethod
    def validate(cls, tensors: Tensors, n_classes: int, n_features: int) -> None:
        labels = tensors.indices("labels", n_classes, None)
        tensors.array("rows", torch.float32, len(labels), n_features)
        if tensors.array("scale", torch.float64, 1)[0] <= 0:
            raise ModelFileError(f"scale of the saved {tensors.owner} must be positive")
        tensors.nothing_else()

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> NearestRows:
        expert = cls()
        expert.rows, expert.labels = state["rows"], state["labels"]
        expert.scale = float(state["scale"])
        return expert
