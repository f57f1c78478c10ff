"""``extremax predict``: the most probable classes of each row, printed as they are computed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from extremax.cli import options
from extremax.cli.console import check_stdout, counting, say
from extremax.cli.limits import Limits
from extremax.cli.options import Input, LoadedModel, collector_resting, count
from extremax.errors import ArgumentError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.prediction.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class Predicting(LoadedModel):
    """Which predictions of a model to print, and where."""

    k: int = count(5, "Number of classes per row.", "-k")
    beam: int | None = count(
        None,
        "Search only this many clusters of classes (try 480) or branches of the noise tree (64): "
        "approximate, and much faster with very many classes. Models of sparse rows always search, "
        "by default with 14 branches.",
        metavar="WIDTH",
    )
    output: Path | None = options.output(
        None,
        "Output file, by default or with - standard output. The file appears when it is complete.",
        *("--output", "-o"),
    )
    jsonl: bool | None = options.option(
        None,
        "JSON lines, or columns of labels and probabilities. By default JSON lines if --output "
        "ends in .jsonl, .json or .ndjson, else TSV.",
        "--jsonl/--tsv",
    )

    explain: bool = options.option(
        False,
        "Print what each word, value or item of a row adds to the log-probability of its classes, "
        "as text or JSON lines. Each part of a row takes an exact prediction, for each class.",
        "--explain",
    )

    @property
    def target(self) -> Path | None:
        """The file to write; None for standard output."""
        return None if self.output == Path("-") else self.output

    @property
    def as_json(self) -> bool:
        """Whether the output is JSON lines."""
        if self.jsonl is not None:
            return self.jsonl
        suffix = "" if self.output is None else self.output.suffix.lower()
        return suffix in (".jsonl", ".json", ".ndjson")


def predict(given: Predicting, limits: Limits, source: Input) -> None:
    """Print the most probable classes of each row of FILE.

    Line i is for row i, most probable class first: label, probability, label, probability
    and so on.
    """
    with collector_resting():
        from extremax.data import write_explanations, write_predictions

    limits.check(given.beam)
    if given.explain and given.jsonl is False:
        raise ArgumentError("--explain prints text or, with --jsonl, JSON lines; omit --tsv")
    output = given.target
    if output is None:
        check_stdout()
    elif not output.absolute().parent.is_dir():
        raise FileNotFoundError(2, "no such folder", str(output.parent))
    classifier = given.load()
    if given.beam is not None:
        _check_beam(classifier, given.model)
    classifier = limits.shifted(classifier)
    asked = {"k": given.k, **limits.parameters(classifier, source.quiet)}
    if given.beam is not None:
        asked |= {"search": "beam", "width": given.beam}
    with counting("predicted", hidden=source.quiet or not _is_written_to_file(output)) as update:
        found = _predictions(classifier, source, asked, update)
        try:
            if given.explain:
                explained = (_explanations(classifier, row) for row in found)
                n_rows = write_explanations(output, explained, "jsonl" if given.as_json else "text")
            else:
                rows = ((row.labels, row.log_probs) for row in found)
                n_rows = write_predictions(output, rows, "jsonl" if given.as_json else "tsv")
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
            f"--beam needs a model that can be searched, but {folder} was trained with {noise}; "
            "omit --beam, or train with --noise tree or sparse_tree"
        )


class _Row(NamedTuple):
    """A prediction for row ``place`` of some features, row ``number`` of the file, both from 0."""

    file: Path
    features: Any
    place: int
    number: int
    labels: list[Any]
    log_probs: list[float]


def _predictions(
    classifier: ExtremeClassifier,
    source: Input,
    asked: dict[str, Any],
    update: Callable[[int], None],
) -> Iterator[_Row]:
    """Yield one row at a time.

    asked:  parameters of `predict_topk`.
    """
    import numpy as np

    from extremax.cli.rows import blocks, errors_name

    n_ignored = n_rows = 0
    for start, block in blocks(classifier, source, unlabeled=True):
        if block.n_ignored and not n_ignored and not source.quiet:
            label = "what precedes the first TAB of a line is its label"
            if block.kind == "sequences":
                label = "what follows the TAB of a line is the next item"
            say(f"{source.name}: {label}, and ignored")
        n_ignored += block.n_ignored
        file = block.source[0]
        with errors_name(file, start):
            ranking = classifier.predict_topk(block.features, **asked)
        used, log_p = ~np.isneginf(ranking.log_probs), ranking.log_probs
        if classifier.model_.marginals is not None:
            log_p = np.log(np.where(used, ranking.marginals, 1.0))
        for i, mask in enumerate(used):
            labels, log_probs = ranking.labels[i, mask], log_p[i, mask]
            yield _Row(file, block.features, i, start + i, labels.tolist(), log_probs.tolist())
        n_rows += len(block)
        update(n_rows)


def _explanations(classifier: ExtremeClassifier, row: _Row) -> list[Explanation]:
    """One for each predicted label of a row."""
    from extremax.cli.rows import errors_name

    one, kind = row.features[row.place : row.place + 1], classifier.model_.encoder.input_kind
    if kind in ("text", "sequences"):
        one = (one if kind == "text" else one.tolist())[0]
    with errors_name(row.file, row.number):
        return [classifier.explain(one, label) for label in row.labels]
