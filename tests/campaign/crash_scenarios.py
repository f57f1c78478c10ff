"""What a process does while it is killed or its disk fails: eight scenarios.

Each has a folder to work in. `Scenario.set_up` makes it as it is before; `act` does the work, and
may be repeated. Data and models are tiny, so that a scenario takes milliseconds.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extremax import ExtremeClassifier
from extremax.cli import app
from extremax.comparison import Comparison, Options, Problem, choose
from extremax.comparison import compare as run_comparison
from extremax.data import clustered
from extremax.report import learning_curves
from extremax.report.page import write_report
from extremax.storage.folder import model_folder
from tests.campaign.crash_children import run_in_child
from tests.campaign.crash_operations import Operations

#: Files of somebody else, put into the folders that commands write to.
BYSTANDERS = {
    "notes.txt": b"mine",
    ".hidden": b"mine too",
    "head.backup.safetensors": b"a copy",
    ".out.tsv.part": b"not a number",
    "more/manifest.json.bak": b"{}",
}
_TRAIN = ("--epochs", 3, "--threads", 1, "--quiet")
_COMPARE = (
    "--cells", "negative_sampling:uniform", "--budget", 0.01, "--learning-rates", "0.1,0.3",
    "--regularizations", 0, "--test-fraction", 0.25,
    "--validation-fraction", 0.2, "--threads", 1, "--quiet",
)  # fmt: skip


class Fixtures:
    """Data files and trained models that all scenarios share."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        # Forked children have only the thread that forked them.
        torch.set_num_threads(1)
        self.rows, self.labels = folder / "X.npy", folder / "y.npy"
        self.X, self.y = clustered(800, 12, 6, seed=0)
        np.save(self.rows, self.X)
        np.save(self.labels, self.y)
        self.data = (self.rows, "--labels", self.labels)
        fit = ExtremeClassifier(epochs=1, n_jobs=1, random_state=1).fit
        self.old = fit(self.X, self.y)
        self.new = ExtremeClassifier(epochs=2, n_jobs=1, random_state=2).fit(self.X, self.y)
        self.model = folder / "model"
        self.new.save(self.model)
        self.comparisons = [self._compared(n) for n in (1, 2)]
        # Whatever is compiled or imported on first use is then there in every child.
        command("predict", self.model, self.rows, "--quiet", "-o", folder / "warm.tsv")
        ExtremeClassifier.load(self.model).partial_fit(self.X, self.y)

    def _compared(self, n_cells: int) -> Comparison:
        problem = Problem.split(self.X, self.y, test_fraction=0.25, seed=0)
        cells = choose("negative_sampling:uniform,nce:uniform", 5)[0][:n_cells]
        options = Options(0.01, 1.0, (0.1,), (0.0,), validation_fraction=0.2, threads=1)
        return run_comparison(problem, cells, options, name=f"{n_cells} cells")


def command(*arguments: object) -> None:
    """Run a command line in this process; it must succeed, or raises SystemExit."""
    try:
        app([str(argument) for argument in arguments], prog_name="extremax")
    except SystemExit as error:
        if error.code:
            raise


@dataclass(frozen=True)
class Scenario:
    """Something that writes.

    target:       what it writes, relative to the folder it works in.
    kind:         "model", "file" (the target and everything in it are single files) or "runs".
    checkpoint:   the folder of its checkpoint, "" without one.
    by_command:   whether it is a command line, whose errors must be one line.
    tolerated:    a message with which repeating it may be refused once it has succeeded.
    insist:       what then repeats it nevertheless.
    slow:         whether it takes seconds, because it draws.
    """

    name: str
    target: str
    kind: str
    before: Callable[[Fixtures, Path], object]
    act: Callable[[Fixtures, Path], object]
    checkpoint: str = ""
    by_command: bool = False
    tolerated: str = ""
    insist: Callable[[Fixtures, Path], object] | None = None
    slow: bool = False

    def set_up(self, fixtures: Fixtures, work: Path) -> None:
        """Make the folder as it is before."""
        work.mkdir()
        self.before(fixtures, work)
        folders = [work, work / self.target] if self.name != "compare" else [work]
        for folder in folders:
            if folder.is_dir():
                add_bystanders(folder)


def add_bystanders(folder: Path) -> None:
    for name, content in BYSTANDERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def _old_model(fixtures: Fixtures, work: Path) -> None:
    fixtures.old.save(work / "m")


def _nothing(fixtures: Fixtures, work: Path) -> None:
    pass


def _train(fixtures: Fixtures, work: Path, *more: Any) -> None:
    folders = ("-o", work / "m", "--checkpoint", work / "c")
    command("train", *fixtures.data, *folders, *_TRAIN, *more)


def _before_resume(fixtures: Fixtures, work: Path) -> None:
    """A run that was killed after its first epoch, beside an old model."""
    _old_model(fixtures, work)
    # Numbered from 1: the start, and then the end of each epoch.
    last = "replace c/manifest.json #2"

    def hook(name: str, perform: Callable[[], Any], _: Any) -> Any:
        answer = perform()
        if name == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def stopped() -> None:
        Operations(work, hook).install()
        _train(fixtures, work, "--force")

    ended = run_in_child(stopped, work.with_name("output"))
    assert ended.status == -signal.SIGKILL, ended
    add_bystanders(work / "c")


def _partial_fit(fixtures: Fixtures, work: Path) -> None:
    """Learn one more batch, unless that has been done, and save in place."""
    classifier = ExtremeClassifier.load(work / "m")
    if not model_folder(work / "m").read_settings()["n_partial_fits"]:
        classifier.partial_fit(fixtures.X[:60], fixtures.y[:60])
    classifier.save(work / "m")


def _predict(fixtures: Fixtures, work: Path) -> None:
    options = ("-k", 3, "--threads", 1, "--quiet")
    command("predict", fixtures.model, fixtures.rows, "-o", work / "out.tsv", *options)


def _old_predictions(fixtures: Fixtures, work: Path) -> None:
    (work / "out.tsv").write_text("old\t1\n" * 50)


def _report(fixtures: Fixtures, work: Path, number: int = 1) -> None:
    write_report(fixtures.comparisons[number], work / "report")
    history = [r | {"seconds": r["epoch"]} for r in (fixtures.old, fixtures.new)[number].history_]
    learning_curves({f"run {number}": history}, work / "report" / "curve.svg")


def _compare(fixtures: Fixtures, work: Path) -> None:
    command("compare", *fixtures.data, "-o", work / "runs", *_COMPARE)


SCENARIOS = (
    Scenario("save", "m", "model", _nothing, lambda f, w: f.new.save(w / "m")),
    Scenario("save over an old model", "m", "model", _old_model, lambda f, w: f.new.save(w / "m")),
    Scenario(
        "checkpoint", "m", "model", _nothing, _train, "c", True, "already contains a model",
        lambda f, w: _train(f, w, "--force"),
    ),
    Scenario(
        "resume", "m", "model", _before_resume, lambda f, w: _train(f, w, "--force"), "c", True
    ),
    Scenario("predict", "out.tsv", "file", _old_predictions, _predict, by_command=True),
    Scenario("report", "report", "file", lambda f, w: _report(f, w, 0), _report, slow=True),
    Scenario("compare", "runs", "runs", _nothing, _compare, by_command=True, slow=True),
    Scenario("partial_fit", "m", "model", _old_model, _partial_fit),
)  # fmt: skip


def copy_folder(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True)
