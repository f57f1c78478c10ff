"""Fit, save, predict and judge one contender on prepared rows; its figures are a JSON line.

``python measure.py CONTENDER ROWS TASK PARAMETERS SCRATCH``: a module of this folder, a folder that
text_peers.py wrote, "single" or "all", its parameters as JSON, and a folder to write to. It runs
with the Python of the contender, so nothing of extremax is imported here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
K = 5


class Rows:
    """The rows of one task.

    train, test:              TF-IDF, CSR.
    labels, test_labels:      indicator matrices, CSR. A single label has one column a class.
    classes, test_classes:    of the single label: the number of each row's class; -1 is a class
                              that training has not seen. None where rows have several labels.
    names, named:             TF-IDF of the names of labels, and the number of each label's column.
    """

    def __init__(self, folder: Path, task: str) -> None:
        self.folder = folder
        self.train = sparse.load_npz(folder / "X_train.npz")
        self.test = sparse.load_npz(folder / "X_test.npz")
        self.classes = self.test_classes = None
        if task == "all":
            self.labels = sparse.load_npz(folder / "all_train.npz")
            self.test_labels = sparse.load_npz(folder / "all_test.npz")
        else:
            self.classes = np.load(folder / "single_train.npy")
            self.test_classes = np.load(folder / "single_test.npy")
            n_classes = int(self.classes.max()) + 1
            self.labels = indicators(self.classes, n_classes)
            self.test_labels = indicators(self.test_classes, n_classes)
        names, named = sparse.load_npz(folder / "names.npz"), np.load(folder / f"{task}_names.npy")
        used = (named >= 0) & (names.getnnz(1) > 0)
        self.names, self.named = names[used], named[used]

    def words(self, part: str) -> list[str]:
        """The words of each row of "train" or "test" that have a column."""
        with (self.folder / f"{part}.txt").open(encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]


class Contender(Protocol):
    """What a module of this folder offers under this name."""

    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        """Bring the rows into the form it wants; the model's files go to ``model``."""

    def fit(self) -> None: ...

    def save(self) -> None:
        """Write the model, unless fitting has; ready to predict afterwards."""

    def predict(self, k: int) -> Any:
        """The k best labels of each test row, as it tells them."""

    def ranked(self, found: Any) -> Iterable[Sequence[int]]:
        """The same, best first; of a row there may be fewer."""

    def log_probs(self) -> np.ndarray | None:
        """log p of each test row's class, of the rows whose class training has seen; None if its
        scores are no probabilities that sum to one."""


def indicators(classes: np.ndarray, n_classes: int) -> sparse.csr_matrix:
    """One column a class; a row of -1 has no entry."""
    known = classes >= 0
    ends = np.concatenate([[0], np.cumsum(known)])
    ones = np.ones(int(known.sum()), np.float32)
    return sparse.csr_matrix((ones, classes[known], ends), shape=(len(classes), n_classes))


def matrix(ranked: Iterable[Sequence[int]]) -> np.ndarray:
    """(n, K); -1 where a row has fewer labels."""
    return np.array([[*labels[:K], *[-1] * (K - len(labels))] for labels in ranked])


def hits(top: np.ndarray, truth: sparse.csr_matrix) -> np.ndarray:
    """Which of the predicted labels are right, (n, k); one that does not exist is wrong."""
    rows, columns = truth.nonzero()
    width = truth.shape[1]
    predicted = np.arange(len(top))[:, None] * width + top
    exists = (top >= 0) & (top < width)
    return exists & np.isin(predicted, rows.astype(np.int64) * width + columns)


def judged(rows: Rows, top: np.ndarray, log_probs: np.ndarray | None) -> dict[str, float | None]:
    """Accuracy and likelihood of a single label, precision at k of several.

    A row whose class training has not seen is wrong, and is left out of the likelihood.
    """
    right = hits(top, rows.test_labels)
    if rows.test_classes is None:
        return {f"p{k}": float(right[:, :k].mean()) for k in (1, 3, 5)}
    return {
        "acc1": float(right[:, 0].mean()),
        "acc5": float(right.any(1).mean()),
        "loglik": None if log_probs is None else float(log_probs.mean()),
    }


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_gb() -> float:
    """Of this process. ``ru_maxrss`` would begin with the peak of the one that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e9
    raise RuntimeError("/proc/self/status has no VmHWM; this benchmark needs Linux")


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def measure(contender: Contender, rows: Rows, model: Path) -> dict[str, float | None]:
    fit_s = seconds(contender.fit)
    contender.save()
    found: list[Any] = []
    # The faster of two: the first one finds caches and pages cold.
    predict_s = min(seconds(lambda: found.append(contender.predict(K))) for _ in range(2))
    log_probs = None if rows.test_classes is None else contender.log_probs()
    return {
        "fit_s": fit_s,
        **judged(rows, matrix(contender.ranked(found[0])), log_probs),
        "docs_per_s": rows.test.shape[0] / predict_s,
        "model_mb": megabytes(model),
        "peak_gb": peak_gb(),
    }


def main() -> None:
    name, folder, task, parameters, scratch = sys.argv[1:]
    rows = Rows(Path(folder), task)
    model = Path(scratch) / "model"
    model.mkdir()
    contender = import_module(name).Contender(rows, json.loads(parameters), model)
    # A library may print as it likes; the last line is ours.
    print("\n" + json.dumps(measure(contender, rows, model)), flush=True)


if __name__ == "__main__":
    main()
