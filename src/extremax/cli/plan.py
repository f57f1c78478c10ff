"""``extremax plan``: estimate memory and time of a training run before it starts."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.cli import training as t
from extremax.cli.console import counting, duration, size, table, warn
from extremax.cli.options import (
    AsJson,
    Format,
    Input,
    KeepLabels,
    LabelColumn,
    Labels,
    Quiet,
    TextColumn,
    Threads,
    WhichLabels,
    ZeroBased,
    at_least_one,
)

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.planning import Memory, Step, Workload

# Rows read as a sample; more of texts, to measure how the vocabulary grows.
_SAMPLE, _TEXTS = 2000, 20_000


@dataclass(frozen=True)
class _Plan:
    """The estimates: bytes in memory and on disk, seconds per step."""

    work: Workload
    memory: Memory
    disk: float
    steps: list[Step]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="File of rows with labels; without it, give --rows, --features and --classes.",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(metavar="N", callback=at_least_one, help="Without FILE: number of rows."),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(
            metavar="N", callback=at_least_one, help="Without FILE: number of dense features."
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(metavar="N", callback=at_least_one, help="Without FILE: number of classes."),
    ] = None,
    as_json: AsJson = False,
    objective: t.Objective = t.Training.objective,
    noise: t.Noise = t.Training.noise,
    tree_components: t.TreeComponents = t.Training.tree_components,
    bag_size: t.BagSize = t.Training.bag_size,
    n_negatives: t.Negatives = t.Training.n_negatives,
    learning_rate: t.LearningRate = t.Training.learning_rate,
    epochs: t.Epochs = t.Training.epochs,
    max_seconds: t.MaxSeconds = None,
    validation_fraction: t.ValidationFraction = t.Training.validation_fraction,
    seed: t.Seed = t.Training.seed,
    components: t.Components = t.Training.components,
    analyzer: t.TextAnalyzer = t.Training.analyzer,
    ngrams: t.Ngrams = t.Training.ngrams,
    format: Format = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    zero_based: ZeroBased = None,
    keep_labels: WhichLabels = KeepLabels.first,
    threads: Threads = None,
    quiet: Quiet = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", hidden=True)] = None,
    checkpoint: Annotated[Path | None, typer.Option(hidden=True)] = None,
    picture: Annotated[Path | None, typer.Option(hidden=True)] = None,
    force: Annotated[bool, typer.Option("--force", hidden=True)] = False,
) -> None:
    """Estimate the memory and time that `extremax train` would take.

    Memory is computed from sizes; that of a tree on sparse rows is only an estimate. Time comes
    from a trial of a few seconds on this machine and is right within a factor of two or so. The
    options are those of `extremax train`, so replace `train` by `plan` in a command to plan it.
    """
    settings = t.Training(
        objective, noise, tree_components, bag_size, n_negatives, learning_rate, epochs,
        max_seconds, validation_fraction, components, analyzer, ngrams, seed, threads,
    )  # fmt: skip
    sizes = (rows, features, classes)
    if (file is None) == (None in sizes) or (file is not None and any(sizes)):
        raise ValueError("give either FILE, or all of --rows, --features and --classes")
    with counting("timing this machine", hidden=quiet):
        classifier = settings.classifier()
        if file is None:
            estimate = _plan_sizes(settings, classifier, *sizes)
        else:
            source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
            estimate = _plan_file(settings, classifier, source)
    if as_json:
        typer.echo(json.dumps(_figures(estimate)))
    else:
        typer.echo(_text(estimate, str(file) if file else None))
    if not quiet:
        _warn_if_too_large(estimate)


def _plan_sizes(
    settings: t.Training, classifier: ExtremeClassifier, rows: Any, features: Any, classes: Any
) -> _Plan:
    import numpy as np

    from extremax.data import Dataset
    from extremax.planning import Workload

    settings.check(Dataset(np.empty((0, features)), None, ()), "the plan")
    return _plan(Workload.dense(rows, features, classes), classifier, [])


def _plan_file(settings: t.Training, classifier: ExtremeClassifier, source: Input) -> _Plan:
    from extremax.planning import Step, Workload

    sample = source.read(limit=_SAMPLE)
    settings.check(sample, str(source.path))
    if sample.table.n_features is None:
        # How fast new words appear takes more rows to see.
        sample = source.read(limit=_TEXTS)
    summary = source.scan()
    steps = [Step("reading", _reading_seconds(source, summary.rows))]
    for _ in range(2):
        # Twice, because the first time includes loading and compiling.
        start = time.perf_counter()
        work = Workload.of(
            sample, summary.classes or 1, settings.encoder(), summary.rows, summary.features
        )
        seconds = time.perf_counter() - start
    if work.n_hashed:
        steps.append(Step("hashing the texts", seconds * summary.rows / work.n_hashed))
    return _plan(work, classifier, steps)


def _reading_seconds(source: Input, rows: int) -> float:
    """Extrapolate from the times of one row and of a sample; the reader is already loaded."""
    from extremax.errors import DataError

    seconds = []
    for limit in (1, _SAMPLE):
        start = time.perf_counter()
        # A single row without a label is an error, raised after it has been read.
        with suppress(DataError):
            source.read(limit=limit)
        seconds.append(time.perf_counter() - start)
    return seconds[0] + max(0.0, seconds[1] - seconds[0]) * rows / _SAMPLE


def _plan(work: Workload, classifier: ExtremeClassifier, steps: list[Step]) -> _Plan:
    from extremax.planning import estimate_memory, estimate_time, model_bytes

    # Time first: it loads all libraries, whose memory `estimate_memory` measures.
    steps = [*steps, *estimate_time(work, classifier)]
    return _Plan(work, estimate_memory(work, classifier), model_bytes(work, classifier), steps)


def _figures(estimate: _Plan) -> dict[str, Any]:
    """Return the estimates as a JSON object."""
    work, memory = estimate.work, estimate.memory
    return {
        "problem": {
            "rows": work.rows,
            "features": work.features,
            "classes": work.classes,
            "width": work.encoded.width,
            "nonzeros": work.nonzeros,
            "row_bytes": work.row_bytes,
            "kind": work.kind,
            "encoded": work.encoded.rows.name,
            "multilabel": work.multilabel,
        },
        "memory": {
            "peak": round(memory.peak),
            "items": {name: round(value) for name, value in memory.items.items()},
            "passing": {memory.phase: round(memory.passing)},
        },
        "disk": round(estimate.disk),
        "seconds": {
            "total": estimate.seconds,
            "steps": {step.name: step.seconds for step in estimate.steps},
        },
    }


def _text(estimate: _Plan, name: str | None) -> str:
    work, memory = estimate.work, estimate.memory
    rows = f"pairs of {work.name} and labels" if work.multilabel else work.name
    features = f"{work.features:,} features"
    if work.n_hashed:
        features = f"{work.nonzeros:.0f} n-grams each"
    items = [*memory.items.items(), (f"while {memory.phase}", memory.passing)]
    lines = [(f"  {item}", f"{size(value):>8}") for item, value in items]
    lines.append(("  peak", f"{size(memory.peak):>8}"))
    times = [(f"  {step.name}", f"{duration(step.seconds):>8}") for step in estimate.steps]
    times.append(("  total without early stopping", f"{duration(estimate.seconds):>8}"))
    title = f"{work.rows:,} {rows}, {features}, {work.classes:,} classes"
    return "\n".join(
        [
            f"{name}: {title}" if name else title,
            "",
            "memory",
            table(lines),
            "",
            "time on this machine, roughly",
            table(times),
            "",
            f"model on disk: {size(estimate.disk)}",
        ]
    )


def _warn_if_too_large(estimate: _Plan) -> None:
    from extremax.planning import available_bytes

    free = available_bytes()
    if free is not None and estimate.memory.peak > free:
        warn(f"training does not fit into memory: {size(free)} are free on this machine")
