"""``extremax plan``: estimate memory and time of a training run before it starts."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.console import counting, print_result, table, warn
from extremax.cli.options import LabeledInput, Printed, argument, count, option
from extremax.cli.training import Training
from extremax.errors import ArgumentError, DataError
from extremax.report.formatting import duration, size

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.planning import Memory, Step, Workload

# Rows read as a sample; more of texts, to measure how the vocabulary grows.
_SAMPLE, _TEXTS = 2000, 20_000
# Attributes of a `Workload` that --json shows.
_SIZES = ("rows", "features", "classes", "nonzeros", "row_bytes", "kind", "multilabel")


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


@dataclass(frozen=True, kw_only=True)
class PlannedInput(LabeledInput):
    """The rows that would be trained on, unless their sizes are given."""

    file: Path | None = argument(  # type: ignore[assignment]
        "FILE",
        "File of rows with labels; without it, give --rows, --features and --classes.",
        default=None,
    )
    rows: int | None = count(None, "Without FILE: number of rows.")
    features: int | None = count(None, "Without FILE: number of dense features.")
    classes: int | None = count(None, "Without FILE: number of classes.")


@dataclass(frozen=True, kw_only=True)
class NoOutputs:
    """Options of `extremax train` that have no effect on a plan."""

    output: Path | None = option(None, "", "--output", "-o", hidden=True)
    checkpoint: Path | None = option(None, "", hidden=True)
    picture: Path | None = option(None, "", hidden=True)
    label_texts: Path | None = option(None, "", hidden=True)
    force: bool = option(False, "", "--force", hidden=True)


def plan(settings: Training, source: PlannedInput, printed: Printed, _: NoOutputs) -> None:
    """Estimate the memory and time that `extremax train` would take.

    Memory is computed from sizes; that of a tree on sparse rows is only an estimate. Time comes
    from a trial of a few seconds on this machine and is right within a factor of two or so. The
    options are those of `extremax train`, so replace `train` by `plan` in a command to plan it.
    """
    from extremax.planning import available_bytes

    sizes = (source.rows, source.features, source.classes)
    if (source.file is None) == (None in sizes) or (source.file is not None and any(sizes)):
        raise ArgumentError("give either FILE, or all of --rows, --features and --classes")
    with counting("timing this machine", hidden=source.quiet):
        classifier = settings.classifier()
        if source.file is None:
            estimate = _plan_sizes(settings, classifier, *sizes)
        else:
            estimate = _plan_file(settings, classifier, source)
    print_result(_figures(estimate) if printed.as_json else _text(estimate, source.file))
    free = available_bytes()
    if free is not None and estimate.memory.peak > free and not source.quiet:
        warn(f"training does not fit into memory: {size(free)} are free on this machine")


def _plan_sizes(
    settings: Training, classifier: ExtremeClassifier, rows: Any, features: Any, classes: Any
) -> _Plan:
    import numpy as np

    from extremax.data import Dataset
    from extremax.planning import Workload

    settings.check(Dataset(np.empty((0, features)), None, ()), "the plan")
    return _plan(Workload.dense(rows, features, classes), classifier, [])


def _plan_file(settings: Training, classifier: ExtremeClassifier, source: LabeledInput) -> _Plan:
    from extremax.data.source import resolve
    from extremax.data.streams import is_stream
    from extremax.planning import Step, Workload

    if is_stream(resolve(source.file, **source.options()).path):
        raise DataError("a plan reads the file several times; give a file, not a pipe", source.file)
    sample = source.read(limit=_SAMPLE)
    settings.check(sample, str(source.file))
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


def _reading_seconds(source: LabeledInput, rows: int) -> float:
    """Extrapolate from the times of one row and of a sample; the reader is already loaded."""
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
        "problem": {name: getattr(work, name) for name in _SIZES}
        | {"width": work.encoded.width, "encoded": work.encoded.rows.name},
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


def _text(estimate: _Plan, file: Path | None) -> str:
    work, memory = estimate.work, estimate.memory
    rows = f"pairs of {work.name} and labels" if work.multilabel else work.name
    n_grams = f"{work.nonzeros:.0f} n-grams each"
    features = n_grams if work.n_hashed else f"{work.features:,} features"
    if work.kind == "sequences":
        features = f"{work.nonzeros:.1f} items each"
    items = [*memory.items.items(), (f"while {memory.phase}", memory.passing)]
    lines = [(f"  {item}", f"{size(value):>8}") for item, value in items]
    lines.append(("  peak", f"{size(memory.peak):>8}"))
    times = [(f"  {step.name}", f"{duration(step.seconds):>8}") for step in estimate.steps]
    times.append(("  total without early stopping", f"{duration(estimate.seconds):>8}"))
    title = f"{work.rows:,} {rows}, {features}, {work.classes:,} classes"
    return (
        f"{f'{file}: ' if file else ''}{title}\n\n"
        f"memory\n{table(lines)}\n\n"
        f"time on this machine, roughly\n{table(times)}\n\n"
        f"model on disk: {size(estimate.disk)}"
    )
