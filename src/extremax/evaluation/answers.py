"""What a model answers, class by class: support, precision, recall, and what it is mistaken for.

The answer to a row is its most probable class or, with a threshold, those of its best classes whose
probability of being a label is at least that. A class y is a label of n_y rows and the answer to
a_y rows, h_y times both:

    precision  =  h_y / a_y            recall  =  h_y / n_y

A label that is no answer to its row is mistaken for the best answer to it that is not a label.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from extremax.disk import replacing
from extremax.evaluation.evaluator import Outcomes
from extremax.evaluation.ranking import hits

# Classes that a class is most often mistaken for, in a file.
_MISTAKES = 3


class AnswerTally:
    """Sums over blocks of rows; arrays are by class number.

    rows, answered:  rows with a label, and those of them that have an answer.
    labels:          pairs of a row and a label, also of labels that training never saw.
    support, given, correct:  (C,) n, a and h.
    mistakes:        how often a label (first) was mistaken for a class (second).
    """

    def __init__(self, n_classes: int, threshold: float | None = None) -> None:
        self.threshold = threshold
        self.rows = self.answered = self.labels = 0
        self.support, self.given, self.correct = np.zeros((3, n_classes), np.int64)
        self.mistakes: Counter[tuple[int, int]] = Counter()

    def add(self, found: Outcomes) -> None:
        """Count further rows."""
        labeled = found.truth.counts > 0
        truth, ranked = found.truth[labeled], found.ranking.labels.numpy()[labeled]
        if self.threshold is None:
            is_answer = np.zeros(ranked.shape, bool)
            is_answer[:, 0] = True
        else:
            is_answer = found.marginals[labeled] >= self.threshold
        is_label = hits(ranked, truth)
        self.rows += len(truth)
        self.answered += int(is_answer.any(1).sum())
        self.labels += len(truth.values)
        known = truth.values >= 0
        np.add.at(self.support, truth.values[known], 1)
        np.add.at(self.given, ranked[is_answer], 1)
        np.add.at(self.correct, ranked[is_answer & is_label], 1)
        wrong = is_answer & ~is_label
        values, rows = truth.values[known], truth.rows[known]
        is_missed = ~((ranked[rows] == values[:, None]) & is_answer[rows]).any(1)
        values, rows = (part[is_missed & wrong.any(1)[rows]] for part in (values, rows))
        instead = ranked[rows, wrong[rows].argmax(1)]
        self.mistakes.update(zip(values.tolist(), instead.tolist(), strict=True))

    @property
    def precision(self) -> float:
        """Share of the answers that are right; NaN without an answer."""
        return float(self.correct.sum() / self.given.sum()) if self.given.any() else float("nan")

    @property
    def recall(self) -> float:
        """Share of the labels that are answers."""
        return float(self.correct.sum() / self.labels)


def write_by_class(path: str | Path, tally: AnswerTally, classes: np.ndarray) -> int:
    """Write a line for each class that is a label or an answer, those missed most often first, as
    TSV with names of columns; return their number. An older file is replaced when all is written.

    classes:  the labels by class number.
    """
    mistakes: dict[int, list[tuple[int, int]]] = {}
    for (label, instead), n in tally.mistakes.most_common():
        mistakes.setdefault(label, []).append((instead, n))
    occur = np.flatnonzero(tally.support + tally.given)
    missed = tally.support - tally.correct
    order = occur[np.lexsort((occur, -tally.support[occur], -missed[occur]))]
    header = ["label", "support", "predicted", "correct", "precision", "recall"]
    for i in range(1, _MISTAKES + 1):
        header += [f"mistaken_for_{i}", f"rows_{i}"]
    with (
        replacing(Path(path).resolve()) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        for number in order.tolist():
            n, a, h = (int(part[number]) for part in (tally.support, tally.given, tally.correct))
            line: list[Any] = [classes[number], n, a, h, _share(h, a), _share(h, n)]
            for instead, rows in mistakes.get(number, [])[:_MISTAKES]:
                line += [classes[instead], rows]
            writer.writerow(line + [""] * (len(header) - len(line)))
    return len(order)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else ""
