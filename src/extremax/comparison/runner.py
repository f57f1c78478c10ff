"""The comparison: tune each cell on validation rows, then one run with the whole budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.comparison import runs
from extremax.comparison.cells import Cell, LeftOut, names
from extremax.comparison.folder import Folder
from extremax.comparison.machine import machine, versions
from extremax.comparison.problem import Problem
from extremax.comparison.tuning import Round, Setting, better_half, grid, rounds
from extremax.comparison.watch import Watch
from extremax.errors import ModelFileError

if TYPE_CHECKING:
    from extremax.noise import Noise


@dataclass(frozen=True)
class Options:
    """How to compare; every cell gets the same.

    budget:      seconds of the final run of a cell, the fit of its noise counted.
    tuning:      time for tuning a cell, in budgets: its runs together take so long.
    learning_rates, regularizations:  the grid.
    """

    budget: float = 60.0
    tuning: float = 1.0
    learning_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    regularizations: tuple[float, ...] = (0.0, 1e-5, 1e-3)
    tree_components: int = 16
    validation_fraction: float = 0.1
    seed: int = 0
    threads: int | None = None
    #: Rows that the classifier holds out; known when the data are.
    n_held_out: int = 0

    def check(self) -> None:
        """Refuse what could only fail later."""
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
        n_settings = len(self.learning_rates) * len(self.regularizations)
        return rounds(n_settings, self.tuning * self.budget)

    @property
    def seconds_a_cell(self) -> float:
        """Seconds of training that a cell takes."""
        return self.budget + sum(r.settings * r.seconds for r in self.rounds)


@dataclass
class Comparison:
    """What came of it: the record of every final run and of every short one."""

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
    """Run every cell; runs that ``folder`` holds already are taken from there.

    A cell that cannot work on these rows is left out with the reason, one that fails is noted and
    the others go on.
    """
    options, watch = options or Options(), watch or Watch()
    options.check()
    held_out, options = _hold_out(problem, options)
    kept = Folder(folder, _fingerprint(problem, options))
    kept.open()
    result = Comparison(
        name, options, problem.about() | {"validation_rows": options.n_held_out}, problem.prior(),
        versions(), machine(options.threads),
    )  # fmt: skip
    called = names(list(cells))
    noises: dict[str | None, Noise] = {}
    watch.start(len(cells) * options.seconds_a_cell)
    for cell in cells:
        run = _CellRun(cell, called[cell], options, problem, held_out, kept, watch, noises)
        begun = watch.done
        try:
            tuning, final = run.tune_and_train()
        except _Unfit as error:
            result.left_out.append(LeftOut(called[cell], str(error)))
            watch.left_out(called[cell], str(error))
        except ModelFileError:
            # The folder cannot be written or read: no other cell could do better.
            raise
        except Exception as error:
            # Whatever is wrong with one cell, hours of the others are not to be lost.
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            result.failed.append(LeftOut(called[cell], reason))
            watch.failed(called[cell], reason)
        else:
            result.tuning[cell], result.final[cell] = tuning, final
        # What a cell that did not come to its end leaves undone will not be waited for.
        watch.skipped(begun + options.seconds_a_cell - watch.done)
    watch.stop()
    return result


class _Unfit(Exception):
    """This cell cannot work on these rows."""


@dataclass
class _CellRun:
    cell: Cell
    name: str
    options: Options
    problem: Problem
    train_rows: Any
    kept: Folder
    watch: Watch
    noises: dict[str | None, Noise]
    warm: bool = False

    def tune_and_train(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        settings = grid(self.options.learning_rates, self.options.regularizations)
        records: list[dict[str, Any]] = []
        for number, round_ in enumerate(self.options.rounds, 1):
            found = [self._short_run(number, s, round_.seconds) for s in settings]
            records += found
            settings = better_half(settings, [_score(record) for record in found])
        if records and all(_score(record) == -float("inf") for record in records):
            raise ArithmeticError(f"every setting diverged: {records[0].get('diverged')}")
        return records, self._final_run(settings[0])

    def _short_run(self, number: int, setting: Setting, seconds: float) -> dict[str, Any]:
        name = f"{self.cell.slug}/round{number}-{_shown(setting)}"
        record = self.kept.get(name)
        if record is None:
            self._warm_up(setting)
            what = f"{self.name}: tuning, round {number} of {len(self.options.rounds)}"
            with self.watch.running(what, seconds):
                record = runs.train(
                    self.cell, setting, seconds, self.options, self.problem, self._noise()
                )[1]
            record |= {"round": number}
            # The curve of a run this short is not shown.
            record.pop("curve", None)
            self.kept.put(name, record)
        else:
            self.watch.skipped(seconds)
        return record

    def _final_run(self, setting: Setting) -> dict[str, Any]:
        name = f"{self.cell.slug}/final"
        record = self.kept.get(name)
        if record is None or "diverged" in record:
            self._warm_up(setting)
            with self.watch.running(f"{self.name}: final run", self.options.budget):
                record = runs.final(self.cell, setting, self.options, self.problem)
            if "diverged" in record:
                # Not kept: the same command is to try it again.
                raise ArithmeticError(record["diverged"])
            self.kept.put(name, record)
        else:
            self.watch.skipped(self.options.budget)
        self.watch.result(self.name, record)
        return record

    def _warm_up(self, setting: Setting) -> None:
        if self.warm:
            return
        try:
            runs.warm_up(self.cell, setting, self.options, self.problem)
        except ValueError as error:
            raise _Unfit(str(error)) from error
        self.warm = True

    def _noise(self) -> Noise:
        key = self.cell.noise
        if key not in self.noises:
            self.noises[key] = runs.fitted(self.cell, self.options, self.problem, self.train_rows)
        return self.noises[key]


def _score(record: dict[str, Any]) -> float:
    found = record["log_likelihood"]
    return -float("inf") if found is None else float(found)


def _shown(setting: Setting) -> str:
    return f"{setting.learning_rate:g}-{setting.regularization:g}"


def _hold_out(problem: Problem, options: Options) -> tuple[Any, Options]:
    """The rows that will train, and the options with the number of the others."""
    from extremax.training.holdout import holdout

    rows, out = holdout(problem.labels, options.validation_fraction, options.seed)
    if not len(out):
        raise ValueError(
            f"of {len(problem.labels):,} rows too few can be held out to tune on: 50 are needed, "
            "and each class keeps its first; bring more rows or a larger validation fraction"
        )
    return rows, replace(options, n_held_out=len(out))


def _fingerprint(problem: Problem, options: Options) -> dict[str, Any]:
    """What two runs must share to be comparable. The cells are not among it: some may be added."""
    return {
        "data": f"{problem.checksum}, {len(problem.labels)} to train on, "
        f"{problem.features.shape[1]} features",
        "test": f"{len(problem.test_labels)} rows",
        **{k: v for k, v in asdict(options).items() if k not in ("threads", "n_held_out")},
        # Budgets are seconds, and seconds are worth what the machine is.
        "machine": machine(options.threads),
        "version": versions()["extremax"],
    }
