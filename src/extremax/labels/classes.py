"""The classes of a model: their labels, and how often training saw each."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax.errors import ModelFileError
from extremax.labels.index import LabelIndex, concatenate_labels, label_array
from extremax.labels.saving import checked_labels, pack_labels

if TYPE_CHECKING:
    import torch


class ClassLabels:
    """Labels by class number, and training rows per class.

    n_first:     classes of the first training; those from this number on came later.
    n_rows:      training rows; with several labels per row, fewer than the sum of the counts.
    multilabel:  whether training rows had several labels.
    """

    def __init__(self, index: LabelIndex, multilabel: bool = False) -> None:
        self.index, self.multilabel = index, multilabel
        self.counts = np.zeros(len(index), np.int64)
        self.n_first, self.n_rows = 0, 0

    def __len__(self) -> int:
        return len(self.index)

    @property
    def values(self) -> np.ndarray:
        """The label of each class."""
        return self.index.classes

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """The class of each label, −1 for a label that training has not seen."""
        return self.index.encode(labels)

    def extend(self, labels: np.ndarray, classes: Any = None) -> int:
        """Add classes for new labels, and for ``classes`` announced ahead; returns how many."""
        if classes is not None:
            labels = concatenate_labels(labels, label_array(classes))
        added = self.index.extend(labels)
        self.counts = np.pad(self.counts, (0, added))
        return added

    @property
    def is_late(self) -> np.ndarray:
        """Whether each class came later."""
        return np.arange(len(self)) >= self.n_first

    def count(self, codes: np.ndarray, n_rows: int) -> None:
        """Add training examples of these classes, from so many rows."""
        if not self.n_rows:
            # Those that are only announced come later.
            self.n_first = int(codes.max(initial=-1)) + 1
        self.counts = self.counts + np.bincount(codes, minlength=len(self))
        self.n_rows += n_rows

    def with_counts(self, counts: np.ndarray) -> ClassLabels:
        """The same labels with other counts."""
        other = copy(self)
        other.counts = counts
        return other

    # Saving -----------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        return {
            "dtype": self.values.dtype.str,
            "n_classes": len(self),
            "n_rows": self.n_rows,
            **({"n_first": self.n_first} if self.n_first < len(self) else {}),
            "multilabel": self.multilabel,
        }

    def state(self) -> dict[str, torch.Tensor]:
        import torch

        return {"labels": pack_labels(self.values), "counts": torch.from_numpy(self.counts)}

    @classmethod
    def restore(cls, settings: dict[str, Any], state: dict[str, torch.Tensor]) -> ClassLabels:
        """What `settings` and `state` came from, checked."""
        from extremax.tensors import Tensors

        tensors = Tensors(state, "labels")
        tensors.only(("labels", "counts"))
        n_classes = int(settings["n_classes"])
        values = checked_labels(settings["dtype"], tensors, n_classes)
        labels = cls(LabelIndex(values), bool(settings["multilabel"]))
        labels.counts = tensors.indices("counts", 2**62, n_classes)
        labels.n_rows = int(settings["n_rows"])
        labels.n_first = int(settings.get("n_first", n_classes))
        if not 0 <= labels.n_first <= n_classes:
            raise ModelFileError(f"n_first of the saved labels must be 0 to {n_classes}")
        return labels
