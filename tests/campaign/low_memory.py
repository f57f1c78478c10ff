"""Training, predicting, loading and saving in processes that may take only a little more memory.

A process is refused with an explanation or ends well; what was there before stays, or is replaced
by something whole.
"""

from __future__ import annotations

import copy
import io
import resource
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.cli import app
from extremax.cli.errors import explain
from tests.campaign.crash_children import UNPLANNED, USER_ERROR, Ended, run_in_child
from tests.campaign.trial import Result

NAME = "low_memory"
FULL = 120
TIMEOUT = 300.0

_ROWS, _FEATURES, _CLASSES, _SPARSE_FEATURES = 20_000, 64, 20_000, 40_000
_CHILD_SECONDS = 120.0
#: Bytes that a child may take on top of what its parent has.
_LEAST, _MOST = 1 << 20, 200 << 20
_FAST: dict[str, Any] = {"epochs": 1, "validation_fraction": 0.0, "random_state": 0}
_SAMPLED: dict[str, Any] = _FAST | {"objective": "sampled_softmax", "noise": "frequency"}
#: What a refusal must say: want of memory may not be taken for a damaged file or a bad argument.
_REASONS = ("not enough memory", "Cannot allocate memory")
_SPARE_PARAMETERS = ("--epochs", 1, "--validation-fraction", 0, "--quiet", "--seed", 0)


@dataclass
class Fixtures:
    """Data and trained models, in memory and in files."""

    X: np.ndarray
    y: np.ndarray
    matrix: sparse.csr_matrix
    old: ExtremeClassifier
    new: ExtremeClassifier
    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Fixtures:
        folder.mkdir()
        rng = np.random.default_rng(0)
        X = rng.normal(size=(_ROWS, _FEATURES)).astype(np.float32)
        y = rng.permutation(_ROWS) % _CLASSES
        indices = rng.integers(_SPARSE_FEATURES, size=8 * _ROWS)
        parts = np.ones(8 * _ROWS, np.float32), indices, np.arange(0, 8 * _ROWS + 1, 8)
        matrix = sparse.csr_matrix(parts, (_ROWS, _SPARSE_FEATURES))
        np.save(folder / "X.npy", X)
        np.save(folder / "few.npy", X[:200])
        np.save(folder / "y.npy", y)
        sparse.save_npz(folder / "matrix.npz", matrix)
        old = ExtremeClassifier(**_SAMPLED, learning_rate=0.1).fit(X, y)
        new = ExtremeClassifier(**_SAMPLED).fit(X, y)
        new.save(folder / "model")
        return cls(X, y, matrix, old, new, folder)


Task = Callable[[Fixtures, Path], object]
_fixtures: list[Fixtures] = []


def _command(*arguments: object) -> None:
    app([str(a) for a in arguments], prog_name="extremax", standalone_mode=True)


def _train(fixtures: Fixtures, place: Path, rows: str = "X.npy") -> None:
    files = fixtures.folder / rows, "--labels", fixtures.folder / "y.npy"
    _command("train", *files, "-o", place / "model", "--force", *_SPARE_PARAMETERS)


def _predict(fixtures: Fixtures, place: Path) -> None:
    output = "-o", place / "out.tsv"
    _command("predict", fixtures.folder / "model", fixtures.folder / "few.npy", *output)


def _ask(fixtures: Fixtures, place: Path) -> None:
    probabilities = fixtures.new.predict_proba(fixtures.X[:3000])
    assert np.allclose(probabilities.sum(1), 1, atol=1e-3)


def _load(fixtures: Fixtures, place: Path) -> None:
    loaded = ExtremeClassifier.load(fixtures.folder / "model")
    labels = loaded.predict_topk(fixtures.X[:20], 3).labels
    assert np.array_equal(labels, fixtures.new.predict_topk(fixtures.X[:20], 3).labels)


def _train_more(fixtures: Fixtures, place: Path) -> None:
    y = np.arange(_ROWS) + _CLASSES // 2
    fixtures.old.partial_fit(fixtures.X, y).save(place / "model")


