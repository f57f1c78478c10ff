"""``extremax predict``: the best classes of each row, as they come."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from extremax.cli.console import counting, say
from extremax.cli.options import (
    Format,
    Input,
    LabelColumn,
    Model,
    Quiet,
    TextColumn,
    Threads,
    ZeroBased,
    at_least_one,
)

if TYPE_CHECKING:
    from extremax import ExtremeClassifier


def predict(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows; labels in it are ignored.")],
    k: Annotated[
        int, typer.Option("-k", metavar="N", callback=at_least_one, help="Classes for each row.")
    ] = 5,
    beam: Annotated[
        int | None,
        typer.Option(
            metavar="WIDTH",
            callback=at_least_one,
            help="Follow only so many branches of the noise tree (try 64): far faster with very "
            "many classes, and approximate. Models of sparse rows do so anyway, with 20.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Instead of standard output; the file appears when it is complete.",
        ),
    ] = None,
    jsonl: Annotated[
        bool | None,
        typer.Option(
            "--jsonl/--tsv",
            help="JSON lines, or labels and probabilities in columns; by default what the "
            "output's name says, else TSV.",
        ),
    ] = None,
    format: Format = None,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    zero_based: ZeroBased = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Print the most probable classes of each row of FILE.

    Line i answers row i, best class first: label, probability, label, probability …
    """
    from extremax.cli.rows import load
    from extremax.data import write_predictions

    if output is not None and not output.absolute().parent.is_dir():
        raise FileNotFoundError(2, "there is no such folder", str(output.parent))
    classifier = load(model, threads)
    if beam is not None:
        _check_beam(classifier, model)
    # The column of labels is named so that it is not taken for a feature.
    source = Input(file, format, None, label_column, text_column, zero_based)
    with counting("predicted", hidden=quiet or not _goes_to_a_file(output)) as count:
        rows = _predictions(classifier, source, k, beam, count)
        try:
            n_rows = write_predictions(output, rows, _line_format(output, jsonl))
            if output is None:
                sys.stdout.flush()
        except OSError as error:
            # A failed write does not know its file, one aside has a name of no interest.
            place = "standard output" if output is None else str(output)
            raise OSError(error.errno, error.strerror, place) from error
    if output is not None and not quiet:
        say(f"wrote {n_rows:,} rows: {output}")


def _goes_to_a_file(output: Path | None) -> bool:
    """Not to a terminal, nor to a pipe that may end at one: a count would mix with the data."""
    if output is not None:
        return True
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _line_format(output: Path | None, jsonl: bool | None) -> Literal["tsv", "jsonl"]:
    if jsonl is None:
        jsonl = output is not None and output.suffix.lower() in (".jsonl", ".json", ".ndjson")
    return "jsonl" if jsonl else "tsv"


def _check_beam(model: ExtremeClassifier, folder: Path) -> None:
    from extremax.noise import SparseTreeNoise, TreeNoise

    dense = isinstance(model.noise_, TreeNoise) and model.objective_.adds_log_q
    if not dense and not isinstance(model.noise_, SparseTreeNoise):
        raise ValueError(
            f"--beam searches the noise tree, and {folder} was trained with "
            f"{type(model.noise_).__name__} and {type(model.objective_).__name__}; leave it out"
        )


def _predictions(
    model: ExtremeClassifier,
    source: Input,
    k: int,
    beam: int | None,
    count: Callable[[int], None],
) -> Iterator[tuple[Any, Any]]:
    """Labels and log-probabilities, a row at a time."""
    from extremax.cli.rows import blocks

    done = 0
    for features, _ in blocks(model, source, unlabelled=True):
        if beam is None:
            found = model.predict_topk(features, k)
        else:
            found = model.predict_topk(features, k, search="beam", width=beam)
        yield from zip(found.labels.tolist(), found.log_probs.tolist(), strict=True)
        done += len(found.labels)
        count(done)
