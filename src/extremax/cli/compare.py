"""``extremax compare``: compare objectives and noises on one data set at equal training time."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.cli import training as t
from extremax.cli.console import duration, say, warn
from extremax.cli.errors import Stopped
from extremax.cli.options import (
    Format,
    Input,
    KeepLabel,
    LabelColumn,
    Labels,
    Quiet,
    TextColumn,
    Threads,
    WhichLabel,
    ZeroBased,
    at_least_one,
)
from extremax.cli.rows import read

if TYPE_CHECKING:
    from extremax.comparison import Comparison, LeftOut, Options, Problem, Watch


def compare(
    file: Annotated[Path, typer.Argument(metavar="TRAIN", help="File of rows with labels.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder for the report. If the comparison is stopped, rerun the same command to "
            "resume.",
        ),
    ],
    cells: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="What to compare: `default`, `all`, or a list such as `negative_sampling×tree, "
            "nce:uniform@20, exact` (20 draws per example).",
        ),
    ] = "default",
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="Training time of the final run per cell.")
    ] = 60.0,
    tuning: Annotated[
        float,
        typer.Option(metavar="X", help="Tuning time per cell, as a multiple of --budget."),
    ] = 1.0,
    learning_rates: Annotated[
        str, typer.Option(metavar="LIST", help="Learning rates to try.")
    ] = "0.1,0.3,1,3",
    regularizations: Annotated[
        str, typer.Option(metavar="LIST", help="Strengths λ of the penalty to try.")
    ] = "0,1e-5,1e-3",
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Test rows, by default a tenth of TRAIN."),
    ] = None,
    test_labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels of --test, if it is .npy or .npz.")
    ] = None,
    test_fraction: Annotated[
        float, typer.Option(metavar="X", help="Share of TRAIN held out as test rows.")
    ] = 0.1,
    test_rows: Annotated[
        int, typer.Option(metavar="N", callback=at_least_one, help="Maximum number of test rows.")
    ] = 10_000,
    n_negatives: Annotated[
        int,
        typer.Option(
            "--n-negatives",
            metavar="N",
            callback=at_least_one,
            help="Classes drawn per example.",
        ),
    ] = 5,
    tree_components: t.TreeComponents = t.Training.tree_components,
    validation_fraction: t.ValidationFraction = t.Training.validation_fraction,
    seed: t.Seed = t.Training.seed,
    components: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            callback=at_least_one,
            help="Dimensions that sparse rows and texts are projected to, by default 256.",
        ),
    ] = None,
    analyzer: t.TextAnalyzer = t.Training.analyzer,
    ngrams: t.Ngrams = t.Training.ngrams,
    format: Format = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    zero_based: ZeroBased = None,
    keep_labels: WhichLabel = KeepLabel.first,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare objectives and noises on TRAIN at equal training time and write a report.

    Test rows are held out first. The learning rate and penalty of each cell (an objective with a
    noise) are tuned on validation rows by successive halving: all settings train for a short time,
    the better half twice as long, and so on. The best setting then trains for the whole budget.
    DIR gets report.html, CSV files and plots.
    """
    from extremax.comparison import Options, choose
    from extremax.comparison.folder import check_free
    from extremax.report import check_picture

    # Check whatever could fail after training before it starts.
    rates = _numbers("--learning-rates", learning_rates)
    penalties = _numbers("--regularizations", regularizations)
    options = Options(
        budget, tuning, rates, penalties, tree_components, validation_fraction, seed, threads
    )
    options.check()
    if seed < 0:
        raise ValueError(f"--seed must be at least 0, got {seed}")
    check_free(out)
    check_picture(out / "log-likelihood.png")
    chosen, left_out = choose(cells, n_negatives, tree_components)
    source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
    test_source = None
    if test is not None:
        test_source = replace(source, path=test, labels=test_labels)
    elif test_labels is not None:
        raise ValueError("--test-labels needs --test")
    training = t.Training(components=components, analyzer=analyzer, ngrams=ngrams, seed=seed)
    problem = _problem(source, test_source, test_fraction, test_rows, training, quiet)
    if not quiet:
        _announce(problem, len(chosen), left_out, options)
    result = _run(problem, chosen, options, out, file.name, quiet)
    result.left_out[:0] = left_out
    report_result(result, out, quiet)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Parse ``0.1,1`` as (0.1, 1.0)."""
    try:
        numbers = tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 <= number < float("inf") for number in numbers):
        raise ValueError(f"{option} must be a list of numbers such as 0.1,1, got {text!r}")
    return numbers


def _problem(
    source: Input,
    test_source: Input | None,
    test_fraction: float,
    max_test_rows: int,
    training: t.Training,
    quiet: bool,
) -> Problem:
    from extremax.comparison import Problem

    data = read(source, quiet)
    training.check(data, str(source.path))
    test = None
    if test_source is not None:
        other, table = read(test_source, quiet), data.table
        width = table.n_features or 0
        test = other.table.matched(table.name, width, test_source.path), other.labels
    return Problem.split(
        data.features, data.labels, test=test, test_fraction=test_fraction,
        max_test_rows=max_test_rows, encoder=training.encoder(), seed=training.seed,
    )  # fmt: skip


def _announce(problem: Problem, n_cells: int, left_out: list[LeftOut], options: Options) -> None:
    about = problem.about()
    say(f"  {about['rows']:,} rows to train and tune on, {about['test_rows']:,} to test on")
    for cell in left_out:
        warn(f"left out {cell.name}: {cell.reason}")
    n_settings = len(options.learning_rates) * len(options.regularizations)
    tuned = f"{n_settings} settings tuned, " if options.rounds else ""
    say(
        f"{n_cells} cells: {tuned}{duration(options.budget)} for the final run; "
        f"{duration(n_cells * options.seconds_per_cell)} of training in total, "
        "plus exact evaluations of held-out rows"
    )


def _run(
    problem: Problem, cells: list[Any], options: Options, out: Path, name: str, quiet: bool
) -> Comparison:
    from extremax.comparison import compare as run

    watch = _watch(quiet)
    try:
        return run(problem, cells, options, folder=out, name=name, watch=watch)
    except KeyboardInterrupt as error:
        number = getattr(error, "number", signal.SIGINT)
        raise Stopped(number, f"stopped; rerun the same command to resume from {out}") from error
    finally:
        watch.stop()


def _watch(quiet: bool) -> Watch:
    from extremax.comparison import Watch

    if quiet:
        return Watch()
    from extremax.cli.comparing import Bar, Log

    return Bar() if sys.stderr.isatty() else Log()


def report_result(result: Comparison, out: Path, quiet: bool) -> None:
    """Write the report and print one line per cell."""
    from extremax.report.page import write_report
    from extremax.report.tables import final_rows

    if not result.final:
        unfinished = [*result.failed, *result.left_out]
        reasons = "; ".join(f"{cell.name}: {cell.reason}" for cell in unfinished)
        raise ValueError(f"no cell was finished, so there is no report ({reasons})")
    page = write_report(result, out)
    for cell in result.failed:
        warn(f"failed: {cell.name}: {cell.reason}")
    if quiet:
        return
    rows = final_rows(result)
    width = max(len(row["cell"]) for row in rows)
    for row in rows:
        value = row["log_likelihood"]
        likelihood = "unknown" if value is None else f"{value:.3f}"
        say(f"{row['cell']:<{width}}  log-likelihood {likelihood}, accuracy {row['accuracy']:.2%}")
    say(f"wrote {page}")
