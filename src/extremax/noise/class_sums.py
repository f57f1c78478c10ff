"""The tree of class sums behind a kernel noise: built from a head and kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from extremax.kernels.cpu import sum_tree_update
from extremax.kernels.cpu.sum_tree import FOURIER, ClassTable, FeatureMap, SumModel, SumTree, shape
from extremax.kernels.cpu.threads import parallel

if TYPE_CHECKING:
    from extremax.heads import ClassVectors

# Tasks that a large update is cut into, and the fewest leaves per task.
_TASKS, _LEAVES = 64, 16
# Classes in a chunk whose features are computed.
_CLASSES = 256


class ClassSums:
    """z(node) = Σ φ(w_j) over the classes of every node, for the class vectors as they are now.

    For random Fourier features, φ of every class is kept as well.

    feature_map:  φ.
    classes:      how many classes were there at the fit, and how many there are.
    most:         the most classes in a leaf.
    """

    def __init__(
        self, vectors: ClassVectors, feature_map: FeatureMap, classes: tuple[int, int], most: int
    ) -> None:
        self.vectors, self.feature_map = vectors, feature_map
        d, n_kept = vectors.weight.shape[1] + 1, 0
        width = d * (d + 1) // 2
        if feature_map.kind == FOURIER:
            width, n_kept = 2 * len(feature_map.frequencies), classes[1]
        self._features = np.empty((n_kept, width), np.float32)
        child, first, stop = shape(*classes, most)
        self.tree = SumTree(child, first, stop, np.empty((len(child), width)), most)
        self._parent, self._leaves = sum_tree_update.relations(child)
        sizes = stop[self._leaves] - first[self._leaves]
        self._leaf_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self._update(np.arange(classes[1]), np.arange(len(sizes)))

    @property
    def model(self) -> SumModel:
        """Everything that q depends on besides the row, for kernels."""
        vectors = self.vectors
        table = ClassTable(
            vectors.table(), vectors.weight.shape[1], vectors.bias.numpy(), float(vectors.scale)
        )
        return SumModel(self.feature_map, self.tree, table)

    def refresh(self, classes: np.ndarray) -> None:
        """The vectors of these classes have changed; each class at most once, rising."""
        self._update(classes, np.unique(self._leaf_of[classes]))

    def _update(self, classes: np.ndarray, leaves: np.ndarray) -> None:
        """Compute z of these leaves, by their order along the classes, and of all nodes above."""
        feature_map, tree, table = self.model
        nodes = self._leaves[leaves]
        if feature_map.kind == FOURIER:
            parallel(
                sum_tree_update.class_waves, len(classes), _CLASSES, classes,
                feature_map.frequencies, table, self._features,
            )  # fmt: skip
            parallel(sum_tree_update.wave_sums, len(nodes), _CLASSES, nodes, tree, self._features)
        else:
            parallel(sum_tree_update.products, len(nodes), _LEAVES, nodes, tree, table)
        n_tasks = min(_TASKS, max(1, len(nodes) // _LEAVES))
        bounds = np.arange(n_tasks + 1) * len(nodes) // n_tasks
        parallel(sum_tree_update.climb, n_tasks, 1, bounds, nodes, self._parent, tree)
        sum_tree_update.meet(bounds, nodes, self._parent, tree)
