"""Read files in the form that training or a trained model expects."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.console import say
from extremax.cli.options import Input, LabeledInput
from extremax.errors import ArgumentError, DataError
from extremax.report.formatting import duration

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset

# Rows per block: enough to keep all threads busy, and few enough to show results early.
ROWS = 4096


def read(source: LabeledInput) -> Dataset:
    """Read a whole file and, unless it is to be quiet, print its size."""
    start = time.perf_counter()
    data = source.read()
    if source.quiet:
        return data
    seconds = duration(time.perf_counter() - start)
    n_files = len(data.source) - (source.labels is not None)
    files = source.name if n_files == 1 else f"{source.name} ({n_files} files)"
    say(f"read {files}: {len(data):,} {data.table.name} in {seconds}")
    if data.n_dropped and data.kind == "sequences":
        say(f"  ignored {data.n_dropped:,} sessions of one item, which nothing follows")
    elif data.n_dropped:
        say(f"  dropped {data.n_dropped:,} more rows without a label")
    if source.keep_labels == "all":
        n_pairs = len(data.label_values)
        say(f"  {data.n_multilabel:,} with several labels: {n_pairs:,} pairs of row and label")
    elif data.n_multilabel:
        say(f"  {data.n_multilabel:,} with several labels: kept the {source.keep_labels}")
    n_features = data.table.n_features
    width = "" if n_features is None else f", {n_features:,} features"
    say(f"  {n_classes(data):,} classes{width}")
    return data


def n_classes(data: Dataset) -> int:
    """Return the number of classes that training would make."""
    import numpy as np

    labels = data.class_values
    return len(set(labels.tolist()) if labels.dtype == object else np.unique(labels))


def blocks(
    classifier: ExtremeClassifier, source: Input, *, unlabeled: bool = False
) -> Iterator[tuple[int, Dataset]]:
    """Stream (number of the first row in its file, block) for a model; blocks may be empty.

    ``block.source[0]`` is the file.
    """
    encoder, start, file = classifier.model_.encoder, 0, None
    for block in source.blocks(ROWS, unlabeled=unlabeled):
        start = start if block.source[0] == file else 0
        file = block.source[0]
        features = block.table.matched(encoder.input_name, encoder.n_features_in_, file, start)
        yield start, replace(block, features=features)
        start += len(block) + block.n_dropped


@contextmanager
def errors_name(path: Path | str, start: int = 0) -> Iterator[None]:
    """Add the file to errors that the library raises about its rows.

    start:  number of rows before the block. The library counts rows and columns from 0, and rows
            from the start of the block; messages count those of the file from 1.
    """
    offsets = {"row": start + 1, "column": 1}
    try:
        yield
    except DataError:
        raise
    except ArgumentError as error:
        message = re.sub(
            r"\b(row|column) (\d+)",
            lambda place: f"{place[1]} {int(place[2]) + offsets[place[1]]}",
            str(error),
        )
        raise DataError(message, path) from error


def no_rows(n_dropped: int, name: str) -> DataError:
    """The error about files without rows that have a label."""
    return DataError("no row has a label" if n_dropped else "the file has no rows", name)


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
