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
_KINDS = {"dense": "dense rows", "sparse": "sparse rows", "text": "texts"}


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
    say(f"read {source.path}: {len(data):,} {_KINDS[data.kind]} in {seconds}")
    if data.n_dropped:
        say(f"  dropped {data.n_dropped:,} more rows without a label")
    if source.keep_labels is KeepLabels.all:
        n_pairs = len(data.label_values)
        say(f"  {data.n_multilabel:,} with several labels: {n_pairs:,} pairs of row and label")
    elif data.n_multilabel:
        say(f"  {data.n_multilabel:,} with several labels: kept the {source.keep_labels.value}")
    width = "" if data.kind == "text" else f", {data.features.shape[1]:,} features"
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
        yield start, matched(block, encoder.input_kind, encoder.n_features_in_, start)
        start += len(block) + block.n_dropped


def matched(data: Dataset, kind: str, width: int | None, start: int = 0) -> Dataset:
    """Give sparse rows ``width`` columns, as the training data have; check texts against numbers.

    A sparse file may use fewer features than the training data; the missing columns are zero.

    kind, width:  kind of the training data, and their number of features.
    start:        number of rows before these in the file.
    """
    from scipy import sparse

    path = data.source[0]
    if (data.kind == "text") != (kind == "text"):
        raise DataError(
            f"this file contains {_KINDS[data.kind]}, but the training data are {_KINDS[kind]}",
            path,
        )
    if data.kind != "sparse" or width is None:
        return data
    features = data.features
    beyond = (features.indices >= width).nonzero()[0]
    if len(beyond):
        row = int(features.indptr.searchsorted(beyond[0], side="right"))
        raise DataError(
            f"row {start + row:,} has a value for feature {int(features.indices[beyond[0]]) + 1:,} "
            f"(counted from 1), but the training data have {width:,} features",
            path,
        )
    arrays = (features.data, features.indices, features.indptr)
    resized = sparse.csr_matrix(arrays, shape=(features.shape[0], width), copy=False)
    return replace(data, features=resized)


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
