"""``extremax plan``: estimate memory and time of a training run before it starts."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
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
    """The estimates: bytes in memory and on disk, seconds per step.

    extrapolated:  whether the sizes are those of the first part of the files.
    """

    work: Workload
    memory: Memory
    disk: float
    steps: list[Step]
    extrapolated: bool = False

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class PlannedInput(LabeledInput):
    """The rows that would be trained on, unless their sizes are given."""

    files: list[Path] | None = argument(  # type: ignore[assignment]
        "FILE",
        "File of rows with labels, or several; without it, give --rows, --features and --classes.",
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

    Memory is computed from sizes; that of a tree on sparse rows is only an estimate, and sizes of
    large text files are extrapolated from their first part. Time comes from a trial of a few
    seconds on this machine and is right within a factor of two or so. The options are those of
    `extremax train`, so replace `train` by `plan` in a command to plan it.
    """
    from extremax.planning import available_bytes

    sizes = (source.rows, source.features, source.classes)
    given = bool(source.files)
    if given != (None in sizes) or (given and any(sizes)):
        raise ArgumentError("give either FILE, or all of --rows, --features and --classes")
    with counting("timing this machine", hidden=source.quiet):
        classifier = settings.classifier()
        if not given:
            estimate = _plan_sizes(settings, classifier, *sizes)
        else:
            estimate = _plan_file(settings, classifier, source)
    name = source.name if given else None
    print_result(_figures(estimate) if printed.as_json else _text(estimate, name))
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
    from extremax.data.source import resolve_all
    from extremax.data.streams import is_stream
    from extremax.planning import Step, Workload, survey

    for one in resolve_all(source.files, **source.options()):
        if is_stream(one.path):
            message = "a plan reads the file several times; give a file, not a pipe"
            raise DataError(message, one.path)
    sample = source.read(limit=_SAMPLE)
    settings.check(sample, source.name)
    if sample.table.n_features is None:
        # How fast new words appear takes more rows to see.
        sample = source.read(limit=_TEXTS)
    summary, is_estimate = survey(source.files, source.options())
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
    return replace(_plan(work, classifier, steps), extrapolated=is_estimate)


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
        | {"width": work.encoded.width, "encoded": work.encoded.rows.name}
        | {"extrapolated": estimate.extrapolated},
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
    n_grams = f"{work.nonzeros:.0f} n-grams each"
    features = n_grams if work.n_hashed else f"{work.features:,} features"
    if work.kind == "sequences":
        features = f"{work.nonzeros:.1f} items each"
    items = [*memory.items.items(), (f"while {memory.phase}", memory.passing)]
    lines = [(f"  {item}", f"{size(value):>8}") for item, value in items]
    lines.append(("  peak", f"{size(memory.peak):>8}"))
    times = [(f"  {step.name}", f"{duration(step.seconds):>8}") for step in estimate.steps]
    times.append(("  total without early stopping", f"{duration(estimate.seconds):>8}"))
    about = "about " if estimate.extrapolated else ""
    n_rows, n_classes = (_rounded(n, estimate) for n in (work.rows, work.classes))
    title = f"{about}{n_rows:,} {rows}, {features}, {about}{n_classes:,} classes"
    return (
        f"{f'{name}: ' if name else ''}{title}\n\n"
        f"memory\n{table(lines)}\n\n"
        f"time on this machine, roughly\n{table(times)}\n\n"
        f"model on disk: {size(estimate.disk)}"
    )


def _rounded(number: int, estimate: _Plan) -> int:
    """Two digits of what is extrapolated: no more are known."""
    return int(float(f"{number:.2g}")) if estimate.extrapolated else number
