"""What the user gives to learn from, as examples: rows, labels, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.checks import refusing
from extremax.errors import ArgumentError
from extremax.labels import (
    LabelLists,
    is_multilabel,
    label_array,
    label_lists,
    one_label_per_row,
    weighted_label_lists,
)
from extremax.noise.base import Context, Noise
from extremax.rows import Rows


@dataclass
class Examples:
    """Labeled examples.

    labels:   the user's labels, or class numbers once they are encoded.
    owner:    the user's row that an example comes from, where rows have several labels.
    context:  the noise's view of each row, where the noise considers it worth keeping.
    """

    rows: Rows
    labels: np.ndarray
    weights: np.ndarray | None = None
    owner: np.ndarray | None = None
    context: Context | None = None

    @classmethod
    def pair(cls, rows: Rows, y: Any, sample_weight: Any) -> Examples:
        """One example per (row, label) pair: pick all labels (Menon et al., "Multilabel reductions:
        what is my loss optimizing?", 2019), which ranks labels by their probability."""
        if not is_multilabel(y):
            weights = check_weights(sample_weight, len(rows))
            return cls(rows, check_targets(y, len(rows)), weights)
        if is_multilabel(sample_weight):
            lists, weights = weighted_label_lists(y, sample_weight, len(rows))
            weights = check_weights(weights, len(weights))
            return cls(rows[lists.rows], lists.values, weights, lists.rows)
        weights = check_weights(sample_weight, len(rows))
        lists = label_lists(y, len(rows))
        owner = lists.rows
        return cls(rows[owner], lists.values, None if weights is None else weights[owner], owner)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def weighted(self) -> np.ndarray:
        """Numbers of the examples with a weight above zero."""
        if self.weights is None:
            return np.arange(len(self))
        return np.flatnonzero(self.weights > 0)

    def weights_of(self, numbers: np.ndarray) -> np.ndarray:
        """The weights of these examples, divided by their mean: ones where there are none."""
        if self.weights is None:
            return np.ones(len(numbers))
        weights = self.weights[numbers].astype(np.float64)
        return weights / weights.mean()

    def grouped(self, numbers: np.ndarray) -> tuple[Rows, LabelLists]:
        """The rows of these examples, whose numbers rise, and the labels that each has among
        them."""
        if self.owner is None:
            return self.rows[numbers], one_label_per_row(self.labels[numbers])
        # The examples of a row follow each other.
        first = np.unique(self.owner[numbers], return_index=True)[1]
        truth = LabelLists(self.labels[numbers], np.append(first, len(numbers)))
        return self.rows[numbers[first]], truth

    def of_few_rows(self, numbers: np.ndarray, most: int) -> np.ndarray:
        """Of these examples, whose order is random, those of the first ``most`` rows; rising."""
        if self.owner is None:
            return np.sort(numbers[:most])
        rows, first = np.unique(self.owner[numbers], return_index=True)
        chosen = rows[np.argsort(first)[:most]]
        return np.sort(numbers[np.isin(self.owner[numbers], chosen)])

    def keep_context(self, noise: Noise) -> None:
        """Compute the noise's view of every row once."""
        self.context = noise.context(self.rows) if noise.keeps_context else None

    def context_of(self, noise: Noise, numbers: np.ndarray) -> Any:
        if self.context is None:
            return noise.context(self.rows[numbers])
        return self.context[numbers]


def check_targets(y: Any, n_rows: int) -> np.ndarray:
    """Labels to learn from, one per row; floats must be whole, as scikit-learn asks."""
    if y is None:
        raise ArgumentError("requires y to be passed, but the target y is None")
    labels = label_array(y)
    if len(labels) != n_rows:
        raise ArgumentError(f"X has {n_rows} rows but y has {len(labels)} labels")
    if labels.dtype.kind == "f":
        from sklearn.utils.multiclass import check_classification_targets

        with np.errstate(invalid="ignore"), refusing("y"):  # infinity is refused
            check_classification_targets(labels)
    return labels


def check_weights(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    """Weights as float32, one per row."""
    if sample_weight is None:
        return None
    with np.errstate(over="ignore"), refusing("sample_weight"):  # infinity is refused below
        weights = np.asarray(sample_weight, dtype=np.float32)
    if weights.shape != (n_rows,):
        raise ArgumentError(f"sample_weight must have shape ({n_rows},), got {weights.shape}")
    if not np.all(np.isfinite(weights)) or np.any(weights < 0) or not weights.any():
        raise ArgumentError("sample_weight must be finite, not negative and not all zero")
    return weights
