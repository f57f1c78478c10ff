"""What the user gives to learn from, as examples: rows, labels, weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from extremax.checks import check_training_labels, check_weights
from extremax.features.pca import row_blocks
from extremax.features.rows import Rows, SparseRows
from extremax.label_lists import is_several, label_lists


class Data(NamedTuple):
    """Labelled examples; of rows with several labels each is one, and ``owner`` its row."""

    features: Rows
    labels: np.ndarray
    weights: np.ndarray | None
    owner: np.ndarray | None

    @property
    def counted(self) -> np.ndarray:
        """Numbers of the examples that have a weight."""
        if self.weights is None:
            return np.arange(len(self.labels))
        return np.flatnonzero(self.weights > 0)


def paired(features: Rows, y: Any, sample_weight: Any) -> Data:
    """Each (row, label) pair an example: pick all labels (Menon et al., "Multilabel reductions:
    what is my loss optimising?", 2019), which ranks labels by their probability."""
    weights = check_weights(sample_weight, len(features))
    if not is_several(y):
        return Data(features, check_training_labels(y, len(features)), weights, None)
    lists = label_lists(y, len(features))
    owner = lists.rows
    return Data(features[owner], lists.values, None if weights is None else weights[owner], owner)


def unit_scale(features: Rows) -> float:
    """1 / root mean square of the features, or of the length of sparse rows."""
    if isinstance(features, SparseRows):
        return features.unit_scale()
    total = 0.0
    for _, block in row_blocks(features):
        # In float64: the squares of large float32 numbers are infinite, of small ones zero.
        total += float(np.square(block, dtype=np.float64).sum())
    return float((features.size / total) ** 0.5) if total > 0 else 1.0
