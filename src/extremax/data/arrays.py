"""Read numpy's ``.npy`` and ``.npz``: dense arrays, or sparse matrices saved by scipy."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from extremax.data.dataset import Dataset
from extremax.data.source import Source
from extremax.data.streams import text_lines
from extremax.errors import DataError
from extremax.labels import LabelLists, one_label_per_row

_FLOATS = (np.float16, np.float32, np.float64)


def load(source: Source) -> Dataset:
    """Read all rows. The features of an ``.npy`` stay on disk until they are used."""
    labels: np.ndarray | LabelLists | None
    features, labels = _load_npy(source) if source.format == "npy" else _load_npz(source)
    if source.labels is not None:
        labels = _read_labels(source.labels)
    if source.unlabeled:
        labels = None
    elif labels is None:
        key = ", or save them under the key y" if source.format == "npz" else ""
        raise DataError(f"no labels; pass the file that holds them as labels={key}", source.path)
    elif len(labels) != features.shape[0]:
        message = f"{len(labels)} labels for the {features.shape[0]} rows of {source.path}"
        raise DataError(message, source.labels or source.path)
    elif source.keep_labels == "all":
        labels = one_label_per_row(labels)
    if source.limit is not None:
        features = features[: source.limit]
        labels = None if labels is None else labels[: source.limit]
    return Dataset(features, labels, source.files)


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows: slices of what `load` returns."""
    dataset = load(source)
    for start in range(0, len(dataset), rows):
        block = slice(start, start + rows)
        labels = None if dataset.labels is None else dataset.labels[block]
        yield Dataset(dataset.features[block], labels, dataset.source)


def _load_npy(source: Source) -> tuple[Any, None]:
    return _checked_features(_open_npy(source.path), source.path), None


def _load_npz(source: Source) -> tuple[Any, np.ndarray | None]:
    path = source.path
    try:
        with np.load(path) as archive:
            keys = set(archive.files)
            labels = None
            if "y" in keys and source.labels is None and not source.unlabeled:
                labels = _checked_labels(archive["y"], path)
            if "X" in keys:
                return _checked_features(archive["X"], path), labels
        if "format" not in keys:
            message = "neither an array X nor a scipy.sparse matrix; the file has the keys "
            raise DataError(message + ", ".join(sorted(keys)), path)
        matrix = sparse.csr_matrix(sparse.load_npz(path), dtype=np.float32)
        # Compiled code would follow an index out of range to memory beyond its arrays.
        matrix.check_format(full_check=True)
    except DataError:
        raise
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"not a readable .npz: {error}", path) from error
    matrix.sum_duplicates()
    return matrix, labels


def _open_npy(path: Path) -> np.ndarray:
    try:
        # Not np.load, which also accepts zip archives and pickles.
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        reason = str(error)
        if "object" in reason.lower():
            reason = "it holds Python objects (a pickle), which can run code when loaded"
        raise DataError(f"not a readable .npy: {reason}", path) from error


def _checked_features(features: np.ndarray, path: Path) -> np.ndarray:
    if features.ndim != 2:
        message = f"features have {features.ndim} dimensions, expected two: (rows, features)"
        raise DataError(message, path)
    if features.dtype not in _FLOATS:
        message = f"features have dtype {features.dtype}; save them as float32, float64 or float16"
        raise DataError(message, path)
    return features


def _checked_labels(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.ndim != 1:
        raise DataError(f"labels have {labels.ndim} dimensions, expected one", path)
    if labels.dtype.kind in "iu":
        if labels.dtype == np.uint64 and labels.size and labels.max() > np.iinfo(np.int64).max:
            raise DataError("labels exceed the range of int64", path)
        return np.asarray(labels, dtype=np.int64)
    if labels.dtype.kind == "U":
        return np.asarray(labels)
    raise DataError(f"labels have dtype {labels.dtype}, expected integers or strings", path)


def _read_labels(path: Path) -> np.ndarray:
    """Read labels from an ``.npy``, or from a text file with one label per line."""
    if path.suffix.lower() == ".npy":
        return _checked_labels(_open_npy(path), path)
    labels = []
    for number, label in text_lines(path):
        if not label:
            raise DataError("empty line, expected a label", path, number, 1)
        labels.append(label)
    return np.array(labels, dtype=object)
