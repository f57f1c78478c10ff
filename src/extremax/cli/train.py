"""``extremax train``: train a model on a file."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli import options
from extremax.cli.console import figures, say, warn
from extremax.cli.errors import Stopped
from extremax.cli.names import Names
from extremax.cli.options import LabeledInput, nearest_existing
from extremax.cli.rows import errors_name, n_classes, read
from extremax.cli.training import Training
from extremax.errors import ArgumentError, ExtremaxError, ModelFileError
from extremax.report import check_picture
from extremax.report.formatting import duration, size

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What training writes."""

    output: Path = options.output(
        MISSING, "Folder to save the model in.", "--output", "-o", folder=True
    )
    force: bool = options.option(False, "Replace a model that is already in DIR.", "--force")
    checkpoint: Path | None = options.output(
        None,
        "Folder for the state of the run. If the run is stopped, rerun the same command to resume. "
        "Removed when the model is saved.",
        folder=True,
    )
    picture: Path | None = options.output(
        None, "Plot the learning curve to a .png, .pdf or .svg file."
    )

    def check(self, validation_fraction: float) -> None:
        """Raise an error now if something could not be written after training."""
        from extremax.storage.folder import model_folder

        folder = model_folder(self.output)
        folder.check_ours()
        if folder.exists() and not self.force:
            raise ModelFileError(
                f"{self.output} already contains a model; use --force to replace it"
            )
        if self.checkpoint is not None and self.checkpoint.resolve() == self.output.resolve():
            raise ArgumentError("--checkpoint and --output must be different folders")
        if self.picture is not None:
            if validation_fraction == 0:
                raise ArgumentError(
                    "--picture plots held-out figures, so it needs --validation-fraction > 0"
                )
            check_picture(self.picture)

    def check_space(self, n_bytes: float) -> None:
        """Raise an error if there is no space to save a model of this size or its checkpoint."""
        # A checkpoint is at its largest while it is replaced: the old version, the new version, and
        # the best head so far.
        for folder, copies in ((self.output, 1), (self.checkpoint, 3)):
            if folder is None:
                continue
            needed, free = copies * n_bytes, shutil.disk_usage(nearest_existing(folder)).free
            if needed > free:
                raise ModelFileError(
                    f"{folder} needs about {size(needed)}, but only {size(free)} are free there; "
                    "free some space or choose another disk"
                )


def train(outputs: Outputs, settings: Training, names: Names, source: LabeledInput) -> None:
    """Train on FILE and save the model.

    Ten percent of the rows are held out to report exact log-likelihood and accuracy. The same
    file, options and seed give the same model for any number of threads.
    """
    start = time.perf_counter()
    from extremax.planning import Workload, model_bytes
    from extremax.training.checkpoint import Checkpoint
    from extremax.training.progress import Progress

    outputs.check(settings.validation_fraction)
    # stderr is None if it was closed.
    classifier = settings.classifier(verbose=sys.stderr is not None and not source.quiet)
    data = read(source)
    settings.check(data, source.name)
    texts = names.read(data)
    work = Workload.of(data, n_classes(data), settings.encoder())
    outputs.check_space(model_bytes(work, classifier))
    with errors_name(source.name):
        _fit(classifier, data, texts, outputs.checkpoint)
    with Progress(classifier.verbose) as progress:
        progress.phase("saving the model")
        classifier.save(outputs.output)
        Checkpoint(outputs.checkpoint).remove()
    if not source.quiet:
        _report(classifier, outputs.output)
        wall, trained = time.perf_counter() - start, classifier.history_[-1]["seconds"]
        say(f"took {duration(wall)} in all, {duration(trained)} of it training")
    if outputs.picture is not None:
        _draw(classifier, Path(source.name).name, outputs.picture, source.quiet)


def _fit(
    classifier: ExtremeClassifier,
    data: Dataset,
    label_texts: dict[Any, str] | None,
    checkpoint: Path | None,
) -> None:
    from extremax.training.checkpoint import Checkpoint

    try:
        classifier.fit(data.features, data.labels, label_texts=label_texts, checkpoint=checkpoint)
    except KeyboardInterrupt as error:
        if isinstance(error, ExtremaxError):
            # Interrupted with a checkpoint, and the message says so.
            raise
        hint = "use --checkpoint DIR to make a run resumable"
        if checkpoint is not None:
            hint = "the first checkpoint had not been written yet"
            if Checkpoint(checkpoint).seed() is not None:
                hint = f"rerun the same command to resume from {checkpoint}"
        number = getattr(error, "number", signal.SIGINT)
        raise Stopped(number, f"stopped, nothing was saved; {hint}") from error


def _report(classifier: ExtremeClassifier, output: Path) -> None:
    from extremax.storage.folder import model_folder

    runs = by_model(classifier.history_, classifier.evaluations_)
    before = 0.0
    for name, (history, start) in runs.items():
        kept, so_far = kept_record(history, start[:1]), history[-1]["seconds"]
        training = f"{duration(so_far - before)} of training"
        before, of = so_far, f"{name}, " if len(runs) > 1 else ""
        if kept is None:
            say(f"{of}no rows were held out (epochs: {len(history)}, {training})")
        elif not kept["epoch"]:
            say(f"{of}kept the start: {training} did not improve it")
        else:
            say(f"{of}kept epoch {kept['epoch']} of {len(history)}, {training}")
    if classifier.validation_ is not None:
        say(f"held out: {held_out_figures(classifier.validation_)}")
    say(f"saved the model: {output} ({size(model_folder(output).nbytes())})")


def held_out_figures(validation: dict[str, Any]) -> str:
    """Format the figures of a finished model on rows that were held out of its training data."""
    return f"{figures(validation)} (finished model, {validation['rows']:,} rows)"


def _draw(classifier: ExtremeClassifier, name: str, picture: Path, quiet: bool) -> None:
    from extremax.report import learning_curves

    if kept_record(classifier.history_) is None:
        warn("no learning curve: there are too few rows to hold any out")
        return
    runs = by_model(classifier.history_, classifier.evaluations_)
    # Where no epoch was better than the start, the ring belongs there.
    curves = {
        of if len(runs) > 1 else name: [*(r for r in start if r.get("epoch") == 0), *history]
        for of, (history, start) in runs.items()
    }
    learning_curves(curves, picture)
    if not quiet:
        say(f"drew the learning curve: {picture}")


def by_model(
    history: list[dict[str, Any]], evaluations: list[dict[str, Any]]
) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return history and evaluations of each model by its name, of which there may be several."""
    runs: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for place, records in enumerate((history, evaluations)):
        for record in records:
            name = f"model {record.get('model', 0) + 1}"
            runs.setdefault(name, ([], []))[place].append(record)
    return runs


def kept_record(
    history: list[dict[str, Any]], start: Sequence[dict[str, Any]] = ()
) -> dict[str, Any] | None:
    """Return the record of the head that was kept (epoch 0 is the start), or None if no rows were
    held out."""
    measured = [record for record in (*start, *history) if "log_likelihood" in record]
    return max(measured, key=lambda record: record["log_likelihood"], default=None)
