"""``extremax evaluate``: exact figures on labelled rows."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import typer

from extremax.cli.console import counting, table, warn
from extremax.cli.options import (
    AsJson,
    File,
    Format,
    Input,
    LabelColumn,
    Labels,
    Model,
    Quiet,
    SingleLabel,
    TextColumn,
    Threads,
    WhichLabel,
    ZeroBased,
)

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.evaluation import Tally

_MEANING = {
    "exact": "softmax of the scores",
    "bias-corrected": "softmax after the noise's bias is removed",
}


def evaluate(
    model: Model,
    file: File,
    as_json: AsJson = False,
    format: Format = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    zero_based: ZeroBased = None,
    single_label: WhichLabel = SingleLabel.first,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Print accuracy, top-5 accuracy and exact log-likelihood on FILE.

    Rows of classes the model has never seen count as wrong, and are left out of the
    log-likelihood, which would be minus infinity.
    """
    from extremax.cli.rows import blocks, load
    from extremax.errors import DataError
    from extremax.evaluation import Tally, tally

    classifier = load(model, threads)
    source = Input(file, format, labels, label_column, text_column, zero_based, single_label)
    total, n_dropped = Tally(), 0
    with counting("evaluated", hidden=quiet) as count:
        for features, block in blocks(classifier, source):
            n_dropped += block.n_dropped
            if len(block):
                total += tally(classifier, features, block.labels)
                known = block.labels
                count(total.rows)
    if not total.rows:
        raise DataError("no row has a label" if n_dropped else "the file has no rows", file)
    if as_json:
        typer.echo(json.dumps(_figures(classifier, total, n_dropped)))
    else:
        typer.echo(table(_lines(classifier, total, n_dropped)))
    if total.unseen == total.rows and not quiet:
        warn(_nothing_known(classifier, known))


def _figures(model: ExtremeClassifier, total: Tally, n_dropped: int) -> dict[str, Any]:
    likelihood = total.log_likelihood
    return {
        "rows": total.rows,
        "unlabelled_rows": n_dropped,
        "unseen_class_rows": total.unseen,
        "accuracy": total.accuracy,
        "top5_accuracy": total.top_accuracy,
        # JSON has no infinity.
        "log_likelihood": likelihood if math.isfinite(likelihood) else None,
        "probabilities": model.objective_.probabilities,
    }


def _lines(model: ExtremeClassifier, total: Tally, n_dropped: int) -> list[tuple[str, str]]:
    kind = model.objective_.probabilities
    meaning = f" ({_MEANING[kind]})" if kind in _MEANING else ""
    without = f" ({n_dropped:,} more have no label)" if n_dropped else ""
    left_out = " (over rows of known classes)" if total.unseen else ""
    return [
        ("rows", f"{total.rows:,}{without}"),
        ("of unseen classes", f"{total.unseen:,}"),
        ("accuracy", f"{total.accuracy:.2%}"),
        ("top-5 accuracy", f"{total.top_accuracy:.2%}"),
        ("log-likelihood", f"{total.log_likelihood:.4f}{left_out}"),
        ("probabilities", f"{kind}{meaning}"),
    ]


def _nothing_known(model: ExtremeClassifier, labels: Any) -> str:
    """The likely reason for a file of unseen classes only."""
    ours, theirs = model.classes_[:1].tolist()[0], labels[:1].tolist()[0]
    if isinstance(ours, str) != isinstance(theirs, str):
        names = {True: "strings", False: "numbers"}
        return (
            f"no row has a class of the model: its labels are {names[isinstance(ours, str)]}, "
            f"this file's are {names[isinstance(theirs, str)]}"
        )
    return f"no row has a class of the model, such as {ours!r}; this file has {theirs!r}"
