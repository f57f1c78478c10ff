"""Several extremax models with default settings but different seeds of tree and draws; their
probabilities are averaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from extremax_ import Contender as One
from measure import Rows

from extremax.noise import SparseTreeNoise

# Classes per row that each member proposes.
_CANDIDATES = 32


class Contender:
    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        self.members = []
        for seed in range(parameters["n_models"]):
            member = One(rows, {"noise": SparseTreeNoise(seed=seed)}, model / str(seed))
            member.classifier.set_params(random_state=seed)
            self.members.append(member)

    def fit(self) -> None:
        for member in self.members:
            member.fit()

    def save(self) -> None:
        for member in self.members:
            member.save()

    def predict(self, k: int) -> np.ndarray:
        found = [member.predict(max(k, _CANDIDATES)) for member in self.members]
        labels = np.concatenate([top.labels for top in found], 1)
        return best_together(labels, np.exp(np.concatenate([top.log_probs for top in found], 1)), k)

    def ranked(self, found: np.ndarray) -> np.ndarray:
        return found

    def log_probs(self) -> np.ndarray:
        each = [member.log_probs() for member in self.members]
        return np.logaddexp.reduce(each, 0) - np.log(len(each))


def best_together(labels: np.ndarray, p: np.ndarray, k: int) -> np.ndarray:
    """The k labels of each row (n, j) whose p add up to most."""
    order = np.argsort(labels, 1)
    labels, p = np.take_along_axis(labels, order, 1), np.take_along_axis(p, order, 1)
    # The sum up to the last of equal labels, less that up to the last of the label before.
    last = np.ones(labels.shape, bool)
    last[:, :-1] = labels[:, 1:] != labels[:, :-1]
    sums = np.cumsum(p, 1, dtype=np.float64)
    before = np.maximum.accumulate(np.where(last, sums, 0.0), 1)
    total = np.where(last, sums, -np.inf)
    total[:, 1:] -= before[:, :-1]
    return np.take_along_axis(labels, np.argsort(-total, 1, kind="stable")[:, :k], 1)
