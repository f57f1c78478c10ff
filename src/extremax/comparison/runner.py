"""Run a comparison: tune each cell on validation rows, then train it for the whole budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from extremax.comparison import runs
from extremax.comparison.cells import Cell, LeftOut, names
from extremax.comparison.folder import RunFolder
from extremax.comparison.machine import machine, versions
from extremax.comparison.problem import Problem
from extremax.comparison.tuning import Options, Setting, better_half
from extremax.comparison.watch import FINAL, Runs, Watch
from extremax.errors import ArgumentError, ModelFileError
from extremax.noise import Noise
from extremax.training.holdout import FEWEST, holdout

# What a stored run must contain.
_TUNING_KEYS = {"round", "asked_seconds", "log_likelihood", *Setting._fields}
_FINAL_KEYS = {
    *Setting._fields, "examples_per_s", "peak_memory", "seconds", "wall_seconds", "epochs",
    "start_kept", "probabilities", "curve", "test", "calibration", "bias",
}  # fmt: skip


@dataclass
class Comparison:
    """The result: one record per final run and per tuning run.

    problem, prior:  sizes of the data, and test metrics of the class frequencies.
    left_out:        cells that cannot be trained on these rows.
    failed:          cells that raised an error.
    """

    name: str
    options: Options
    problem: dict[str, int]
    prior: dict[str, float]
    versions: dict[str, str]
    machine: dict[str, Any]
    final: dict[Cell, dict[str, Any]] = field(default_factory=dict)
    tuning: dict[Cell, list[dict[str, Any]]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    failed: list[LeftOut] = field(default_factory=list)

    @property
    def names(self) -> dict[Cell, str]:
        """Unique names of the finished cells."""
        return names(list(self.final))


def compare(
    problem: Problem,
    cells: Sequence[Cell],
    options: Options | None = None,
    *,
    folder: Path | None = None,
    name: str = "",
    watch: Watch | None = None,
) -> Comparison:
    """Run every cell.

    A cell that cannot be trained on these rows is left out, and a cell that raises an error is
    recorded as failed; the other cells still run.

    folder:  where finished runs are stored; runs found there are not repeated.
    name:    name of the data, for the report.
    """
    options, watch = options or Options(), watch or Watch()
    train_rows, n_held_out = _hold_out(problem, options)
    finished = RunFolder(folder, _fingerprint(problem, options))
    result = Comparison(
        name, options, problem.about() | {"validation_rows": n_held_out}, problem.prior(),
        versions(), machine(options.threads),
    )  # fmt: skip
    noises: dict[str | None, Noise] = {}
    rounds = {_kind(i): Runs(*round_) for i, round_ in enumerate(options.rounds, 1)}
    watch.start(len(cells), rounds | {FINAL: Runs(1, options.budget)})
    for cell, cell_name in names(list(cells)).items():
        own = options
        if cell.regularization is not None:
            own = replace(options, regularizations=(cell.regularization,))
        run = _CellRun(cell, cell_name, own, problem, train_rows, finished, watch, noises)
        with watch.cell():
            _add(result, run)
    watch.stop()
    return result


def _kind(number: int) -> str:
    """What the watch calls a round of tuning."""
    return f"round {number}"


def _add(result: Comparison, run: _CellRun) -> None:
    """Run a cell and add what came of it."""
    try:
        tuning, final = run.tune_and_train()
    except _Unsuitable as error:
        result.left_out.append(LeftOut(run.name, str(error)))
        run.watch.left_out(run.name, str(error))
    except ModelFileError:
        # The folder cannot be read or written, so the other cells would fail too.
        raise
    except Exception as error:
        # An error in one cell must not lose the hours that the others take.
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        result.failed.append(LeftOut(run.name, reason))
        run.watch.failed(run.name, reason)
    else:
        result.tuning[run.cell], result.final[run.cell] = tuning, final


class _Unsuitable(Exception):
    """A cell cannot be trained on these rows."""


@dataclass
class _CellRun:
    """All runs of one cell.

    train_rows:  numbers of the rows that the classifier does not hold out.
    noises:      noises fitted for tuning, by name, shared by all cells.
    is_warm:     whether the kernels have been compiled.
    """

    cell: Cell
    name: str
    options: Options
    problem: Problem
    train_rows: np.ndarray
    finished: RunFolder
    watch: Watch
    noises: dict[str | None, Noise]
    is_warm: bool = False

    def tune_and_train(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        settings = self.options.settings
        records: list[dict[str, Any]] = []
        for number, round_ in enumerate(self.options.rounds, 1):
            results = [self._tuning_run(number, s, round_.seconds) for s in settings]
            records += results
            settings = better_half(settings, [_score(record) for record in results])
        if records and all("diverged" in record for record in records):
            raise ArithmeticError(f"every setting diverged: {records[0]['diverged']}")
        final = self._final_run(settings[0])
        self.watch.result(self.name, final)
        return records, final

    def _tuning_run(self, number: int, setting: Setting, seconds: float) -> dict[str, Any]:
        def train() -> dict[str, Any]:
            noise = self._noise()
            record = runs.train(self.cell, setting, seconds, self.options, self.problem, noise)[1]
            # Curves of tuning runs are not shown.
            record.pop("curve", None)
            return record | {"round": number}

        file = f"round{number}-" + "-".join(f"{value:g}" for value in setting)
        what = f"tuning, round {number} of {len(self.options.rounds)}"
        return self._stored(file, _TUNING_KEYS, what, _kind(number), setting, seconds, train)

    def _final_run(self, setting: Setting) -> dict[str, Any]:
        def train() -> dict[str, Any]:
            record = runs.final(self.cell, setting, self.options, self.problem)
            if "diverged" in record:
                # Not stored, so that rerunning the comparison tries it again.
                raise ArithmeticError(record["diverged"])
            return record

        seconds = self.options.budget
        return self._stored("final", _FINAL_KEYS, "final run", FINAL, setting, seconds, train)

    def _stored(
        self,
        file: str,
        keys: set[str],
        what: str,
        kind: str,
        setting: Setting,
        seconds: float,
        train: Callable[[], dict[str, Any]],
    ) -> dict[str, Any]:
        """Return the record of a run that is stored, or else train and store it."""
        file = f"{self.cell.slug}/{file}"
        record = self.finished.get(file, keys)
        if record is not None:
            self.watch.skipped(kind, seconds)
            return record
        self._prepare(setting, needs_noise=kind != FINAL)
        with self.watch.running(f"{self.name}: {what}", kind, seconds):
            record = train()
        self.finished.put(file, record)
        return record

    def _prepare(self, setting: Setting, needs_noise: bool) -> None:
        if not self.is_warm:
            with self.watch.preparing(f"{self.name}: compiling"):
                self._warm_up(setting)
        if needs_noise and self.cell.noise and self.cell.noise not in self.noises:
            with self.watch.preparing(f"{self.name}: fitting the noise for tuning"):
                self._noise()

    def _warm_up(self, setting: Setting) -> None:
        try:
            runs.warm_up(self.cell, setting, self.options, self.problem)
        except ValueError as error:
            raise _Unsuitable(str(error)) from error
        self.is_warm = True

    def _noise(self) -> Noise:
        key = self.cell.noise
        if key not in self.noises:
            self.noises[key] = runs.fitted(self.cell, self.options, self.problem, self.train_rows)
        return self.noises[key]


def _score(record: dict[str, Any]) -> float:
    return -float("inf") if "diverged" in record else float(record["log_likelihood"])


def _hold_out(problem: Problem, options: Options) -> tuple[np.ndarray, int]:
    """Return the rows that the classifier will train on, and the number that it holds out."""
    rows, held_out = holdout(problem.labels, options.validation_fraction, options.seed)
    if not len(held_out):
        raise ArgumentError(
            f"fewer than {FEWEST} of {len(problem.labels):,} rows can be held out for tuning, "
            "because the first row of each class is used for training; provide more rows or a "
            "larger validation_fraction"
        )
    return rows, len(held_out)


def _fingerprint(problem: Problem, options: Options) -> dict[str, Any]:
    """What two runs must share to be comparable. Cells are not part of it: more may be added."""
    return {
        "data": f"{problem.checksum}, {len(problem.labels)} to train on, "
        f"{problem.features.shape[1]} features",
        "test": f"{len(problem.test_labels)} rows",
        **{k: v for k, v in asdict(options).items() if k != "threads"},
        # Results after equal seconds depend on the machine.
        "machine": machine(options.threads),
        "version": versions()["extremax"],
    }