TASKS: dict[str, Task] = {
    "fit dense": lambda f, place: ExtremeClassifier(**_FAST).fit(f.X, f.y).save(place / "model"),
    "fit exact": lambda f, place: (
        ExtremeClassifier(objective="exact", batch_size=5000, **_FAST)
        .fit(f.X[:5000], f.y[:5000])
        .save(place / "model")
    ),
    "fit sparse": lambda f, place: (
        ExtremeClassifier(bag_size=64, **_SAMPLED).fit(f.matrix, f.y).save(place / "model")
    ),
    "partial_fit": _train_more,
    "save": lambda f, place: f.new.save(place / "model"),
    "load": _load,
    "predict_proba": _ask,
    "train": _train,
    "train sparse": lambda f, place: _train(f, place, "matrix.npz"),
    "predict": _predict,
    "evaluate": lambda f, place: _command(
        "evaluate", f.folder / "model", f.folder / "few.npy", "--labels", f.folder / "few_y.npy"
    ),
    "info": lambda f, place: _command("info", f.folder / "model"),
}


def prepare(folder: Path) -> None:
    """Train the models, and do everything once with all the memory there is.

    This process does it too, because it must have loaded all kernels before it forks: LLVM, which
    loads them, ends a process that has no memory left.
    """
    torch.set_num_threads(1)
    fixtures = Fixtures.make(folder / "fixtures")
    np.save(fixtures.folder / "few_y.npy", fixtures.y[:200])
    _fixtures[:] = [fixtures]
    for name, task in TASKS.items():
        place = _set_up(fixtures, folder)
        ended = run_in_child(_limited(task, fixtures, place, None), folder / "child", 300.0)
        problem = _left_wrong(fixtures, place)
        if ended.status != 0 or problem:
            raise AssertionError(f"{name} ends with {ended.status}: {problem}{ended.err}")
        with suppress(SystemExit), redirect_stdout(io.StringIO()):
            task(replace(fixtures, old=copy.deepcopy(fixtures.old)), place)
        shutil.rmtree(place)


def run(seed: int, folder: Path) -> Result:
    """Do one thing in a child with little memory, then look at what it left."""
    random = Random(f"low_memory {seed}")
    fixtures = _fixtures[0]
    name = random.choice(sorted(TASKS))
    spare = round(_LEAST * (_MOST / _LEAST) ** random.random())
    place = _set_up(fixtures, folder)
    task = _limited(TASKS[name], fixtures, place, spare)
    try:
        ended = run_in_child(task, folder / "child", _CHILD_SECONDS)
        detail = f"{name} with {spare:,} bytes more: status {ended.status}\n{ended.err[-2000:]}"
        return _judged(ended, fixtures, place, detail)
    finally:
        shutil.rmtree(place)


def _set_up(fixtures: Fixtures, folder: Path) -> Path:
    """A folder with an old model and an old output."""
    place = folder / "place"
    place.mkdir()
    fixtures.old.save(place / "model")
    (place / "out.tsv").write_text("old\n")
    return place


def _limited(task: Task, fixtures: Fixtures, place: Path, spare: int | None) -> Callable[[], None]:
    """The task with a limit on the memory of its process; want of memory is a refusal."""

    def limited() -> None:
        if spare is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + spare
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            task(fixtures, place)
        except Exception as error:
            explanation = explain(error)
            if explanation is None:
                raise
            print(explanation[0], file=sys.stderr)
            sys.exit(USER_ERROR)

    return limited


def _judged(ended: Ended, fixtures: Fixtures, place: Path, detail: str) -> Result:
    if ended.status is None:
        return Result("hang", detail)
    if ended.status not in (0, USER_ERROR):
        return Result("traceback" if ended.status in (1, UNPLANNED) else "crash", detail)
    if ended.status == USER_ERROR and not any(reason in ended.err for reason in _REASONS):
        return Result("silently_wrong", f"{detail}: refused for another reason")
    problem = _left_wrong(fixtures, place)
    if problem:
        return Result("lost", f"{detail}\n{problem}")
    return Result("accepted" if ended.status == 0 else "refused")


def _left_wrong(fixtures: Fixtures, place: Path) -> str:
    """What is wrong with the files that a child left, or ""."""
    names = sorted(path.name for path in place.iterdir())
    if names != ["model", "out.tsv"]:
        return f"files {names}"
    text = (place / "out.tsv").read_text()
    if text != "old\n" and len(text.splitlines()) != len(np.load(fixtures.folder / "few.npy")):
        return f"half of an output: {text!r:.200}"
    model = ExtremeClassifier.load(place / "model")
    parts = {path.name.split(".")[0] for path in (place / "model").iterdir()}
    if parts - {"nearest_rows", "similar_rows"} != {
        "encoder",
        "head",
        "labels",
        "manifest",
        "noise",
    }:
        return f"files of a model {sorted(parts)}"
    rows: Any = fixtures.X[:5] if model.n_features_in_ == _FEATURES else fixtures.matrix[:5]
    return "" if np.isfinite(model.predict_topk(rows, 3).log_probs).all() else "NaN"
