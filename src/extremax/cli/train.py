"""``extremax train``: a file to a model."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extremax.cli import training as t
from extremax.cli.console import duration, say, size, warn
from extremax.cli.errors import Stopped
from extremax.cli.options import (
    File,
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
)

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset

_KINDS = {"dense": "dense rows", "sparse": "sparse rows", "text": "texts"}


def train(
    file: File,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="The folder to save the model in."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A folder for the state of the run: stopped, the same command goes on from it. "
            "Emptied when the model is saved.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the learning curve: a .png, .pdf or .svg."),
    ] = None,
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
) -> None:
    """Train on FILE and save the model.

    Ten per cent of the rows are held out to report the exact log-likelihood and accuracy. The
    same file, options and seed give the same model on any number of threads.
    """
    settings = t.Training(
        objective, noise, tree_components, bag_size, n_negatives, learning_rate, epochs,
        max_seconds, validation_fraction, components, analyzer, ngrams, seed, threads,
    )  # fmt: skip
    # Whatever can go wrong at the end should go wrong at the beginning.
    _check_output(output, force)
    for place in (output, checkpoint, picture):
        if place is not None:
            _check_writable(place)
    if picture is not None:
        _check_picture(picture, validation_fraction)
    source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
    model = settings.classifier(verbose=not quiet)
    data = _read(source, quiet)
    settings.check(data.kind, str(file))
    _check_space(data, model, settings, output, checkpoint)
    _fit(model, data, checkpoint)
    model.save(output)
    if checkpoint is not None:
        _empty(checkpoint)
    if not quiet:
        _report(model, output)
    if picture is not None:
        _draw(model, file.name, picture, quiet)


def _check_output(folder: Path, force: bool) -> None:
    from extremax.errors import ModelFileError

    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; a model is saved as a folder")
    if (folder / "model.json").exists() and not force:
        raise ModelFileError(f"{folder} holds a model already; --force replaces it")


def _check_writable(path: Path) -> None:
    there = _existing(path)
    there = there if there.is_dir() else there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(13, "no permission to write here", str(there))


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _check_picture(path: Path, validation_fraction: float) -> None:
    from extremax.report import check_picture

    if validation_fraction == 0:
        raise ValueError("--picture draws held-out figures; it needs --validation-fraction > 0")
    check_picture(path)


def _read(source: Input, quiet: bool) -> Dataset:
    start = time.perf_counter()
    data = source.read()
    if quiet:
        return data
    took = duration(time.perf_counter() - start)
    say(f"read {source.path}: {len(data):,} {_KINDS[data.kind]} in {took}")
    if data.n_dropped:
        say(f"  {data.n_dropped:,} more without a label were dropped")
    if source.keep_labels is KeepLabels.all:
        n_pairs = len(data.label_values)
        say(f"  {data.n_multilabel:,} have several labels: {n_pairs:,} pairs of row and label")
    elif data.n_multilabel:
        say(f"  {data.n_multilabel:,} with several labels keep the {source.keep_labels.value}")
    width = "" if data.kind == "text" else f", {data.features.shape[1]:,} features"
    say(f"  {_n_classes(data):,} classes{width}")
    return data


def _n_classes(data: Dataset) -> int:
    import numpy as np

    labels = data.label_values
    return len(set(labels.tolist()) if labels.dtype == object else np.unique(labels))


def _check_space(
    data: Dataset,
    model: ExtremeClassifier,
    settings: t.Training,
    output: Path,
    checkpoint: Path | None,
) -> None:
    """Refuse to train what there is no room to save."""
    import shutil

    from extremax.errors import ModelFileError
    from extremax.planning import Problem, model_bytes

    problem = Problem.of(data, _n_classes(data), settings.encoder())
    for folder, share in ((output, 1.0), (checkpoint, 1.5)):
        if folder is None:
            continue
        # A checkpoint is a model without its encoder, beside the best head so far.
        need = share * model_bytes(problem, model)
        free = shutil.disk_usage(_existing(folder)).free
        if need > free:
            raise ModelFileError(
                f"{folder}: about {size(need)} are needed and {size(free)} are free there; "
                "make room or choose another disk"
            )


def _fit(model: ExtremeClassifier, data: Dataset, checkpoint: Path | None) -> None:
    from extremax.training.checkpoint import Interrupted

    try:
        model.fit(data.features, data.labels, checkpoint=checkpoint)
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        number = getattr(error, "number", 2)
        hint = "--checkpoint DIR lets the same command go on where it stopped"
        if checkpoint is not None:
            hint = "it had not come to the first checkpoint"
        raise Stopped(number, f"stopped, nothing was saved; {hint}") from error


def _empty(checkpoint: Path) -> None:
    """Remove the run's state: the model has all of it."""
    for name in ("checkpoint.safetensors", "best.safetensors"):
        (checkpoint / name).unlink(missing_ok=True)
    if checkpoint.exists() and not any(checkpoint.iterdir()):
        checkpoint.rmdir()


def _report(model: ExtremeClassifier, output: Path) -> None:
    from extremax.cli.info import size_on_disk

    history = model.history_
    kept = kept_record(history, model.looks_[:1])
    took = f"{duration(history[-1]['seconds'])} of training"
    if kept is None:
        say(f"no rows were held out (epochs: {len(history)}, {took})")
    elif not kept["epoch"]:
        say(f"held out: {figures(kept)} (the start: {took} made it no better)")
    else:
        say(f"held out: {figures(kept)} (epoch {kept['epoch']} of {len(history)}, {took})")
    say(f"saved the model: {output} ({size(size_on_disk(output))})")


def _draw(model: ExtremeClassifier, name: str, picture: Path, quiet: bool) -> None:
    from extremax.report import learning_curves

    if kept_record(model.history_) is None:
        warn("no learning curve: there are too few rows to hold any out")
        return
    learning_curves({name: model.history_}, picture)
    if not quiet:
        say(f"drew the learning curve: {picture}")


def kept_record(
    history: list[dict[str, Any]], start: Sequence[dict[str, Any]] = ()
) -> dict[str, Any] | None:
    """The record of the head that is kept, if anything was held out; epoch 0 is the start."""
    measured = [record for record in (*start, *history) if "log_likelihood" in record]
    return max(measured, key=lambda record: record["log_likelihood"], default=None)


def figures(record: dict[str, Any]) -> str:
    """Held-out figures in words."""
    return f"log-likelihood {record['log_likelihood']:.3f}, accuracy {record['accuracy']:.1%}"
