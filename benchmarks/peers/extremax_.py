"""extremax with its defaults, run in the environment of the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from measure import THREADS, Rows, indicators
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.classifier import TopK


class Contender:
    """``label_names``: also train on the names of labels."""

    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        self.rows, self.model = rows, model
        self.train = rows.train
        self.labels = rows.labels if rows.classes is None else rows.classes
        if parameters.pop("label_names", False):
            # First, because the first row of a class is never held out.
            self.train = sparse.vstack([rows.names, self.train], format="csr")
            if rows.classes is None:
                named = indicators(rows.named, rows.labels.shape[1])
                self.labels = sparse.vstack([named, self.labels], format="csr")
            else:
                self.labels = np.concatenate([rows.named, self.labels])
        self.classifier = ExtremeClassifier(n_jobs=THREADS, random_state=0, **parameters)
        # Compile the kernels before training is timed.
        few = sparse.random(200, 50, 0.2, "csr", np.float32, random_state=0)
        classes = np.arange(200) % 20
        if rows.classes is None:
            classes = sparse.csr_matrix((np.ones(200), (np.arange(200), classes)))
        warm = ExtremeClassifier(n_jobs=THREADS, random_state=0, **parameters).fit(few, classes)
        warm.predict_topk(few, 5)

    def fit(self) -> None:
        self.classifier.fit(self.train, self.labels)

    def save(self) -> None:
        self.classifier.save(self.model)

    def predict(self, k: int) -> TopK:
        return self.classifier.predict_topk(self.rows.test, k)

    def ranked(self, found: TopK) -> np.ndarray:
        return found.labels

    def log_probs(self) -> np.ndarray:
        known = self.rows.test_classes >= 0
        classes = self.rows.test_classes[known]
        return self.classifier.predict_log_proba(self.rows.test[known], labels=classes)
