"""``extremax diagnose``: calibration of the probabilities and quality of the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.console import counting, print_result, say, table
from extremax.cli.evaluate import EvaluationInput
from extremax.cli.options import LoadedModel, Printed, count, output
from extremax.cli.verdict import draws_of, is_calibrated, verdict
from extremax.errors import DataError
from extremax.report import check_picture

if TYPE_CHECKING:
    import numpy as np

    from extremax import ExtremeClassifier
    from extremax.diagnostics import BiasCurve, Diagnosis, FrequencyBand, Reliability
    from extremax.labels import LabelLists
    from extremax.rows import Rows

# By default _MOST_ROWS rows are used, or fewer to stay below _SCORES scores.
_MOST_ROWS, _FEWEST_ROWS, _SCORES = 5000, 200, 2 * 10**8
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Diagnosing(LoadedModel):
    """The model to diagnose, and how."""

    rows: int | None = count(
        None,
        "Number of rows to use, drawn at random from FILE: by default at most 5,000, fewer with "
        "very many classes.",
    )
    picture: Path | None = output(
        None,
        "Plot reliability, and bias against the number of draws, to a .png, .pdf or .svg file.",
    )


def diagnose(given: Diagnosing, source: EvaluationInput, printed: Printed) -> None:
    """Say whether the probabilities can be trusted, and measure calibration and noise on FILE.

    The first three lines are what to do about it; the tables after them are the reasons. FILE
    should contain rows that the model was not trained on. The same rows are drawn every time.
    """
    from extremax.diagnostics.summary import diagnose_rows

    picture = given.picture
    if picture is not None:
        check_picture(picture)
    classifier = given.load()
    few = max(_FEWEST_ROWS, _SCORES // len(classifier.classes_))
    n_rows = given.rows or min(_MOST_ROWS, few)
    with counting("read", hidden=source.quiet) as update:
        sample = _draw(classifier, source.for_model(classifier), n_rows, update)
    with counting("measuring", hidden=source.quiet):
        diagnosis = diagnose_rows(classifier, sample.rows, sample.labels, sample.counts)
    advice = verdict(
        diagnosis,
        is_calibrated(classifier),
        classifier.model_.objective.corrects_draws,
        draws_of(classifier, sample.rows),
    )
    if printed.as_json:
        print_result({"verdict": advice, **_figures(diagnosis, sample)})
    else:
        print_result("\n".join([*advice, "", _text(diagnosis, sample)]))
    if picture is not None:
        from extremax.report.diagnosis import plot_diagnosis

        plot_diagnosis(diagnosis, f"{given.model.name} on {Path(source.name).name}", picture)
        if not source.quiet:
            say(f"drew the diagnosis: {picture}")


@dataclass
class _Sample:
    """Rows drawn from a file, in random order.

    labels:    class numbers of each row, −1 for an unseen class.
    counts:    pairs of row and label of the whole file, per class.
    n_rows:    labeled rows of the whole file.
    n_unseen:  pairs with an unseen class.
    """

    rows: Rows
    labels: LabelLists
    counts: np.ndarray
    n_rows: int
    n_unseen: int


def _draw(classifier: ExtremeClassifier, source: EvaluationInput, n: int, update: Any) -> _Sample:
    """Draw n rows of the file: each row gets a random key, and the n smallest keys win."""
    import numpy as np

    from extremax.cli.rows import blocks, errors_name, no_rows, unknown_labels
    from extremax.evaluation import class_lists
    from extremax.labels import LabelLists, concatenate_lists

    rng = np.random.default_rng(_SEED)
    model = classifier.model_
    keys, labels = np.empty(0), LabelLists(np.empty(0, np.int64), np.zeros(1))
    counts = np.zeros(model.n_classes, np.int64)
    rows: Rows | None = None
    n_rows = n_dropped = n_pairs = n_unseen = 0
    for start, block in blocks(classifier, source):
        n_dropped += block.n_dropped
        if not len(block):
            continue
        values = block.label_values
        truth = class_lists(model, block.labels, len(block))
        seen = truth.values[truth.values >= 0]
        counts += np.bincount(seen, minlength=model.n_classes)
        n_rows += len(block)
        n_pairs += len(truth.values)
        n_unseen += len(truth.values) - len(seen)
        update(n_rows)
        drawn = rng.random(len(block))
        chosen = np.flatnonzero(drawn < (keys[-1] if len(keys) == n else math.inf))
        if len(chosen):
            with errors_name(block.source[0], start):
                encoded = model.encoder.transform(block.table.take(chosen))
            rows = encoded if rows is None else rows.joined(encoded)
            keys = np.concatenate([keys, drawn[chosen]])
            labels = concatenate_lists([labels, truth[chosen]])
            order = np.argsort(keys)[:n]
            keys, labels, rows = keys[order], labels[order], rows[order]
    if rows is None:
        raise no_rows(n_dropped, source.name)
    if n_unseen == n_pairs:
        raise DataError(unknown_labels(classifier, values), source.name)
    if not np.any(labels.values >= 0):
        raise DataError(
            f"none of the {n:,} rows drawn has a class of the model; increase --rows", source.name
        )
    return _Sample(rows, labels, counts, n_rows, n_unseen)


def _figures(diagnosis: Diagnosis, sample: _Sample) -> dict[str, Any]:
    """Return the diagnosis as a JSON object."""
    return {
        "rows": len(sample.labels),
        "rows_of_file": sample.n_rows,
        "unseen_class_rows_of_file": sample.n_unseen,
        "accuracy": diagnosis.outcomes.accuracy,
        "log_likelihood": diagnosis.outcomes.log_likelihood,
        **_calibration(diagnosis.reliability),
        "frequency_bands": [
            {
                "least_examples": band.least,
                "most_examples": band.most,
                "rows": int(band.reliability.count.sum()),
                **_calibration(band.reliability),
            }
            for band in diagnosis.bands
        ],
        "temperature": diagnosis.temperature,
        "tempered": {
            "log_likelihood": diagnosis.tempered.log_likelihood,
            **_calibration(diagnosis.tempered_reliability),
        },
        "noise": diagnosis.own_noise,
        "bias_rows": diagnosis.bias_rows,
        "bias": {name: _curve(curve) for name, curve in diagnosis.bias.items()},
        "signal": {name: signal._asdict() for name, signal in diagnosis.signal.items()},
    }


def _calibration(result: Reliability) -> dict[str, Any]:
    return {
        "calibration_error": result.error,
        "calibration_error_by_chance": result.by_chance,
        "reliability": {
            "confidence": result.confidence.tolist(),
            "accuracy": result.accuracy.tolist(),
            "rows": result.count.tolist(),
        },
    }


def _curve(curve: BiasCurve) -> dict[str, Any]:
    return {
        "draws": list(curve.m),
        "bias": curve.bias.tolist(),
        "standard_error": curve.error.tolist(),
        "gradient": curve.gradient,
    }


def _text(diagnosis: Diagnosis, sample: _Sample) -> str:
    of = f" of {sample.n_rows:,}" if sample.n_rows > len(sample.labels) else ""
    chance = f"({diagnosis.reliability.by_chance:.4f} expected by chance if calibrated)"
    lines = [
        ("rows", f"{len(sample.labels):,}{of}"),
        ("accuracy", f"{diagnosis.outcomes.accuracy:.2%}"),
        ("log-likelihood", f"{diagnosis.outcomes.log_likelihood:.4f}"),
        ("calibration error", f"{diagnosis.reliability.error:.4f} {chance}"),
        ("best temperature", f"{diagnosis.temperature:.3f}"),
        ("  log-likelihood", f"{diagnosis.tempered.log_likelihood:.4f}"),
        ("  calibration error", f"{diagnosis.tempered_reliability.error:.4f}"),
    ]
    bias = [_bias_table(diagnosis)] if diagnosis.bias else []
    bands = _band_table(diagnosis.bands)
    return "\n".join([table(lines), bands, *bias, _signal_table(diagnosis)])


def _band_table(bands: list[FrequencyBand]) -> str:
    rows = []
    for band in bands:
        part = band.reliability
        share = part.count / part.count.sum()
        rows.append(
            [
                f"{band.least:,}"
                if band.least == band.most
                else f"{band.least:,} to {band.most:,}",
                f"{part.count.sum():,}",
                f"{share @ part.confidence:.2%}",
                f"{share @ part.accuracy:.2%}",
                f"{part.above_chance:+.4f}",
            ]
        )
    title = "calibration by number of training examples of the predicted class"
    head = ["examples", "rows", "confidence", "accuracy", "error above chance"]
    return _text_table(title, head, rows)


def _bias_table(diagnosis: Diagnosis) -> str:
    curves = list(diagnosis.bias.values())
    worst = max(float((curve.error / curve.gradient).max()) for curve in curves)
    head = ["noise", *(f"{m:,}" for m in curves[0].m)]
    rows = [
        [_named(name, diagnosis), *(f"{value:.3f}" for value in curve.relative)]
        for name, curve in diagnosis.bias.items()
    ]
    title = (
        "bias of sampled softmax's gradient, relative to its norm, by number of draws\n"
        f"({diagnosis.bias_rows} rows, standard error up to {worst:.3f})"
    )
    return _text_table(title, head, rows)


def _signal_table(diagnosis: Diagnosis) -> str:
    rows = [
        [_named(name, diagnosis), f"{s.log_q:.3f}", f"{s.covered:.4f}", f"{s.relative:.6f}"]
        for name, s in diagnosis.signal.items()
    ]
    title = "noise for negative sampling (assuming that the model's probabilities are true)"
    return _text_table(title, ["noise", "mean log q", "covered, of 1", "signal/noise, of 1"], rows)


def _named(name: str, diagnosis: Diagnosis) -> str:
    return f"{name} (its own)" if name == diagnosis.own_noise else name


def _text_table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """Format a table as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{'>' if i else '<'}{widths[i]}}" for i, cell in enumerate(row))
        for row in (head, *rows)
    ]
    return "\n".join(["", title, lines[0], "─" * len(lines[0]), *lines[1:]])
