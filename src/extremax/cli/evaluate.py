"""``extremax evaluate``: exact metrics on labeled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from extremax.cli.console import counting, print_result, table, warn
from extremax.cli.options import LabeledInput, LoadedModel, Printed, choice

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.evaluation import Evaluation

# Ranks at which multilabel metrics are shown.
_RANKS = (1, 3, 5)
_MEANING = {
    "exact": "softmax of the scores",
    "bias-corrected": "softmax after the noise's bias is removed",
}


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


def evaluate(saved: LoadedModel, source: EvaluationInput, printed: Printed) -> None:
    """Print accuracy, top-5 accuracy and exact log-likelihood on FILE.

    Rows of classes that the model has never seen count as wrong. The log-likelihood, which would
    be minus infinity, leaves them out. With --keep-labels all, print precision, recall, nDCG and
    propensity-scored precision at 1, 3 and 5 instead of accuracy, and how right the probabilities
    are that the best classes are labels: Brier score and calibration error.
    """
    from extremax.cli.rows import blocks, errors_name, no_rows, unknown_labels
    from extremax.evaluation import Evaluation

    classifier = saved.load()
    source = source.for_model(classifier)
    total, n_dropped = Evaluation(), 0
    with counting("evaluated", hidden=source.quiet) as update:
        for start, block in blocks(classifier, source):
            n_dropped += block.n_dropped
            if len(block):
                with errors_name(source.file, start):
                    total += classifier.evaluate(block.features, block.labels)
                sample = block.label_values
                update(total.rows)
    if not total.rows:
        raise no_rows(n_dropped, source.file)
    kind = classifier.model_.objective.probabilities
    shown = (total, kind, n_dropped, source.keep_labels == "all")
    print_result(_figures(*shown) if printed.as_json else table(_lines(*shown)))
    if total.unseen == total.labels and not source.quiet:
        warn(unknown_labels(classifier, sample))


def _ranking(total: Evaluation) -> dict[str, Any]:
    ranking = total.ranking
    return {
        "precision": ranking.precision,
        "recall": ranking.recall,
        "nDCG": ranking.ndcg,
        "propensity-scored precision": ranking.scored_precision,
    }


def _marginals(total: Evaluation) -> dict[str, Any]:
    """Of the probabilities that the best classes are labels."""
    marginals = total.marginals
    return {
        "Brier score": marginals.brier,
        "calibration error": marginals.calibration_error,
        "calibration error by chance": marginals.calibration_error_by_chance,
    }


def _figures(total: Evaluation, kind: str, n_dropped: int, multilabel: bool) -> dict[str, Any]:
    """Return the metrics as a JSON object."""
    figures: dict[str, Any] = {"rows": total.rows, "unlabeled_rows": n_dropped}
    if multilabel:
        figures |= {"labels": total.labels, "unseen_class_labels": total.unseen}
        for name, values in (_ranking(total) | _marginals(total)).items():
            key = name.lower().replace("-", "_").replace(" ", "_")
            figures |= {f"{key}_at_{k}": float(values[k - 1]) for k in _RANKS}
    else:
        figures |= {
            "unseen_class_rows": total.unseen,
            "accuracy": total.accuracy,
            "top5_accuracy": total.top5_accuracy,
        }
    # JSON has no infinity.
    likelihood = total.log_likelihood if math.isfinite(total.log_likelihood) else None
    return figures | {"log_likelihood": likelihood, "probabilities": kind}


def _lines(total: Evaluation, kind: str, n_dropped: int, multilabel: bool) -> list[tuple[str, str]]:
    """Return the metrics as (name, value) pairs."""
    dropped = f" ({n_dropped:,} more have no label)" if n_dropped else ""
    lines = [("rows", f"{total.rows:,}{dropped}")]
    if multilabel:
        lines.append(("labels", f"{total.labels:,}"))
    lines.append(("of unseen classes", f"{total.unseen:,}"))
    if multilabel:
        lines += [
            (name, ", ".join(f"{values[k - 1]:.2%} at {k}" for k in _RANKS))
            for name, values in _ranking(total).items()
        ]
        lines += [
            (name, ", ".join(f"{values[k - 1]:.4f} at {k}" for k in _RANKS))
            for name, values in _marginals(total).items()
        ]
    else:
        lines += [
            ("accuracy", f"{total.accuracy:.2%}"),
            ("top-5 accuracy", f"{total.top5_accuracy:.2%}"),
        ]
    counted = "labels" if multilabel else "rows"
    left_out = f" (over {counted} of known classes)" if total.unseen else ""
    meaning = f" ({_MEANING[kind]})" if kind in _MEANING else ""
    return [
        *lines,
        ("log-likelihood", f"{total.log_likelihood:.4f}{left_out}"),
        ("probabilities", f"{kind}{meaning}"),
    ]
