"""``extremax evaluate``: exact metrics on labeled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.console import about_probabilities, counting, print_result, say, table, warn
from extremax.cli.limits import check_threshold
from extremax.cli.options import LabeledInput, LoadedModel, Printed, choice, option, output
from extremax.cli.verdict import is_calibrated
from extremax.errors import ArgumentError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.evaluation import AnswerTally, Evaluation, Outcomes

# Ranks at which metrics are shown by default, with one label per row and with several.
_SINGLE, _MULTILABEL = (1, 5), (1, 3, 5)


@dataclass(frozen=True, kw_only=True)
class Evaluating(LoadedModel):
    """The model to evaluate, and how."""

    k: str | None = option(
        None,
        "Numbers of best classes for which to print recall, macro recall, coverage and, with "
        "several labels per row, the other metrics: by default 1,5, or 1,3,5 with several labels.",
        *("-k", "--k"),
        metavar="N,N,…",
    )
    per_class: Path | None = output(
        None,
        "Also write support, precision, recall and the most frequent mistakes of every class to a "
        "TSV file, classes that are missed most often first. The answer to a row is its best class "
        "or, with --threshold, what `predict --threshold` prints.",
        "--per-class",
    )
    threshold: float | None = option(
        None,
        "Also print how many rows have an answer whose probability is at least this, and the "
        "precision and recall of these answers.",
        metavar="P",
    )
    export: Path | None = output(
        None,
        "Also write the best classes of every row, as many as the largest -k and at least 5, with "
        "probabilities and truth, to an .npz file for evaluators of calibration.",
    )

    @property
    def ranks(self) -> tuple[int, ...]:
        """``1,5,20`` as numbers, ascending; none if not given."""
        parts = [] if self.k is None else self.k.split(",")
        if not all(part.strip().isdecimal() and int(part) for part in parts):
            raise ArgumentError(f"-k must be numbers of at least 1 such as 1,5,20, got {self.k!r}")
        return tuple(sorted({int(part) for part in parts}))


@dataclass(frozen=True, kw_only=True)
class EvaluationInput(LabeledInput):
    """The rows to evaluate on, read by default as in training."""

    keep_labels: str | None = choice(
        None,
        "Which label to keep of rows with several labels. By default all if the model was trained "
        "with --keep-labels all, else the first.",
        *("first", "smallest", "all"),
    )

    def for_model(self, classifier: ExtremeClassifier) -> EvaluationInput:
        """With the labels that the model was trained on, unless others were asked for."""
        multilabel = classifier.model_.labels.multilabel
        return replace(self, keep_labels=self.keep_labels or ("all" if multilabel else "first"))


def evaluate(given: Evaluating, source: EvaluationInput, printed: Printed) -> None:
    """Print accuracy, macro recall, coverage and exact log-likelihood on FILE.

    Rows of classes that the model has never seen count as wrong. The log-likelihood, which would
    be minus infinity, leaves them out, and so do macro recall and coverage. With --keep-labels all,
    print precision, recall, nDCG and propensity-scored precision at 1, 3 and 5 instead of accuracy,
    and how right the probabilities are that the best classes are labels: Brier score and
    calibration error.
    """
    from extremax.cli.rows import blocks, errors_name, no_rows, unknown_labels
    from extremax.evaluation import TOP, AnswerTally, Evaluation, export_outcomes, summarize

    asked, export = given.ranks, given.export
    for path in (export, given.per_class):
        if path is not None and not path.absolute().parent.is_dir():
            raise FileNotFoundError(2, "no such folder", str(path.parent))
    if given.threshold is not None:
        check_threshold(given.threshold)
    classifier = given.load()
    source = source.for_model(classifier)
    most = max((TOP, *asked))
    total, n_dropped = Evaluation(), 0
    exported: list[Outcomes] = []
    answers: AnswerTally | None = None
    if given.per_class is not None or given.threshold is not None:
        answers = AnswerTally(len(classifier.classes_), given.threshold)
    with counting("evaluated", hidden=source.quiet) as update:
        for start, block in blocks(classifier, source):
            n_dropped += block.n_dropped
            if len(block):
                with errors_name(block.source[0], start):
                    found = classifier.outcomes(block.features, block.labels, k=most)
                total += summarize(classifier.model_, found, most)
                if answers is not None:
                    answers.add(found)
                if export is not None:
                    exported.append(found)
                sample = block.label_values
                update(total.rows)
    if not total.rows:
        raise no_rows(n_dropped, source.name)
    if answers is not None and given.per_class is not None:
        _write_classes(given.per_class, answers, classifier, source.quiet)
    if export is not None:
        export_outcomes(export, exported)
        if not source.quiet:
            say(f"wrote {total.rows:,} rows: {export}")
    shown = _Shown(
        total,
        classifier.model_.objective.probabilities,
        is_calibrated(classifier),
        n_dropped,
        source.keep_labels == "all",
        asked,
        answers if given.threshold is not None else None,
    )
    print_result(_figures(shown) if printed.as_json else table(_lines(shown)))
    if total.unseen == total.labels and not source.quiet:
        warn(unknown_labels(classifier, sample))


def _write_classes(
    path: Path, answers: AnswerTally, classifier: ExtremeClassifier, quiet: bool
) -> None:
    from extremax.evaluation import write_by_class

    n_classes = write_by_class(path, answers, classifier.classes_)
    if not quiet:
        say(f"wrote {n_classes:,} classes: {path}")


@dataclass(frozen=True)
class _Shown:
    """What is printed.

    kind, calibrated:  of the probabilities.
    asked:             ranks that the user wants.
    answers:           those of a threshold, if the user wants one.
    """

    total: Evaluation
    kind: str
    calibrated: bool
    n_dropped: int
    multilabel: bool
    asked: tuple[int, ...]
    answers: AnswerTally | None

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.asked or (_MULTILABEL if self.multilabel else _SINGLE)

    def at_ranks(self) -> dict[str, Any]:
        """Metrics by name, each with one number per rank from 1."""
        ranking, by_class = self.total.ranking, self.total.by_class
        metrics = {"macro recall": by_class.macro_recall, "coverage": by_class.coverage}
        if self.multilabel:
            return {
                "precision": ranking.precision,
                "recall": ranking.recall,
                "nDCG": ranking.ndcg,
                "propensity-scored precision": ranking.scored_precision,
                **metrics,
            }
        # By default recall is accuracy and top-5 accuracy again.
        return {"recall": ranking.recall, **metrics} if self.asked else metrics

    def marginals(self) -> dict[str, Any]:
        """Of the probabilities that the best classes are labels, as `at_ranks`; none if rows have
        one label each."""
        if not self.multilabel:
            return {}
        marginals = self.total.marginals
        return {
            "Brier score": marginals.brier,
            "calibration error": marginals.calibration_error,
            "calibration error by chance": marginals.calibration_error_by_chance,
        }


def _figures(shown: _Shown) -> dict[str, Any]:
    """Return the metrics as a JSON object."""
    total = shown.total
    figures: dict[str, Any] = {"rows": total.rows, "unlabeled_rows": shown.n_dropped}
    if shown.multilabel:
        figures |= {"labels": total.labels, "unseen_class_labels": total.unseen}
    else:
        figures |= {
            "unseen_class_rows": total.unseen,
            "accuracy": total.accuracy,
            "top5_accuracy": total.top5_accuracy,
        }
    for name, values in (shown.at_ranks() | shown.marginals()).items():
        key = name.lower().replace("-", "_").replace(" ", "_")
        figures |= {f"{key}_at_{k}": float(values[k - 1]) for k in shown.ranks}
    if shown.answers is not None:
        answers = shown.answers
        figures |= {
            "threshold": answers.threshold,
            "answered_rows": answers.answered,
            "precision": _finite(answers.precision),
            "recall": answers.recall,
        }
    figures["log_likelihood"] = _finite(total.log_likelihood)
    return figures | {"probabilities": shown.kind}


def _finite(value: float) -> float | None:
    """JSON has neither infinity nor NaN."""
    return value if math.isfinite(value) else None


def _lines(shown: _Shown) -> list[tuple[str, str]]:
    """Return the metrics as (name, value) pairs."""
    total, answers = shown.total, shown.answers
    dropped = f" ({shown.n_dropped:,} more have no label)" if shown.n_dropped else ""
    lines = [("rows", f"{total.rows:,}{dropped}")]
    if shown.multilabel:
        lines.append(("labels", f"{total.labels:,}"))
    lines.append(("of unseen classes", f"{total.unseen:,}"))
    if not shown.multilabel:
        lines += [
            ("accuracy", f"{total.accuracy:.2%}"),
            ("top-5 accuracy", f"{total.top5_accuracy:.2%}"),
        ]
    lines += [
        (name, ", ".join(f"{values[k - 1]:.2%} at {k}" for k in shown.ranks))
        for name, values in shown.at_ranks().items()
    ]
    lines += [
        (name, ", ".join(f"{values[k - 1]:.4f} at {k}" for k in shown.ranks))
        for name, values in shown.marginals().items()
    ]
    if answers is not None:
        share = f"{answers.answered / answers.rows:.2%} of rows"
        lines += [
            (f"answered at {answers.threshold:g}", share),
            ("  precision", f"{answers.precision:.2%}" if answers.answered else "no answer"),
            ("  recall", f"{answers.recall:.2%}"),
        ]
    counted = "labels" if shown.multilabel else "rows"
    left_out = f" (over {counted} of known classes)" if total.unseen else ""
    return [
        *lines,
        ("log-likelihood", f"{total.log_likelihood:.4f}{left_out}"),
        ("figures", "exact: every class of every row was scored"),
        ("probabilities", about_probabilities(shown.kind, shown.calibrated)),
    ]
