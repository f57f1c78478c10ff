"""``extremax diagnose``: are the probabilities honest, is the noise good?"""

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
    Model,
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
    from extremax.features.rows import SparseRows

# Rows looked at by default: so many, or fewer where that makes more scores than this.
_ROWS, _LEAST_ROWS, _SCORES = 5000, 200, 2 * 10**8
_SEED = 0


def diagnose(
    model: Model,
    file: File,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            callback=at_least_one,
            help="Rows to look at, drawn at random from the file; by default at most 5,000, "
            "fewer where classes are very many.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw reliability and bias against samples: a .png, .pdf or .svg."
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
    """Measure calibration, the bias of sampled softmax and the worth of the noise on FILE.

    FILE should hold rows that the model was not trained on. The same rows are drawn every time.
    """
    from extremax.cli.rows import load
    from extremax.diagnostics.summary import diagnose_rows

    if picture is not None:
        from extremax.report import check_picture

        check_picture(picture)
    classifier = load(model, threads)
    source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
    with counting("read", hidden=quiet) as count:
        sample = _draw(classifier, source, rows or _default_rows(len(classifier.index_)), count)
    with counting("measuring", hidden=quiet):
        found = diagnose_rows(classifier, sample.features, sample.labels, sample.counts)
    if as_json:
        typer.echo(json.dumps(_figures(found, sample)))
    else:
        _show(found, sample, classifier.objective_.probabilities)
    if picture is not None:
        from extremax.diagnostics.pictures import picture as draw

        draw(found, f"{model.name} on {file.name}", picture)
        if not quiet:
            say(f"drew the diagnosis: {picture}")


def _default_rows(n_classes: int) -> int:
    return min(_ROWS, max(_LEAST_ROWS, _SCORES // n_classes))


@dataclass
class _Sample:
    """Rows drawn from a file, in random order; counts are of all its rows."""

    features: np.ndarray | SparseRows
    labels: np.ndarray
    counts: np.ndarray
    n_rows: int
    n_unseen: int


def _draw(classifier: ExtremeClassifier, source: Input, n: int, count: Any) -> _Sample:
    """n rows of the file: those of the smallest of its rows' random numbers."""
    import numpy as np

    from extremax.cli.evaluate import _nothing_known
    from extremax.cli.rows import blocks
    from extremax.errors import DataError

    rng = np.random.default_rng(_SEED)
    n_classes = len(classifier.index_)
    key, labels, counts = np.empty(0), np.empty(0, np.int64), np.zeros(n_classes, np.int64)
    parts: Any = None
    n_rows = n_dropped = n_unseen = 0
    for features, block in blocks(classifier, source):
        n_dropped += block.n_dropped
        if not len(block):
            continue
        known = block.label_values
        truth = classifier.index_.encode(known)
        counts += np.bincount(truth[truth >= 0], minlength=n_classes)
        n_rows += len(block)
        n_unseen += int((truth < 0).sum())
        count(n_rows)
        drawn = rng.random(len(block))
        chosen = np.flatnonzero(drawn < (key[-1] if len(key) == n else math.inf))
        if len(chosen):
            encoded = classifier.encoder_.transform(_some(features, chosen))
            parts = encoded if parts is None else _joined(parts, encoded)
            key = np.concatenate([key, drawn[chosen]])
            labels = np.concatenate([labels, truth[chosen]])
            order = np.argsort(key)[:n]
            key, labels, parts = key[order], labels[order], parts[order]
    if parts is None:
        raise DataError("no row has a label" if n_dropped else "the file has no rows", source.path)
    if n_unseen == n_rows:
        raise DataError(_nothing_known(classifier, known), source.path)
    if not np.any(labels >= 0):
        raise DataError(f"none of {n:,} rows has a class of the model; --rows more", source.path)
    return _Sample(parts, labels, counts, n_rows, n_unseen)


def _some(features: Any, rows: np.ndarray) -> Any:
    return [features[i] for i in rows] if isinstance(features, list) else features[rows]


def _joined(first: Any, second: Any) -> Any:
    """Rows of both, as an encoder makes them."""
    import numpy as np
    from scipy import sparse

    from extremax.features.rows import SparseRows

    if isinstance(first, SparseRows):
        return SparseRows.of(sparse.vstack([first.matrix, second.matrix], format="csr"))
    return np.concatenate([first, second])


def _figures(found: Diagnosis, sample: _Sample) -> dict[str, Any]:
    return {
        "rows": len(sample.labels),
        "rows_of_file": sample.n_rows,
        "unseen_class_rows_of_file": sample.n_unseen,
        "accuracy": found.outcomes.accuracy,
        "log_likelihood": found.outcomes.log_likelihood,
        **_calibration(found.reliability),
        "temperature": found.temperature,
        "tempered": {
            "log_likelihood": found.tempered.log_likelihood,
            **_calibration(found.tempered_reliability),
        },
        "noise": found.own_noise,
        "bias_rows": found.bias_rows,
        "bias": {name: _curve(curve) for name, curve in found.bias.items()},
        "signal": {name: signal._asdict() for name, signal in found.signal.items()},
    }


def _calibration(found: Reliability) -> dict[str, Any]:
    return {
        "calibration_error": found.error,
        "calibration_error_by_chance": found.by_chance,
        "reliability": {
            "confidence": found.confidence.tolist(),
            "accuracy": found.accuracy.tolist(),
            "rows": found.count.tolist(),
        },
    }


def _curve(curve: BiasCurve) -> dict[str, Any]:
    return {
        "samples": list(curve.m),
        "bias": curve.bias.tolist(),
        "standard_error": curve.error.tolist(),
        "gradient": curve.gradient,
    }


def _show(found: Diagnosis, sample: _Sample, kind: str) -> None:
    of = f" of {sample.n_rows:,}" if sample.n_rows > len(sample.labels) else ""
    chance = f"(of it {found.reliability.by_chance:.4f} by chance if it were calibrated)"
    lines = [
        ("rows", f"{len(sample.labels):,}{of}"),
        ("accuracy", f"{found.outcomes.accuracy:.2%}"),
        ("log-likelihood", f"{found.outcomes.log_likelihood:.4f}"),
        ("calibration error", f"{found.reliability.error:.4f} {chance}"),
        ("best temperature", f"{found.temperature:.3f}"),
        ("  log-likelihood", f"{found.tempered.log_likelihood:.4f}"),
        ("  calibration error", f"{found.tempered_reliability.error:.4f}"),
        ("probabilities", kind),
    ]
    typer.echo(table(lines))
    if found.bias:
        typer.echo(_bias_table(found))
    typer.echo(_signal_table(found))


def _bias_table(found: Diagnosis) -> str:
    curves = list(found.bias.values())
    worst = max(float((curve.error / curve.gradient).max()) for curve in curves)
    head = ["noise", *(f"{m:,}" for m in curves[0].m)]
    rows = [
        [_named(name, found), *(f"{value:.3f}" for value in curve.relative)]
        for name, curve in found.bias.items()
    ]
    title = (
        "bias of sampled softmax's gradient as a share of it, by samples\n"
        f"({found.bias_rows} rows, standard error up to {worst:.3f})"
    )
    return _rich(title, head, rows)


def _signal_table(found: Diagnosis) -> str:
    rows = [
        [_named(name, found), f"{s.log_q:.3f}", f"{s.covered:.4f}", f"{s.relative:.6f}"]
        for name, s in found.signal.items()
    ]
    title = "noise for negative sampling (the model's p taken for the data's)"
    return _rich(title, ["noise", "mean log q", "covered, of 1", "signal/noise, of 1"], rows)


def _named(name: str, found: Diagnosis) -> str:
    return f"{name} (its own)" if name == found.own_noise else name


def _rich(title: str, head: list[str], rows: list[list[str]]) -> str:
    """A table as text; narrow enough for 80 columns, never folded."""
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(head):
        made.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(made)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join(["", title, *(line for line in lines if line)])
