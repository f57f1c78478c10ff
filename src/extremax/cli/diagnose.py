"""``extremax diagnose``: calibration of the probabilities and quality of the noise."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.cli.console import counting, say, table
from extremax.cli.options import (
    AsJson,
    File,
    Format,
    Input,
    KeepLabel,
    LabelColumn,
    Labels,
    ModelPath,
    Quiet,
    TextColumn,
    Threads,
    WhichLabel,
    ZeroBased,
    at_least_one,
)

if TYPE_CHECKING:
    import numpy as np

    from extremax import ExtremeClassifier
    from extremax.diagnostics import BiasCurve, Diagnosis, Reliability
    from extremax.rows import Rows

# By default _MOST_ROWS rows are used, or fewer to stay below _SCORES scores.
_MOST_ROWS, _FEWEST_ROWS, _SCORES = 5000, 200, 2 * 10**8
_SEED = 0


def diagnose(
    model: ModelPath,
    file: File,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            callback=at_least_one,
            help="Number of rows to use, drawn at random from FILE: by default at most 5,000, "
            "fewer with very many classes.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot reliability, and bias against the number of samples, to a .png, .pdf or "
            ".svg file.",
        ),
    ] = None,
    as_json: AsJson = False,
    format: Format = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    zero_based: ZeroBased = None,
    keep_labels: WhichLabel = KeepLabel.first,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Measure calibration, the bias of sampled softmax and the quality of the noise on FILE.

    FILE should contain rows that the model was not trained on. The same rows are drawn every time.
    """
    from extremax.cli.rows import load
    from extremax.diagnostics.summary import diagnose_rows

    if picture is not None:
        from extremax.report import check_picture

        check_picture(picture)
    classifier = load(model, threads)
    source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
    with counting("read", hidden=quiet) as count:
        sample = _draw(classifier, source, rows or _default_rows(len(classifier.classes_)), count)
    with counting("measuring", hidden=quiet):
        diagnosis = diagnose_rows(classifier, sample.rows, sample.labels, sample.counts)
    if as_json:
        typer.echo(json.dumps(_figures(diagnosis, sample)))
    else:
        _show(diagnosis, sample, classifier.model_.objective.probabilities)
    if picture is not None:
        from extremax.report.diagnosis import plot_diagnosis

        plot_diagnosis(diagnosis, f"{model.name} on {file.name}", picture)
        if not quiet:
            say(f"drew the diagnosis: {picture}")


def _default_rows(n_classes: int) -> int:
    return min(_MOST_ROWS, max(_FEWEST_ROWS, _SCORES // n_classes))


@dataclass
class _Sample:
    """Rows drawn from a file, in random order.

    labels:    class number of each row, −1 for an unseen class.
    counts:    rows of the whole file per class.
    n_rows:    labeled rows of the whole file.
    n_unseen:  those of an unseen class.
    """

    rows: Rows
    labels: np.ndarray
    counts: np.ndarray
    n_rows: int
    n_unseen: int


def _draw(classifier: ExtremeClassifier, source: Input, n: int, count: Any) -> _Sample:
    """Draw n rows of the file: each row gets a random key, and the n smallest keys win."""
    import numpy as np

    from extremax.cli.rows import blocks, errors_name, unknown_labels
    from extremax.errors import DataError

    rng = np.random.default_rng(_SEED)
    model = classifier.model_
    keys, labels = np.empty(0), np.empty(0, np.int64)
    counts = np.zeros(model.n_classes, np.int64)
    rows: Rows | None = None
    n_rows = n_dropped = n_unseen = 0
    for start, block in blocks(classifier, source):
        n_dropped += block.n_dropped
        if not len(block):
            continue
        values = block.label_values
        truth = model.labels.encode(values)
        counts += np.bincount(truth[truth >= 0], minlength=model.n_classes)
        n_rows += len(block)
        n_unseen += int((truth < 0).sum())
        count(n_rows)
        drawn = rng.random(len(block))
        chosen = np.flatnonzero(drawn < (keys[-1] if len(keys) == n else math.inf))
        if len(chosen):
            with errors_name(source.path, start):
                encoded = model.encoder.transform(block.table.take(chosen))
            rows = encoded if rows is None else rows.joined(encoded)
            keys = np.concatenate([keys, drawn[chosen]])
            labels = np.concatenate([labels, truth[chosen]])
            order = np.argsort(keys)[:n]
            keys, labels, rows = keys[order], labels[order], rows[order]
    if rows is None:
        raise DataError("no row has a label" if n_dropped else "the file has no rows", source.path)
    if n_unseen == n_rows:
        raise DataError(unknown_labels(classifier, values), source.path)
    if not np.any(labels >= 0):
        raise DataError(
            f"none of the {n:,} rows drawn has a class of the model; increase --rows", source.path
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
        "samples": list(curve.m),
        "bias": curve.bias.tolist(),
        "standard_error": curve.error.tolist(),
        "gradient": curve.gradient,
    }


def _show(diagnosis: Diagnosis, sample: _Sample, kind: str) -> None:
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
        ("probabilities", kind),
    ]
    typer.echo(table(lines))
    if diagnosis.bias:
        typer.echo(_bias_table(diagnosis))
    typer.echo(_signal_table(diagnosis))


def _bias_table(diagnosis: Diagnosis) -> str:
    curves = list(diagnosis.bias.values())
    worst = max(float((curve.error / curve.gradient).max()) for curve in curves)
    head = ["noise", *(f"{m:,}" for m in curves[0].m)]
    rows = [
        [_named(name, diagnosis), *(f"{value:.3f}" for value in curve.relative)]
        for name, curve in diagnosis.bias.items()
    ]
    title = (
        "bias of sampled softmax's gradient, relative to its norm, by number of samples\n"
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
    """Format a table as text, without wrapping."""
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(head):
        grid.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(grid)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join(["", title, *(line for line in lines if line)])
