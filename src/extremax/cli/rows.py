"""Read files in the form that training or a trained model expects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.console import duration, say
from extremax.cli.options import Input, KeepLabels
from extremax.errors import DataError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset

# Rows per block: enough to keep all threads busy, and few enough to show results early.
ROWS = 4096


def load(folder: Path, threads: int | None) -> ExtremeClassifier:
    """Load a model. It predicts with ``threads`` threads, whatever number it was trained with."""
    from extremax import ExtremeClassifier

    classifier = ExtremeClassifier.load(folder)
    classifier.n_jobs = threads
    return classifier


def read(source: Input, quiet: bool) -> Dataset:
    """Read a whole file and, unless ``quiet``, print its size."""
    start = time.perf_counter()
    data = source.read()
    if quiet:
        return data
    seconds = duration(time.perf_counter() - start)
    say(f"read {source.path}: {len(data):,} {data.table.name} in {seconds}")
    if data.n_dropped:
        say(f"  dropped {data.n_dropped:,} more rows without a label")
    if source.keep_labels is KeepLabels.all:
        n_pairs = len(data.label_values)
        say(f"  {data.n_multilabel:,} with several labels: {n_pairs:,} pairs of row and label")
    elif data.n_multilabel:
        say(f"  {data.n_multilabel:,} with several labels: kept the {source.keep_labels.value}")
    n_features = data.table.n_features
    width = "" if n_features is None else f", {n_features:,} features"
    say(f"  {n_classes(data):,} classes{width}")
    return data


def n_classes(data: Dataset) -> int:
    """Return the number of distinct labels."""
    import numpy as np

    labels = data.label_values
    return len(set(labels.tolist()) if labels.dtype == object else np.unique(labels))


def blocks(
    classifier: ExtremeClassifier, source: Input, *, unlabeled: bool = False
) -> Iterator[tuple[int, Dataset]]:
    """Stream (number of the first row, block) for a model; blocks may be empty."""
    encoder, start = classifier.model_.encoder, 0
    for block in source.blocks(ROWS, unlabeled=unlabeled):
        path = block.source[0]
        features = block.table.matched(encoder.input_name, encoder.n_features_in_, path, start)
        yield start, replace(block, features=features)
        start += len(block) + block.n_dropped


@contextmanager
def errors_name(path: Path, start: int = 0) -> Iterator[None]:
    """Add the file to errors that the library raises about its rows.

    start:  number of rows before the block, because the library counts rows from its start.
    """
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        place = f"in the block after row {start:,}: " if start else ""
        raise DataError(f"{place}{error}", path) from error


def unknown_labels(classifier: ExtremeClassifier, labels: Any) -> str:
    """Explain why none of the labels of a file is a class of the model."""
    ours, theirs = classifier.classes_[:1].tolist()[0], labels[:1].tolist()[0]
    if isinstance(ours, str) != isinstance(theirs, str):
        names = {True: "strings", False: "numbers"}
        return (
            f"no label is a class of the model: its labels are {names[isinstance(ours, str)]}, "
            f"this file's are {names[isinstance(theirs, str)]}"
        )
    return f"no label is a class of the model, such as {ours!r}; this file has {theirs!r}"
