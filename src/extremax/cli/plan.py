"""``extremax plan``: memory and time of a training, before it starts."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
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
    from extremax.planning import Memory, Problem, Step

# Rows looked at to know what a row is like; of texts more, to know how new words come.
_SAMPLE, _TEXTS = 2000, 20_000


@dataclass(frozen=True)
class _Plan:
    """What is shown."""

    problem: Problem
    memory: Memory
    disk: float
    steps: list[Step]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


def plan(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Rows with labels, or none and sizes.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(metavar="N", callback=at_least_one, help="Without FILE: number of rows."),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(metavar="N", callback=at_least_one, help="Without FILE: dense features."),
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
    """Say how much memory and time `extremax train` would take.

    Memory is counted from sizes; that of a tree on sparse rows is guessed from them. Time comes
    from a trial of a few seconds on this machine, and is right within a factor of two or so. It
    takes the options of `extremax train`, so that one word of the command makes the difference.
    """
    settings = t.Training(
        objective, noise, tree_components, bag_size, n_negatives, learning_rate, epochs,
        max_seconds, validation_fraction, components, analyzer, ngrams, seed, threads,
    )  # fmt: skip
    sizes = (rows, features, classes)
    if (file is None) == (None in sizes) or (file is not None and any(sizes)):
        raise ValueError("name a FILE, or give all of --rows, --features and --classes")
    with counting("trying this machine", hidden=quiet):
        model = settings.classifier()
        if file is None:
            made = _of_sizes(settings, model, *sizes)
        else:
            source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
            made = _of_file(settings, model, source)
    if as_json:
        typer.echo(json.dumps(_figures(made)))
    else:
        typer.echo(_shown(made, str(file) if file else None))
    _warn_of_size(made, quiet)


def _of_sizes(
    settings: t.Training, model: ExtremeClassifier, rows: Any, features: Any, classes: Any
) -> _Plan:
    from extremax.planning import Problem

    settings.check("dense", "the plan")
    return _plan(Problem.dense(rows, features, classes), model, [])


def _of_file(settings: t.Training, model: ExtremeClassifier, source: Input) -> _Plan:
    from dataclasses import replace

    from extremax.label_lists import LabelLists
    from extremax.planning import Problem, Step, few_texts

    sample = source.read(limit=_SAMPLE)
    settings.check(sample.kind, str(source.path))
    if sample.kind == "text":
        sample = source.read(limit=_TEXTS)
    summary = source.scan()
    steps = [Step("reading", _reading_seconds(source, summary.rows))]
    for _ in range(2):
        # Twice, as the first time loads what hashing texts needs.
        start = time.perf_counter()
        problem = Problem.of(sample, summary.classes or 1, settings.encoder(), summary.rows)
        took = time.perf_counter() - start
    if problem.kind == "text":
        hashed = len(few_texts(sample.features))
        steps.append(Step("hashing the texts", took * summary.rows / hashed))
    if problem.kind == "sparse" and summary.features:
        # The first rows need not use every feature.
        width = summary.features
        if settings.components is not None:
            width = min(settings.components, width, summary.rows)
        problem = replace(problem, features=summary.features, width=width)
    if isinstance(sample.labels, LabelLists):
        # Each label of a row makes an example; the rows are read once.
        each = len(sample.label_values) / len(sample)
        n_pairs = round(problem.rows * each)
        row_bytes = problem.row_bytes / each
        problem = replace(problem, rows=n_pairs, row_bytes=row_bytes, several=True)
    return _plan(problem, model, steps)


def _reading_seconds(source: Input, rows: int) -> float:
    """From the time of a few rows and of more; whatever reading loads is loaded by now."""
    from extremax.errors import DataError

    seconds = []
    for limit in (1, _SAMPLE):
        start = time.perf_counter()
        # One row may be without a label, which is an error after the reading.
        with suppress(DataError):
            source.read(limit=limit)
        seconds.append(time.perf_counter() - start)
    return seconds[0] + max(0.0, seconds[1] - seconds[0]) * rows / _SAMPLE


def _plan(problem: Problem, model: ExtremeClassifier, steps: list[Step]) -> _Plan:
    from extremax.planning import estimate_memory, estimate_time, model_bytes

    # Time first: it loads all that training loads, which the estimate of memory measures.
    steps = [*steps, *estimate_time(problem, model)]
    return _Plan(problem, estimate_memory(problem, model), model_bytes(problem, model), steps)


def _figures(made: _Plan) -> dict[str, Any]:
    memory = made.memory
    return {
        "problem": asdict(made.problem),
        "memory": {
            "peak": round(memory.peak),
            "items": {name: round(value) for name, value in memory.items.items()},
            "passing": {memory.phase: round(memory.passing)},
        },
        "disk": round(made.disk),
        "seconds": {
            "total": made.seconds,
            "steps": {step.name: step.seconds for step in made.steps},
        },
    }


def _shown(made: _Plan, name: str | None) -> str:
    problem, memory = made.problem, made.memory
    rows = "texts" if problem.kind == "text" else f"{problem.kind} rows"
    if problem.several:
        rows = f"pairs of {rows} and labels"
    of = f"{problem.features:,} features"
    if problem.kind == "text":
        of = f"{problem.nonzeros:.0f} n-grams each"
    items = [*memory.items.items(), (f"while {memory.phase}", memory.passing)]
    lines = [(f"  {item}", f"{size(value):>8}") for item, value in items]
    lines.append(("  peak", f"{size(memory.peak):>8}"))
    times = [(f"  {step.name}", f"{duration(step.seconds):>8}") for step in made.steps]
    times.append(("  without an early stop", f"{duration(made.seconds):>8}"))
    return "\n".join(
        [
            f"{name + ': ' if name else ''}{problem.rows:,} {rows}, {of}, "
            f"{problem.classes:,} classes",
            "",
            "memory",
            table(lines),
            "",
            "time on this machine, roughly",
            table(times),
            "",
            f"model on disk: {size(made.disk)}",
        ]
    )


def _warn_of_size(made: _Plan, quiet: bool) -> None:
    from extremax.planning.memory import available_bytes

    free = available_bytes()
    if free is not None and made.memory.peak > free and not quiet:
        warn(f"this machine has {size(free)} free: training would not fit")
