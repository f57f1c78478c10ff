"""``extremax compare``: compare objectives and noises on one data set at equal training time."""

from __future__ import annotations

import signal
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.console import figures, on_terminal, say, warn
from extremax.cli.errors import Stopped
from extremax.cli.next_step import train_command
from extremax.cli.options import (
    DETAILS,
    TRAINING,
    SingleLabelInput,
    argument,
    count,
    option,
    output,
)
from extremax.cli.rows import read
from extremax.cli.training import Fitting
from extremax.errors import ArgumentError
from extremax.report import check_picture
from extremax.report.formatting import duration

if TYPE_CHECKING:
    from extremax.comparison import Comparison, LeftOut, Options, Problem


@dataclass(frozen=True, kw_only=True)
class TrainInput(SingleLabelInput):
    """The rows to train on."""

    files: list[Path] = argument("TRAIN", "File of rows with labels, or several.")


@dataclass(frozen=True, kw_only=True)
class Comparing(Fitting):
    """Options of a comparison."""

    out: Path = output(
        MISSING,
        "Folder for the report. If the comparison is stopped, rerun the same command to resume.",
        *("--out", "-o"),
        folder=True,
    )
    cells: str = option(
        "default",
        "What to compare: `default`, `all`, or a list such as `negative_sampling×tree, "
        "nce:frequency(power=0.75)@20, exact` (20 draws per example).",
        metavar="LIST",
    )
    budget: float = option(60.0, "Training time of the final run per cell.", metavar="SECONDS")
    tuning: float = option(
        1.0, "Tuning time per cell, as a multiple of --budget.", metavar="X", panel=TRAINING
    )
    learning_rates: str = option(
        "0.1,0.3,1,3", "Learning rates to try.", metavar="LIST", panel=TRAINING
    )
    regularizations: str = option(
        "0,1e-5,1e-3",
        "Strengths λ of the penalty to try. A cell may set its own: `nce(regularization=1)×tree`.",
        metavar="LIST",
        panel=TRAINING,
    )
    weight_decays: str = option(
        "0",
        "Strengths of the penalty on the weights to try, see `train --help`.",
        metavar="LIST",
        panel=TRAINING,
    )
    test: Path | None = option(None, "Test rows, by default a tenth of TRAIN.", metavar="FILE")
    test_labels: Path | None = option(
        None, "Labels of --test, if it is .npy or .npz.", metavar="FILE"
    )
    test_fraction: float = option(0.1, "Share of TRAIN held out as test rows.", metavar="X")
    test_rows: int = count(10_000, "Maximum number of test rows.")
    n_negatives: int = count(5, "Classes drawn per example.", "--n-negatives", panel=DETAILS)
    components: int | None = count(
        None,
        "Dimensions that sparse rows and texts are projected to, by default 256.",
        panel=DETAILS,
    )

    def options(self) -> Options:
        """Return the options that all cells share."""
        from extremax.comparison import Options

        same = ("budget", "tuning", "tree_components", "start", "validation_fraction", "seed")
        return Options(
            learning_rates=_numbers("--learning-rates", self.learning_rates),
            regularizations=_numbers("--regularizations", self.regularizations),
            weight_decays=_numbers("--weight-decays", self.weight_decays),
            threads=self.threads,
            **{name: getattr(self, name) for name in same},
        )


def compare(given: Comparing, source: TrainInput) -> None:
    """Compare objectives and noises on TRAIN at equal training time and write a report.

    Test rows are held out first. The learning rate and penalties of each cell (an objective with a
    noise) are tuned on validation rows by successive halving: all settings train for a short time,
    the better half twice as long, and so on. The best setting then trains for the whole budget.
    DIR gets report.html, CSV files and plots.
    """
    from extremax.comparison import Problem, choose
    from extremax.comparison.folder import check_free

    # Check whatever could fail after training before it starts.
    options = given.options()
    check_free(given.out)
    check_picture(given.out / "log-likelihood.png")
    cells, left_out = choose(given.cells, given.n_negatives)
    if given.test is None and given.test_labels is not None:
        raise ArgumentError("--test-labels needs --test")
    data = read(source)
    given.check(data, source.name)
    test = None
    if given.test is not None:
        test_source = replace(source, files=[given.test], labels=given.test_labels)
        other, width = read(test_source), data.table.n_features or 0
        test = other.table.matched(data.table.name, width, given.test), other.labels
    problem = Problem.split(
        data.features, data.labels, test=test, test_fraction=given.test_fraction,
        max_test_rows=given.test_rows, encoder=given.encoder(), seed=given.seed,
    )  # fmt: skip
    if not source.quiet:
        _announce(problem, len(cells), left_out, options)
    result = _run(problem, cells, options, given.out, source)
    result.left_out[:0] = left_out
    command = train_command(result, given, source, dense=data.kind == "dense")
    report_result(result, given.out, command, source.quiet)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Parse ``0.1,1`` as (0.1, 1.0)."""
    try:
        numbers = tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 <= number < float("inf") for number in numbers):
        raise ArgumentError(f"{option} must be a list of numbers such as 0.1,1, got {text!r}")
    return numbers


def _announce(problem: Problem, n_cells: int, left_out: list[LeftOut], options: Options) -> None:
    about = problem.about()
    say(f"  {about['rows']:,} rows to train and tune on, {about['test_rows']:,} to test on")
    for cell in left_out:
        warn(f"left out {cell.name}: {cell.reason}")
    tuned = f"{len(options.settings)} settings tuned, " if options.rounds else ""
    say(
        f"{n_cells} cells: {tuned}{duration(options.budget)} for the final run; "
        f"{duration(n_cells * options.seconds_per_cell)} of training in total. Compiling, fitting "
        "noises and exact evaluations of held-out rows come on top: the first cell tells how much"
    )


def _run(
    problem: Problem, cells: list[Any], options: Options, out: Path, source: TrainInput
) -> Comparison:
    from extremax.cli.comparing import Bar, Log
    from extremax.comparison import Watch
    from extremax.comparison import compare as run

    shown = Bar() if on_terminal() else Log()
    watch = Watch() if source.quiet else shown
    try:
        return run(problem, cells, options, folder=out, name=Path(source.name).name, watch=watch)
    except KeyboardInterrupt as error:
        number = getattr(error, "number", signal.SIGINT)
        raise Stopped(number, f"stopped; rerun the same command to resume from {out}") from error
    finally:
        watch.stop()


def report_result(result: Comparison, out: Path, command: str | None, quiet: bool) -> None:
    """Write the report, and print the winner, the command that trains it, and one line per cell."""
    from extremax.report.page import write_report
    from extremax.report.tables import final_rows

    if not result.final:
        unfinished = [*result.failed, *result.left_out]
        reasons = "; ".join(f"{cell.name}: {cell.reason}" for cell in unfinished)
        raise ArgumentError(f"no cell was finished, so there is no report ({reasons})")
    page = write_report(result, out, command)
    for cell in result.failed:
        warn(f"failed: {cell.name}: {cell.reason}")
    if quiet:
        return
    rows = final_rows(result)
    if command is None:
        say("no cell improved on its start, so none is the best; try a larger --budget")
    else:
        say(
            f"best: {rows[0]['cell']}, {figures(rows[0], 2)}; to train it on all rows:\n  {command}"
        )
    width = max(len(row["cell"]) for row in rows)
    for row in rows:
        kept = ", start kept" if row["start_kept"] else ""
        say(f"{row['cell']:<{width}}  {figures(row, 2)}{kept}")
    say(f"wrote {page}")
