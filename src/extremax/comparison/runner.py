"""Run a comparison: tune each cell on validation rows, then train it for the whole budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.comparison import runs
from extremax.comparison.cells import Cell, LeftOut, names
from extremax.comparison.folder import RunFolder
from extremax.comparison.machine import machine, versions
from extremax.comparison.problem import Problem
from extremax.comparison.tuning import Round, Setting, better_half, grid, rounds
from extremax.comparison.watch import Watch
from extremax.errors import ModelFileError

if TYPE_CHECKING:
    import numpy as np

    from extremax.noise import Noise


@dataclass(frozen=True)
class Options:
    """Settings of a comparison, the same for every cell.

    budget:           seconds of the final run per cell, which include fitting the noise.
    tuning:           time of all tuning runs per cell, as a multiple of the budget.
    learning_rates, regularizations:  the grid of settings to tune over.
    tree_components:  dimensions of the dense tree.
    """

    budget: float = 60.0
    tuning: float = 1.0
    learning_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    regularizations: tuple[float, ...] = (0.0, 1e-5, 1e-3)
    tree_components: int = 16
    validation_fraction: float = 0.1
    seed: int = 0
    threads: int | None = None

    def check(self) -> None:
        """Raise ValueError for a setting out of range."""
        for name, least in (("budget", 0.0), ("tuning", 0.0)):
            if not getattr(self, name) > least:
                raise ValueError(f"{name} must be > {least:g}, got {getattr(self, name)!r}")
        if not self.learning_rates or not self.regularizations:
            raise ValueError("tuning needs at least one learning rate and one regularization")
        if min(self.learning_rates) <= 0:
            raise ValueError(f"learning rates must be > 0, got {self.learning_rates}")
        if min(self.regularizations) < 0:
            raise ValueError(f"regularizations must be >= 0, got {self.regularizations}")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be in (0, 1), got {self.validation_fraction!r}"
            )

    @property
    def rounds(self) -> list[Round]:
        """The rounds of tuning per cell."""
        n_settings = len(self.learning_rates) * len(self.regularizations)
        return rounds(n_settings, self.tuning * self.budget)

    @property
    def seconds_per_cell(self) -> float:
        """Seconds of training per cell, tuning included."""
        return self.budget + sum(r.settings * r.seconds for r in self.rounds)


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
    options.check()
    train_rows, n_held_out = _hold_out(problem, options)
    finished = RunFolder(folder, _fingerprint(problem, options))
    finished.open()
    result = Comparison(
        name, options, problem.about() | {"validation_rows": n_held_out}, problem.prior(),
        versions(), machine(options.threads),
    )  # fmt: skip
    cell_names = names(list(cells))
    noises: dict[str | None, Noise] = {}
    watch.start(len(cells) * options.seconds_per_cell)
    for cell in cells:
        cell_name, start = cell_names[cell], watch.done
        run = _CellRun(cell, cell_name, options, problem, train_rows, finished, watch, noises)
        try:
            tuning, final = run.tune_and_train()
        except _Unsuitable as error:
            result.left_out.append(LeftOut(cell_name, str(error)))
            watch.left_out(cell_name, str(error))
        except ModelFileError:
            # The folder cannot be read or written, so the other cells would fail too.
            raise
        except Exception as error:
            # An error in one cell must not lose the hours that the others take.
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            result.failed.append(LeftOut(cell_name, reason))
            watch.failed(cell_name, reason)
        else:
            result.tuning[cell], result.final[cell] = tuning, final
        # Count the runs that an unfinished cell skips as done.
        watch.skipped(start + options.seconds_per_cell - watch.done)
    watch.stop()
    return result


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
        settings = grid(self.options.learning_rates, self.options.regularizations)
        records: list[dict[str, Any]] = []
        for number, round_ in enumerate(self.options.rounds, 1):
            results = [self._short_run(number, s, round_.seconds) for s in settings]
            records += results
            settings = better_half(settings, [_score(record) for record in results])
        if records and all(_score(record) == -float("inf") for record in records):
            raise ArithmeticError(f"every setting diverged: {records[0].get('diverged')}")
        return records, self._final_run(settings[0])

    def _short_run(self, number: int, setting: Setting, seconds: float) -> dict[str, Any]:
        name = f"{self.cell.slug}/round{number}-{_slug(setting)}"
        record = self.finished.get(name)
        if record is None:
            self._warm_up(setting)
            what = f"{self.name}: tuning, round {number} of {len(self.options.rounds)}"
            with self.watch.running(what, seconds):
                record = runs.train(
                    self.cell, setting, seconds, self.options, self.problem, self._noise()
                )[1]
            record |= {"round": number}
            # Curves of tuning runs are not shown.
            record.pop("curve", None)
            self.finished.put(name, record)
        else:
            self.watch.skipped(seconds)
        return record

    def _final_run(self, setting: Setting) -> dict[str, Any]:
        name = f"{self.cell.slug}/final"
        record = self.finished.get(name)
        if record is None or "diverged" in record:
            self._warm_up(setting)
            with self.watch.running(f"{self.name}: final run", self.options.budget):
                record = runs.final(self.cell, setting, self.options, self.problem)
            if "diverged" in record:
                # Not stored, so that rerunning the comparison tries it again.
                raise ArithmeticError(record["diverged"])
            self.finished.put(name, record)
        else:
            self.watch.skipped(self.options.budget)
        self.watch.result(self.name, record)
        return record

    def _warm_up(self, setting: Setting) -> None:
        if self.is_warm:
            return
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
    value = record["log_likelihood"]
    return -float("inf") if value is None else float(value)


def _slug(setting: Setting) -> str:
    return f"{setting.learning_rate:g}-{setting.regularization:g}"


def _hold_out(problem: Problem, options: Options) -> tuple[np.ndarray, int]:
    """Return the rows that the classifier will train on, and the number that it holds out."""
    from extremax.training.holdout import FEWEST, holdout

    rows, held_out = holdout(problem.labels, options.validation_fraction, options.seed)
    if not len(held_out):
        raise ValueError(
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
