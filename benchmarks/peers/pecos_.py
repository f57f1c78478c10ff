"""PECOS XR-Linear with the settings of its command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measure import THREADS, Rows
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
from scipy import sparse


class Contender:
    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        self.model, self.parameters = model, parameters
        self.train, self.test = rows.train, rows.test
        self.labels = rows.labels.tocsc()

    def fit(self) -> None:
        labels = LabelEmbeddingFactory.pifa(self.labels, self.train, threads=THREADS)
        clusters = Indexer.gen(labels, threads=THREADS)
        self.linear = XLinearModel.train(
            self.train, self.labels, C=clusters, threads=THREADS, **self.parameters
        )

    def save(self) -> None:
        self.linear.save(str(self.model))
        # Its faster way to predict.
        self.linear = XLinearModel.load(str(self.model), is_predict_only=True)

    def predict(self, k: int) -> sparse.csr_matrix:
        return self.linear.predict(self.test, only_topk=k, threads=THREADS)

    def ranked(self, found: sparse.csr_matrix) -> Iterator[np.ndarray]:
        for a, b in zip(found.indptr[:-1], found.indptr[1:], strict=True):
            yield found.indices[a:b][np.argsort(-found.data[a:b], kind="stable")]

    def log_probs(self) -> None:
        return None
