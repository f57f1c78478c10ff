"""``extremax predict``: the most probable classes of each row, printed as they are computed."""

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
    ModelPath,
    Quiet,
    TextColumn,
    Threads,
    ZeroBased,
    at_least_one,
)

if TYPE_CHECKING:
    from extremax import ExtremeClassifier


def predict(
    model: ModelPath,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File of rows; its labels are ignored.")
    ],
    k: Annotated[
        int,
        typer.Option("-k", metavar="N", callback=at_least_one, help="Number of classes per row."),
    ] = 5,
    beam: Annotated[
        int | None,
        typer.Option(
            metavar="WIDTH",
            callback=at_least_one,
            help="Search only this many branches of the noise tree (try 64): approximate, and much "
            "faster with very many classes. Models of sparse rows always search, by default with "
            "20 branches.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Output file, by default standard output. The file appears when it is complete.",
        ),
    ] = None,
    jsonl: Annotated[
        bool | None,
        typer.Option(
            "--jsonl/--tsv",
            help="JSON lines, or columns of labels and probabilities. By default JSON lines if "
            "--output ends in .jsonl, .json or .ndjson, else TSV.",
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

    Line i is for row i, most probable class first: label, probability, label, probability …
    """
    from extremax.cli.rows import load
    from extremax.data import write_predictions

    if output is not None and not output.absolute().parent.is_dir():
        raise FileNotFoundError(2, "no such folder", str(output.parent))
    classifier = load(model, threads)
    if beam is not None:
        _check_beam(classifier, model)
    # The name of the label column keeps labels out of the features.
    source = Input(file, format, None, label_column, text_column, zero_based)
    with counting("predicted", hidden=quiet or not _is_written_to_file(output)) as count:
        rows = _predictions(classifier, source, k, beam, count)
        try:
            n_rows = write_predictions(output, rows, _line_format(output, jsonl))
            if output is None:
                sys.stdout.flush()
        except OSError as error:
            # The error of a failed write names no file, or a temporary one.
            name = "standard output" if output is None else str(output)
            raise OSError(error.errno, error.strerror, name) from error
    if output is not None and not quiet:
        say(f"wrote {n_rows:,} rows: {output}")


def _is_written_to_file(output: Path | None) -> bool:
    """Whether the predictions go to a file: on a terminal a live count would mix with them."""
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


def _check_beam(classifier: ExtremeClassifier, folder: Path) -> None:
    if classifier.model_.searcher is None:
        noise = type(classifier.model_.noise).__name__
        raise ValueError(
            f"--beam needs a noise that can be searched, but {folder} was trained with {noise}; "
            "omit --beam, or train with --noise tree or sparse_tree"
        )


def _predictions(
    classifier: ExtremeClassifier,
    source: Input,
    k: int,
    beam: int | None,
    count: Callable[[int], None],
) -> Iterator[tuple[Any, Any]]:
    """Yield labels and log-probabilities of one row at a time."""
    from extremax.cli.rows import blocks, errors_name

    search = None if beam is None else "beam"
    n_rows = 0
    for start, block in blocks(classifier, source, unlabeled=True):
        with errors_name(source.path, start):
            ranking = classifier.predict_topk(block.features, k, search=search, width=beam)
        yield from zip(ranking.labels.tolist(), ranking.log_probs.tolist(), strict=True)
        n_rows += len(ranking.labels)
        count(n_rows)
