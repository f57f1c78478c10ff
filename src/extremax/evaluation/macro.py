"""Metrics in which every class counts the same, accumulated block by block.

A class y occurs n_y times as a label of the test rows; f_y of these times it is among the k best
classes of the row. Over the classes with n_y > 0:

    macro recall@k  =  mean of f_y / n_y
    coverage@k      =  share of classes with f_y > 0

(Schultheis et al., "Generalized test utilities for long-tail performance in extreme multi-label
classification", 2023). Labels that training never saw are left out: they are no classes of the
model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from extremax.labels import LabelLists


@dataclass(frozen=True, eq=False)
class ClassTally:
    """Sums per class, which add up over blocks. Column k − 1 is the value at k.

    classes:  (c,) the classes that occur, ascending.
    labels:   (c,) n, pairs of a row and this label.
    found:    (c, k) f, those among the k best classes of their row.
    """

    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    found: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int64))

    def __add__(self, other: ClassTally) -> ClassTally:
        if not len(self.classes) or not len(other.classes):
            return self if len(self.classes) else other
        classes, place = np.unique(
            np.concatenate([self.classes, other.classes]), return_inverse=True
        )
        labels = np.zeros(len(classes), np.int64)
        found = np.zeros((len(classes), self.found.shape[1]), np.int64)
        for tally, at in zip((self, other), np.split(place, [len(self.classes)]), strict=True):
            labels[at] += tally.labels
            found[at] += tally.found
        return ClassTally(classes, labels, found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassTally):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("classes", "labels", "found")
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def macro_recall(self) -> np.ndarray:
        """Mean over classes of the share of their labels that is found among the k best."""
        return (self.found / self.labels[:, None]).sum(0) / max(len(self.classes), 1)

    @property
    def coverage(self) -> np.ndarray:
        """Share of classes that are found at least once among the k best."""
        return (self.found > 0).sum(0) / max(len(self.classes), 1)


def tally_classes(ranked: np.ndarray, truth: LabelLists) -> ClassTally:
    """Sums for one block, at every k up to the number of ranks; see `tally_ranking`."""
    known = truth.values >= 0
    values, rows = truth.values[known], truth.rows[known]
    classes, place = np.unique(values, return_inverse=True)
    found = np.zeros((len(classes), ranked.shape[1]), np.int64)
    pair, rank = np.nonzero(ranked[rows] == values[:, None])
    np.add.at(found, (place[pair], rank), 1)
    labels = np.bincount(place, minlength=len(classes))
    return ClassTally(classes, labels, np.cumsum(found, axis=1))
