"""``extremax evaluate``: exact figures on labelled rows."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.cli.console import counting, table, warn
from extremax.cli.options import (
    AsJson,
    File,
    Format,
    Input,
    KeepLabels,
    LabelColumn,
    Labels,
    Model,
    Quiet,
    TextColumn,
    Threads,
    ZeroBased,
)

if TYPE_CHECKING:
    from extremax import ExtremeClassifier

# The ranks at which figures are shown where rows have several labels.
_AT = (1, 3, 5)
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
    keep_labels: Annotated[
        KeepLabels | None,
        typer.Option(
            help="What a row with several labels keeps; by default all if the model was trained "
            "on all, else the first."
        ),
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Print accuracy, top-5 accuracy and exact log-likelihood on FILE.

    Rows of classes the model has never seen count as wrong, and are left out of the
    log-likelihood, which would be minus infinity. Where rows keep all their labels, print
    precision, recall, nDCG and propensity-scored precision at 1, 3 and 5 instead of accuracy.
    """
    from extremax.cli.rows import blocks, load
    from extremax.errors import DataError

    classifier = load(model, threads)
    if keep_labels is None:
        keep_labels = KeepLabels.all if classifier.several_ else KeepLabels.first
    source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
    shown = _Several(classifier) if keep_labels is KeepLabels.all else _Single(classifier)
    n_dropped = 0
    with counting("evaluated", hidden=quiet) as count:
        for features, block in blocks(classifier, source):
            n_dropped += block.n_dropped
            if len(block):
                shown.add(features, block.labels)
                known = block.label_values
                count(shown.total.rows)
    if not shown.total.rows:
        raise DataError("no row has a label" if n_dropped else "the file has no rows", file)
    kind = classifier.objective_.probabilities
    if as_json:
        typer.echo(json.dumps(_figures(shown, kind, n_dropped)))
    else:
        typer.echo(table(_lines(shown, kind, n_dropped)))
    if shown.knows_nothing and not quiet:
        warn(_nothing_known(classifier, known))


def _figures(shown: _Single | _Several, kind: str, n_dropped: int) -> dict[str, Any]:
    likelihood = shown.total.log_likelihood
    return {
        "rows": shown.total.rows,
        "unlabelled_rows": n_dropped,
        **shown.figures(),
        # JSON has no infinity.
        "log_likelihood": likelihood if math.isfinite(likelihood) else None,
        "probabilities": kind,
    }


def _lines(shown: _Single | _Several, kind: str, n_dropped: int) -> list[tuple[str, str]]:
    without = f" ({n_dropped:,} more have no label)" if n_dropped else ""
    left_out = f" (over {shown.counted} of known classes)" if shown.total.unseen else ""
    meaning = f" ({_MEANING[kind]})" if kind in _MEANING else ""
    return [
        ("rows", f"{shown.total.rows:,}{without}"),
        *shown.lines(),
        ("log-likelihood", f"{shown.total.log_likelihood:.4f}{left_out}"),
        ("probabilities", f"{kind}{meaning}"),
    ]


class _Single:
    """Figures of rows with one label."""

    counted = "rows"

    def __init__(self, model: ExtremeClassifier) -> None:
        from extremax.evaluation import Tally

        self.model, self.total = model, Tally()

    def add(self, features: Any, labels: Any) -> None:
        from extremax.evaluation import tally

        self.total += tally(self.model, features, labels)

    @property
    def knows_nothing(self) -> bool:
        return self.total.unseen == self.total.rows

    def figures(self) -> dict[str, Any]:
        return {
            "unseen_class_rows": self.total.unseen,
            "accuracy": self.total.accuracy,
            "top5_accuracy": self.total.top_accuracy,
        }

    def lines(self) -> list[tuple[str, str]]:
        return [
            ("of unseen classes", f"{self.total.unseen:,}"),
            ("accuracy", f"{self.total.accuracy:.2%}"),
            ("top-5 accuracy", f"{self.total.top_accuracy:.2%}"),
        ]


class _Several:
    """Figures of rows with several labels."""

    counted = "labels"

    def __init__(self, model: ExtremeClassifier) -> None:
        from extremax.evaluation import SeveralTally

        self.model, self.total = model, SeveralTally()

    def add(self, features: Any, labels: Any) -> None:
        from extremax.evaluation import tally_several

        self.total += tally_several(self.model, features, labels)

    @property
    def knows_nothing(self) -> bool:
        return self.total.unseen == self.total.pairs

    def _ranking(self) -> dict[str, Any]:
        ranking = self.total.ranking
        named = {"precision": ranking.precision, "recall": ranking.recall, "nDCG": ranking.ndcg}
        # A model of an earlier version does not know how many rows its classes had.
        if self.model.n_rows_:
            named["propensity-scored precision"] = ranking.scored_precision
        return named

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "labels": self.total.pairs,
            "unseen_class_labels": self.total.unseen,
        }
        for name, values in self._ranking().items():
            key = name.lower().replace("-", "_").replace(" ", "_")
            found |= {f"{key}_at_{k}": float(values[k - 1]) for k in _AT}
        return found

    def lines(self) -> list[tuple[str, str]]:
        at = {
            name: ", ".join(f"{values[k - 1]:.2%} at {k}" for k in _AT)
            for name, values in self._ranking().items()
        }
        return [
            ("labels", f"{self.total.pairs:,}"),
            ("of unseen classes", f"{self.total.unseen:,}"),
            *at.items(),
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
