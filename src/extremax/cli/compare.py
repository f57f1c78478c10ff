"""``extremax compare``: objectives and noises on the same rows, at equal time, in one report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.choice import DENSE
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

if TYPE_CHECKING:
    from extremax.comparison import Comparison, LeftOut, Options, Problem, Watch


def compare(
    file: Annotated[Path, typer.Argument(metavar="TRAIN", help="Rows with labels.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="The folder for the report; stopped, the same command goes on from it.",
        ),
    ],
    cells: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="What to compare: `objective×noise, objective:noise@draws, exact`, or `default`, "
            "or `all`.",
        ),
    ] = "default",
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="Training time of a cell's final run.")
    ] = 60.0,
    tuning: Annotated[
        float,
        typer.Option(metavar="X", help="Time for tuning a cell, in budgets."),
    ] = 1.0,
    learning_rates: Annotated[
        str, typer.Option(metavar="LIST", help="Tuned over these.")
    ] = "0.1,0.3,1,3",
    regularizations: Annotated[
        str, typer.Option(metavar="LIST", help="The penalty λ, tuned over these.")
    ] = "0,1e-5,1e-3",
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows to test on; by default a tenth of TRAIN."),
    ] = None,
    test_labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The labels of an .npy or .npz --test.")
    ] = None,
    test_fraction: Annotated[
        float, typer.Option(metavar="X", help="Share of rows held out to test on.")
    ] = 0.1,
    test_rows: Annotated[
        int, typer.Option(metavar="N", callback=at_least_one, help="Test rows used, at most.")
    ] = 10_000,
    n_negatives: Annotated[
        int,
        typer.Option(
            "--n-negatives",
            metavar="N",
            callback=at_least_one,
            help="Classes drawn for each example.",
        ),
    ] = DENSE.n_negatives,
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

    Test rows are held out first. Each cell's learning rate and penalty are tuned on validation
    rows: many settings for a short time, the better half for twice as long, and so on. Then it
    trains once with the whole budget. DIR gets report.html, CSV files and pictures.
    """
    from extremax.comparison import Options, choose
    from extremax.comparison.folder import check_free
    from extremax.report.curves import check_picture

    # Whatever can go wrong at the end should go wrong at the beginning.
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
    rows = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
    apart = None
    if test is not None:
        apart = Input(test, format, test_labels, label_column, text_column, zero_based, keep_labels)
    elif test_labels is not None:
        raise ValueError("--test-labels are those of --test, which is not given")
    problem = _problem(
        rows, apart, test_fraction, test_rows,
        t.Training(components=components, analyzer=analyzer, ngrams=ngrams, seed=seed), quiet,
    )  # fmt: skip
    _announce(problem, len(chosen), left_out, options, quiet)
    result = _run(problem, chosen, options, out, file.name, quiet)
    result.left_out[:0] = left_out
    _report(result, out, quiet)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """``0.1,1`` as (0.1, 1.0)."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = ()
    if not found or not all(0 <= value < float("inf") for value in found):
        raise ValueError(f"{option} is a list of numbers such as 0.1,1, not {text!r}")
    return found


def _problem(
    rows: Input,
    apart: Input | None,
    fraction: float,
    most: int,
    settings: t.Training,
    quiet: bool,
) -> Problem:
    from extremax.cli.train import _read
    from extremax.comparison import Problem

    data = _read(rows, quiet)
    settings.check(data.kind, str(rows.path))
    test = None
    if apart is not None:
        read = _read(apart, quiet)
        test = (_as_wide(read.features, data, apart.path), read.labels)
    return Problem.split(
        data.features, data.labels, test=test, test_fraction=fraction, most_test_rows=most,
        encoder=settings.encoder(), seed=settings.seed,
    )  # fmt: skip


def _as_wide(features: Any, data: Any, path: Path) -> Any:
    """Test rows of as many columns as the others have, where the format does not state them."""
    from extremax.cli.rows import _resized
    from extremax.errors import DataError

    if isinstance(features, list) != isinstance(data.features, list):
        raise DataError("test rows must be of the same kind as those to train on", path)
    if isinstance(features, list) or features.shape[1] == data.features.shape[1]:
        return features
    if not hasattr(features, "indptr"):
        raise DataError(
            f"rows of {features.shape[1]:,} features, those to train on have "
            f"{data.features.shape[1]:,}",
            path,
        )
    return _resized(features, data.features.shape[1], path, 0)


def _announce(
    problem: Problem, n_cells: int, left_out: list[LeftOut], options: Options, quiet: bool
) -> None:
    if quiet:
        return
    about = problem.about()
    say(f"  {about['rows']:,} rows to train and tune on, {about['test_rows']:,} to test on")
    for cell in left_out:
        warn(f"left out {cell.name}: {cell.reason}")
    n_settings = len(options.learning_rates) * len(options.regularizations)
    tuned = f"{n_settings} settings tuned, " if options.rounds else ""
    say(
        f"{n_cells} cells: {tuned}{duration(options.budget)} for the final run; "
        f"{duration(n_cells * options.seconds_a_cell)} of training in all, "
        "and exact looks at held-out rows besides"
    )


def _run(
    problem: Problem, cells: list[Any], options: Options, out: Path, name: str, quiet: bool
) -> Comparison:
    from extremax.comparison import compare as run

    watch = _watch(quiet)
    try:
        return run(problem, cells, options, folder=out, name=name, watch=watch)
    except KeyboardInterrupt as error:
        number = getattr(error, "number", 2)
        raise Stopped(number, f"stopped; the same command goes on from {out}") from error
    finally:
        watch.stop()


def _watch(quiet: bool) -> Watch:
    from extremax.comparison import Watch

    if quiet:
        return Watch()
    from extremax.cli.comparing import Bar, Log

    return Bar() if sys.stderr.isatty() else Log()


def _report(result: Comparison, out: Path, quiet: bool) -> None:
    from extremax.report.page import write_report
    from extremax.report.tables import final_rows

    if not result.final:
        gone = [*result.failed, *result.left_out]
        why = "; ".join(f"{cell.name}: {cell.reason}" for cell in gone)
        raise ValueError(f"no cell came to its end, so there is no report ({why})")
    page = write_report(result, out)
    for cell in result.failed:
        warn(f"failed: {cell.name}: {cell.reason}")
    if quiet:
        return
    rows = final_rows(result)
    width = max(len(row["cell"]) for row in rows)
    for row in rows:
        found = row["log_likelihood"]
        likelihood = "unknown" if found is None else f"{found:.3f}"
        say(f"{row['cell']:<{width}}  log-likelihood {likelihood}, accuracy {row['accuracy']:.2%}")
    say(f"wrote {os.fspath(page)}")
