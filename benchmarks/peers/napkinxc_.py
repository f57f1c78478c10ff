"""napkinXC: a hierarchical softmax (HSM) for one label, a probabilistic label tree (PLT) for
several. Fitting writes the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from measure import THREADS, Rows
from napkinxc import models

# Labels and their p held at once.
CHUNK = 500_000


class Contender:
    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        single = rows.classes is not None
        kind = models.HSM if single else models.PLT
        self.tree = kind(str(model), threads=THREADS, seed=0, **parameters)
        self.train, self.test = rows.train, rows.test
        self.labels = rows.classes.tolist() if single else rows.labels
        self.test_classes, self.n_labels = rows.test_classes, rows.labels.shape[1]

    def fit(self) -> None:
        self.tree.fit(self.train, self.labels)

    def save(self) -> None:
        self.tree.load()

    def predict(self, k: int) -> list[list[int]]:
        return self.tree.predict(self.test, top_k=k)

    def ranked(self, found: list[list[int]]) -> list[list[int]]:
        return found

    def log_probs(self) -> np.ndarray:
        """It tells p of the best labels only: more and more of them, until the row's class is
        there."""
        probs = np.zeros(len(self.test_classes))
        left = np.flatnonzero(self.test_classes >= 0)
        for k in (100, 2000, self.n_labels):
            missed = []
            for at in range(0, len(left), CHUNK // k):
                rows = left[at : at + CHUNK // k]
                for row, best in zip(
                    rows, self.tree.predict_proba(self.test[rows], k), strict=True
                ):
                    found = dict(best).get(self.test_classes[row])
                    if found is None:
                        missed.append(row)
                    else:
                        probs[row] = found
            left = np.array(missed, int)
        return np.log(probs[self.test_classes >= 0])
