"""Vowpal Wabbit's probabilistic label tree, with the settings of its own demo. While it fits, one
thread reads the rows and one learns; predicting takes one thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import K, Rows
from scipy import sparse
from vowpalwabbit import Workspace


class Contender:
    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        self.scratch, self.file = model.parent, model / "model.vw"
        self.parameters = parameters | {"plt": rows.labels.shape[1]}
        self.test = list(lines(rows.test))
        ends = rows.labels.indptr
        with (self.scratch / "train.vw").open("w") as file:
            for line, a, b in zip(lines(rows.train), ends[:-1], ends[1:], strict=True):
                file.write(",".join(map(str, rows.labels.indices[a:b])) + line + "\n")

    def fit(self) -> None:
        Workspace(
            d=str(self.scratch / "train.vw"), cache_file=str(self.scratch / "train.cache"),
            f=str(self.file), holdout_off=True, quiet=True, **self.parameters,
        ).finish()  # fmt: skip

    def save(self) -> None:
        loss = self.parameters["loss_function"]
        self.tree = Workspace(i=str(self.file), t=True, top_k=K, loss_function=loss, quiet=True)

    def predict(self, k: int) -> list[list[int]]:
        return [self.tree.predict(line) for line in self.test]

    def ranked(self, found: list[list[int]]) -> list[list[int]]:
        return found

    def log_probs(self) -> None:
        return None


def lines(rows: sparse.csr_matrix) -> Iterator[str]:
    for a, b in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        words = zip(rows.indices[a:b].tolist(), rows.data[a:b].tolist(), strict=True)
        yield " | " + " ".join(f"{word}:{value:.6g}" for word, value in words)
