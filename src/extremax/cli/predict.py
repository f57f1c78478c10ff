"""``extremax predict``: the most probable classes of each row, printed as they are computed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from extremax.cli import options
from extremax.cli.console import check_stdout, counting, say
from extremax.cli.options import Input, LoadedModel, count
from extremax.errors import ArgumentError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier


@dataclass(frozen=True, kw_only=True)
class Predicting(LoadedModel):
    """Which predictions of a model to print, and where."""

    k: int = count(5, "Number of classes per row.", "-k")
    beam: int | None = count(
        None,
        "Search only this many branches of the noise tree (try 64): approximate, and much faster "
        "with very many classes. Models of sparse rows always search, by default with 20 branches.",
        metavar="WIDTH",
    )
    output: Path | None = options.output(
        None,
        "Output file, by default standard output. The file appears when it is complete.",
        *("--output", "-o"),
    )
    jsonl: bool | None = options.option(
        None,
        "JSON lines, or columns of labels and probabilities. By default JSON lines if --output "
        "ends in .jsonl, .json or .ndjson, else TSV.",
        "--jsonl/--tsv",
    )

    @property
    def line_format(self) -> Literal["tsv", "jsonl"]:
        """The format of the output."""
        if self.jsonl is not None:
            return "jsonl" if self.jsonl else "tsv"
        suffix = "" if self.output is None else self.output.suffix.lower()
        return "jsonl" if suffix in (".jsonl", ".json", ".ndjson") else "tsv"


def predict(given: Predicting, source: Input) -> None:
    """Print the most probable classes of each row of FILE.

    Line i is for row i, most probable class first: label, probability, label, probability …
    """
    from extremax.data import write_predictions

    output = given.output
    if output is None:
        check_stdout()
    elif not output.absolute().parent.is_dir():
        raise FileNotFoundError(2, "no such folder", str(output.parent))
    classifier = given.load()
    if given.beam is not None:
        _check_beam(classifier, given.model)
    with counting("predicted", hidden=source.quiet or not _is_written_to_file(output)) as update:
        rows = _predictions(classifier, source, given.k, given.beam, update)
        try:
            n_rows = write_predictions(output, rows, given.line_format)
            if output is None:
                sys.stdout.flush()
        except OSError as error:
            # The error of a failed write names no file, or a temporary one.
            name = "standard output" if output is None else str(output)
            raise OSError(error.errno, error.strerror, name) from error
    if output is not None and not source.quiet:
        say(f"wrote {n_rows:,} rows: {output}")


def _is_written_to_file(output: Path | None) -> bool:
    """Whether the predictions go to a file: on a terminal a live count would mix with them."""
    if output is not None:
        return True
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _check_beam(classifier: ExtremeClassifier, folder: Path) -> None:
    if classifier.model_.searcher is None:
        noise = type(classifier.model_.noise).__name__
        raise ArgumentError(
            f"--beam needs a noise that can be searched, but {folder} was trained with {noise}; "
            "omit --beam, or train with --noise tree or sparse_tree"
        )


def _predictions(
    classifier: ExtremeClassifier,
    source: Input,
    k: int,
    beam: int | None,
    update: Callable[[int], None],
) -> Iterator[tuple[Any, Any]]:
    """Yield labels and log-probabilities of one row at a time."""
    from extremax.cli.rows import blocks, errors_name

    search = None if beam is None else "beam"
    n_ignored = 0
    for start, block in blocks(classifier, source, unlabeled=True):
        if block.n_ignored and not n_ignored and not source.quiet:
            label = "what precedes the first TAB of a line is its label"
            if block.kind == "sequences":
                label = "what follows the TAB of a line is the next item"
            say(f"{source.file}: {label}, and ignored")
        n_ignored += block.n_ignored
        with errors_name(source.file, start):
            ranking = classifier.predict_topk(block.features, k, search=search, width=beam)
        yield from zip(ranking.labels.tolist(), ranking.log_probs.tolist(), strict=True)
        update(start + len(block))
