"""The tree of class sums behind a kernel noise: built from a head, kept up to date, drawn from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch

from extremax.kernels.cpu import sum_tree, sum_tree_update
from extremax.kernels.cpu.sum_tree import FeatureMap, Head, Model, Tree
from extremax.kernels.cpu.threads import parallel
from extremax.noise.base import Draw
from extremax.random import Stream

if TYPE_CHECKING:
    from extremax.heads import ClassVectors

# Tasks that a large update is cut into, and the fewest leaves per task.
_TASKS, _LEAVES = 64, 16
# Rows in a chunk of draws: at 10⁵ classes and 5 draws per row, some milliseconds.
_ROWS = 64
# Classes in a chunk whose features are computed.
_CLASSES = 256


class ClassSums(ABC):
    """z(node) = Σ φ(w_j) over the classes of every node, for the class vectors as they are now.

    feature_map:  φ.
    classes:      how many classes were there at the fit, and how many there are.
    most:         the most classes in a leaf.
    width:        numbers in z of one node.
    """

    def __init__(
        self,
        vectors: ClassVectors,
        feature_map: FeatureMap,
        classes: tuple[int, int],
        most: int,
        width: int,
    ) -> None:
        self.vectors, self.feature_map = vectors, feature_map
        child, first, stop = sum_tree.shape(*classes, most)
        self.tree = Tree(child, first, stop, np.empty((len(child), width)), most)
        self._parent, self._leaves = sum_tree_update.relations(child)
        sizes = stop[self._leaves] - first[self._leaves]
        self._leaf_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self._update(np.arange(classes[1]), np.arange(len(sizes)))

    @abstractmethod
    def sum_leaves(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        """Compute z of these leaves, in which these classes have changed."""

    @property
    def head(self) -> Head:
        """The class vectors, for kernels."""
        table, width = self.vectors.table(), self.vectors.weight.shape[1]
        return Head(table, width, self.vectors.bias.numpy(), float(self.vectors.scale))

    @property
    def _model(self) -> Model:
        return Model(self.feature_map, self.tree, self.head)

    def refresh(self, classes: np.ndarray) -> None:
        """The vectors of these classes have changed; each class at most once, rising."""
        self._update(classes, np.unique(self._leaf_of[classes]))

    def _update(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        """Compute z of these leaves, by their order along the classes, and of all nodes above."""
        nodes = self._leaves[leaves]
        self.sum_leaves(classes, nodes)
        n_tasks = min(_TASKS, max(1, len(nodes) // _LEAVES))
        bounds = np.arange(n_tasks + 1) * len(nodes) // n_tasks
        parallel(sum_tree_update.climb, n_tasks, 1, bounds, nodes, self._parent, self.tree)
        sum_tree_update.meet(bounds, nodes, self._parent, self.tree)

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        labels = torch.empty((len(context), m), dtype=torch.int64)
        log_q = torch.empty((len(context), m))
        parallel(
            sum_tree.sample, len(context), _ROWS, self._model, _rows(context),
            stream.key, stream.rows, labels.numpy(), log_q.numpy(),
        )  # fmt: skip
        return Draw(labels, log_q)

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        out = torch.empty(labels.shape)
        parallel(
            sum_tree.log_prob, len(context), _ROWS, self._model, _rows(context),
            labels.contiguous().numpy(), out.numpy(),
        )  # fmt: skip
        return out

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(context), int(self.tree.stop[0])))
        parallel(sum_tree.log_prob_all, len(context), 1, self._model, _rows(context), out.numpy())
        return out


class ProductSums(ClassSums):
    """z = Σ w wᵀ, d(d + 1)/2 numbers per node."""

    def sum_leaves(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        parallel(sum_tree_update.products, len(leaves), _LEAVES, leaves, self.tree, self.head)


class WaveSums(ClassSums):
    """z = Σ [cos Ωw, sin Ωw]; the features of every class are kept as well."""

    _features: np.ndarray | None = None

    def sum_leaves(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        if self._features is None:
            shape = int(self.tree.stop[0]), self.tree.z.shape[1]
            self._features = np.empty(shape, np.float32)
        parallel(
            sum_tree_update.class_waves, len(classes), _CLASSES, classes,
            self.feature_map.frequencies, self.head, self._features,
        )  # fmt: skip
        parallel(
            sum_tree_update.wave_sums, len(leaves), _CLASSES, leaves, self.tree, self._features
        )


def _rows(context: torch.Tensor) -> np.ndarray:
    return context.contiguous().numpy()
