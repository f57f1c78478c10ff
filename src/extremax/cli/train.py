"""``extremax train``: train a model on a file."""

from __future__ import annotations

import os
import signal
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
from extremax.cli.rows import n_classes, read

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset


def train(
    file: File,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to save the model in."),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model that is already in DIR.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the state of the run. If the run is stopped, rerun the same command "
            "to resume. Removed when the model is saved.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot the learning curve to a .png, .pdf or .svg file."),
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

    Ten percent of the rows are held out to report exact log-likelihood and accuracy. The same
    file, options and seed give the same model for any number of threads.
    """
    settings = t.Training(
        objective, noise, tree_components, bag_size, n_negatives, learning_rate, epochs,
        max_seconds, validation_fraction, components, analyzer, ngrams, seed, threads,
    )  # fmt: skip
    # Check whatever could fail after training before it starts.
    _check_output(output, force)
    if checkpoint is not None and checkpoint.absolute() == output.absolute():
        raise ValueError("--checkpoint and --output must be different folders")
    for path in (output, checkpoint, picture):
        if path is not None:
            _check_writable(path)
    if picture is not None:
        _check_picture(picture, validation_fraction)
    source = Input(file, format, labels, label_column, text_column, zero_based, keep_labels)
    classifier = settings.classifier(verbose=not quiet)
    data = read(source, quiet)
    settings.check(data, str(file))
    _check_space(data, classifier, settings, output, checkpoint)
    _fit(classifier, data, checkpoint)
    classifier.save(output)
    if checkpoint is not None:
        from extremax.training.checkpoint import Checkpoint

        Checkpoint(checkpoint, {}).remove()
    if not quiet:
        _report(classifier, output)
    if picture is not None:
        _draw(classifier, file.name, picture, quiet)


def _check_output(folder: Path, force: bool) -> None:
    from extremax.errors import ModelFileError
    from extremax.storage import model_folder

    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; --output must be a folder")
    if model_folder(folder).exists() and not force:
        raise ModelFileError(f"{folder} already contains a model; use --force to replace it")


def _check_writable(path: Path) -> None:
    folder = _existing(path)
    folder = folder if folder.is_dir() else folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "no permission to write here", str(folder))


def _existing(path: Path) -> Path:
    """Return the path, or its nearest parent folder that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _check_picture(path: Path, validation_fraction: float) -> None:
    from extremax.report import check_picture

    if validation_fraction == 0:
        raise ValueError("--picture plots held-out figures, so it needs --validation-fraction > 0")
    check_picture(path)


def _check_space(
    data: Dataset,
    classifier: ExtremeClassifier,
    settings: t.Training,
    output: Path,
    checkpoint: Path | None,
) -> None:
    """Raise an error if there is no space to save the model or the checkpoint."""
    import shutil

    from extremax.errors import ModelFileError
    from extremax.planning import Workload, model_bytes

    work = Workload.of(data, n_classes(data), settings.encoder())
    # A checkpoint is at its largest while it is replaced: the old version, the new version, and
    # the best head so far.
    for folder, copies in ((output, 1), (checkpoint, 3)):
        if folder is None:
            continue
        needed = copies * model_bytes(work, classifier)
        free = shutil.disk_usage(_existing(folder)).free
        if needed > free:
            raise ModelFileError(
                f"{folder} needs about {size(needed)}, but only {size(free)} are free there; "
                "free some space or choose another disk"
            )


def _fit(classifier: ExtremeClassifier, data: Dataset, checkpoint: Path | None) -> None:
    from extremax.training.checkpoint import Interrupted

    try:
        classifier.fit(data.features, data.labels, checkpoint=checkpoint)
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        hint = "use --checkpoint DIR to make a run resumable"
        if checkpoint is not None:
            hint = "the first checkpoint had not been written yet"
        number = getattr(error, "number", signal.SIGINT)
        raise Stopped(number, f"stopped, nothing was saved; {hint}") from error


def _report(classifier: ExtremeClassifier, output: Path) -> None:
    from extremax.storage import model_folder

    history = classifier.history_
    kept = kept_record(history, classifier.evaluations_[:1])
    training = f"{duration(history[-1]['seconds'])} of training"
    if kept is None:
        say(f"no rows were held out (epochs: {len(history)}, {training})")
    elif not kept["epoch"]:
        say(f"held out: {figures(kept)} (before training; {training} did not improve it)")
    else:
        say(f"held out: {figures(kept)} (epoch {kept['epoch']} of {len(history)}, {training})")
    say(f"saved the model: {output} ({size(model_folder(output).nbytes())})")


def _draw(classifier: ExtremeClassifier, name: str, picture: Path, quiet: bool) -> None:
    from extremax.report import learning_curves

    if kept_record(classifier.history_) is None:
        warn("no learning curve: there are too few rows to hold any out")
        return
    learning_curves({name: classifier.history_}, picture)
    if not quiet:
        say(f"drew the learning curve: {picture}")


def kept_record(
    history: list[dict[str, Any]], start: Sequence[dict[str, Any]] = ()
) -> dict[str, Any] | None:
    """Return the record of the head that was kept (epoch 0 is the start), or None if no rows were
    held out."""
    measured = [record for record in (*start, *history) if "log_likelihood" in record]
    return max(measured, key=lambda record: record["log_likelihood"], default=None)


def figures(record: dict[str, Any]) -> str:
    """Format held-out log-likelihood and accuracy."""
    return f"log-likelihood {record['log_likelihood']:.3f}, accuracy {record['accuracy']:.1%}"
