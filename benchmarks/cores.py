"""Do fits and predictions get faster with every core?

The same fits and predictions with 1, 2, 4, 8 and 16 threads, as many as the machine has, kernels
compiled before. Parts, chosen by ``--parts``:

text     fit with the defaults on titles (yso-finna-en, TF-IDF, one subject each), from 2 threads on
predict  the five best classes of each test title, the best of three times
dense    five epochs on 400,000 synthetic rows of 256 features with 100,000 classes

    python benchmarks/cores.py --data DIR

DIR has the folder yso-finna-en, with the files of the data or with the rows that ``text_peers.py
--out`` writes. Without DIR, or with ``--quick``: a synthetic text. Seconds of each phase of a fit
are printed with the cores that were busy on average, and the bandwidth of copying memory at each
number of threads, which bounds what threads can gain. ``--peers`` adds omikuji's fit (Parabel,
three trees) at the same numbers of threads, where it is installed (``make bench-peers`` does so).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from _common import finish, say, timed
from dense_step import copy
from scipy import sparse
from text_peers import ENVIRONMENT, HERE, prepare, synthetic, synthetic_names, yso, yso_names

from extremax import ExtremeClassifier, classifier
from extremax.data import clustered
from extremax.kernels.cpu import threads
from extremax.training.progress import Progress
from extremax.training.state import State

COUNTS = (1, 2, 4, 8, 16)
PARTS = ("text", "predict", "dense")
NAME = "yso-finna-en"


class Phase(NamedTuple):
    """A part of a fit: seconds on the clock, and of all processors together."""

    name: str
    seconds: float
    cpu: float


class Clocked(Progress):
    """Notes when each phase and each epoch ends; evaluation is part of an epoch."""

    last: ClassVar[list[Phase]] = []

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._begin("")

    def _begin(self, name: str) -> None:
        self._name, self._since, self._cpu = name, time.perf_counter(), time.process_time()

    def _end(self) -> None:
        if self._name:
            seconds, cpu = time.perf_counter() - self._since, time.process_time() - self._cpu
            Clocked.last.append(Phase(self._name, seconds, cpu))

    def phase(self, name: str) -> None:
        self._end()
        self._begin(name)

    @contextmanager
    def shown(self, epochs: int, rows: int, state: State) -> Iterator[None]:
        self.phase(f"epoch {state.epoch + 1}")
        with super().shown(epochs, rows, state):
            yield

    def epoch(self, record: dict[str, Any]) -> None:
        self.phase(f"epoch {record['epoch'] + 1}")

    def __exit__(self, *_: object) -> None:
        self._end()


def fitted(x: Any, y: np.ndarray, n: int, **parameters: Any) -> tuple[ExtremeClassifier, float]:
    """A model, and the seconds it took; prints those of each phase."""
    Clocked.last = []
    model = ExtremeClassifier(n_jobs=n, random_state=0, **parameters)
    seconds = timed(lambda: model.fit(x, y))
    say(f"fit, {n} threads: {seconds:.1f} s")
    for name, wall, cpu in Clocked.last:
        if wall > 0.005 * seconds:
            say(f"    {wall:7.2f} s, {cpu / wall:5.1f} cores  {name}")
    return model, seconds


def docs_per_s(model: ExtremeClassifier, rows: Any, n: int) -> float:
    model.set_params(n_jobs=n)
    rate = rows.shape[0] / min(timed(lambda: model.predict_topk(rows, 5)) for _ in range(3))
    say(f"predict, {n} threads: {rate:,.0f} documents/s")
    return rate


def bandwidth(n: int, size: int) -> float:
    """Bytes read and written per second by copying."""
    source, target = np.ones(size, np.float32), np.full(size, 0.5, np.float32)
    with threads.limit(n):
        rate = 2 * source.nbytes / min(timed(lambda: copy(source, target)) for _ in range(7))
    say(f"copy, {n} threads: {rate / 1e9:.1f} GB/s")
    return rate


def rows_of(data: Path | None, quick: bool, scratch: Path) -> Path:
    """A folder with the rows of the text."""
    if data is not None and (data / NAME / "X_train.npz").exists():
        return data / NAME
    if data is not None:
        source = data / NAME
        parts = yso(source / "train.tsv.xz"), yso(source / "test.tsv.xz")
        prepare(scratch, *parts, yso_names(source / "labels.tsv.xz"))
    else:
        n, n_classes = (4_000, 200) if quick else (100_000, 5_000)
        parts = synthetic(n, n_classes, 0), synthetic(n // 10, n_classes, 1)
        prepare(scratch, *parts, synthetic_names(n_classes))
    return scratch


def omikuji_fit(folder: Path, n: int) -> float | None:
    """Seconds of a fit of omikuji; None where it cannot be run."""
    own = ENVIRONMENT / "bin/python"
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [
                str(own if own.exists() else sys.executable), str(HERE / "peers" / "measure.py"),
                "omikuji_", str(folder), "single", '{"n_trees": 3}', scratch,
            ],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(n)},
        )  # fmt: skip
    if done.returncode:
        say(f"omikuji: {(done.stderr.splitlines() or ['failed'])[-1]}")
        return None
    seconds = json.loads(done.stdout.splitlines()[-1])["fit_s"]
    say(f"omikuji fit, {n} threads: {seconds:.1f} s")
    return seconds


def compile_kernels() -> None:
    """Fit and predict once on a few rows, as the measured fits do: with a number of epochs, so that
    few rows are not solved, and in less time than exact softmax would take."""
    rows = sparse.random(20_000, 64, 0.2, "csr", np.float32, random_state=0)
    y = np.arange(20_000) % 5_000
    few = ExtremeClassifier(random_state=0, epochs=1).fit(rows[:2_000], y[:2_000] % 300)
    few.predict_topk(rows[:100], 5)
    ExtremeClassifier(random_state=0, epochs=1, max_seconds=0.3).fit(rows.toarray(), y)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small synthetic problems")
    parser.add_argument("--data", type=Path, help=f"folder with {NAME}")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", nargs="+", type=int, help="1 2 4 8 16, if there are so many")
    parser.add_argument("--peers", action="store_true", help="also fit omikuji")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    classifier.Progress = Clocked  # type: ignore[misc]
    counts = given.threads or [n for n in COUNTS if n <= threads.available()]
    size = 2**22 if given.quick else 2**27
    figures: dict[str, Any] = {"copy": {n: bandwidth(n, size) for n in counts}}
    compile_kernels()
    sizes: dict[str, int] = {}
    if {"text", "predict"} & set(given.parts):
        with tempfile.TemporaryDirectory() as scratch:
            data = None if given.quick else given.data
            text_parts(figures, sizes, given, counts, rows_of(data, given.quick, Path(scratch)))
    if "dense" in given.parts:
        n, n_classes, width = (4_000, 300, 16) if given.quick else (400_000, 100_000, 256)
        sizes |= {"dense_rows": n, "dense_classes": n_classes, "dense_features": width}
        x, y = clustered(n, n_classes, width)
        figures["dense_fit_s"] = {k: fitted(x, y, k, epochs=5)[1] for k in counts}
    real = given.data is not None and not given.quick
    finish(given, headline(figures), figures, sizes, NAME if real else "synthetic")


def text_parts(
    figures: dict[str, Any], sizes: dict[str, int], given: argparse.Namespace, counts: list[int],
    folder: Path,
) -> None:  # fmt: skip
    """Fill in what is measured on texts."""
    x, y = sparse.load_npz(folder / "X_train.npz"), np.load(folder / "single_train.npy")
    sizes |= {"rows": x.shape[0], "features": x.shape[1], "classes": int(y.max()) + 1}
    model, few_epochs = None, {"epochs": 2} if given.quick else {}
    if "text" in given.parts:
        figures["text_fit_s"] = {}
        for n in [n for n in counts if n > 1] or counts:
            model, figures["text_fit_s"][n] = fitted(x, y, n, **few_epochs)
        if given.peers:
            figures["omikuji_fit_s"] = {n: omikuji_fit(folder, n) for n in figures["text_fit_s"]}
    if "predict" in given.parts:
        model = model or fitted(x, y, max(counts), **few_epochs)[0]
        test = sparse.load_npz(folder / "X_test.npz")
        figures["docs_per_s"] = {n: docs_per_s(model, test, n) for n in counts}


def headline(figures: dict[str, Any]) -> dict[str, float | None]:
    """The figures that must be reached; null where a number of threads was not measured."""

    def at(key: str, n: int) -> float | None:
        return figures.get(key, {}).get(n)

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above and below else None

    return {
        "text_fit_s_2": at("text_fit_s", 2),
        "text_fit_s_16": at("text_fit_s", 16),
        "dense_fit_1_to_16": ratio(at("dense_fit_s", 1), at("dense_fit_s", 16)),
        "copy_1_to_16": ratio(at("copy", 16), at("copy", 1)),
        "predict_2_to_16": ratio(at("docs_per_s", 16), at("docs_per_s", 2)),
    }


if __name__ == "__main__":
    main()
