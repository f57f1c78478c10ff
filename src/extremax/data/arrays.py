"""numpy's ``.npy`` and ``.npz``: dense arrays, or sparse matrices saved by scipy."""

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
from extremax.label_lists import LabelLists, one_each

_FLOATS = (np.float16, np.float32, np.float64)


def load(source: Source) -> Dataset:
    """The file's rows; those of ``.npy`` stay on disk until they are used."""
    labels: np.ndarray | LabelLists | None
    features, labels = _load_npy(source) if source.format == "npy" else _load_npz(source)
    if source.labels is not None:
        labels = _read_labels(source.labels)
    if source.unlabelled:
        labels = None
    elif labels is None:
        key = " or save them under the key y" if source.format == "npz" else ""
        raise DataError(f"no labels; name the file that has them (labels=){key}", source.path)
    elif len(labels) != features.shape[0]:
        message = f"{len(labels)} labels for the {features.shape[0]} rows of {source.path}"
        raise DataError(message, source.labels or source.path)
    elif source.keep_labels == "all":
        labels = one_each(labels)
    if source.limit is not None:
        features = features[: source.limit]
        labels = None if labels is None else labels[: source.limit]
    return Dataset(features, labels, source.files)


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of ``rows`` rows: slices of the whole, which for ``.npy`` is on disk."""
    whole = load(source)
    for start in range(0, len(whole), rows):
        part = slice(start, start + rows)
        labels = None if whole.labels is None else whole.labels[part]
        yield Dataset(whole.features[part], labels, whole.source)


def _load_npy(source: Source) -> tuple[Any, None]:
    return _checked_dense(_open_npy(source.path), source.path), None


def _load_npz(source: Source) -> tuple[Any, np.ndarray | None]:
    path = source.path
    try:
        with np.load(path) as archive:
            keys = set(archive.files)
            labels = None
            if "y" in keys and source.labels is None and not source.unlabelled:
                labels = _checked_labels(archive["y"], path)
            if "X" in keys:
                return _checked_dense(archive["X"], path), labels
        if "format" not in keys:
            message = "neither an array X nor a scipy.sparse matrix; it has the keys "
            raise DataError(message + ", ".join(sorted(keys)), path)
        matrix = sparse.csr_matrix(sparse.load_npz(path), dtype=np.float32)
        # An index out of range would make compiled code read beyond its arrays.
        matrix.check_format(full_check=True)
    except DataError:
        raise
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"not a readable .npz: {error}", path) from error
    matrix.sum_duplicates()
    return matrix, labels


def _open_npy(path: Path) -> np.ndarray:
    try:
        # Not np.load, which takes a zip or a pickle too.
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        reason = str(error)
        if "object" in reason.lower():
            reason = "it is no plain array but Python objects (a pickle), which could run code"
        raise DataError(f"not a readable .npy: {reason}", path) from error


def _checked_dense(features: np.ndarray, path: Path) -> np.ndarray:
    if features.ndim != 2:
        message = f"features have {features.ndim} dimensions; they should have two (rows, features)"
        raise DataError(message, path)
    if features.dtype not in _FLOATS:
        message = f"features of type {features.dtype}; save them as float32, float64 or float16"
        raise DataError(message, path)
    return features


def _checked_labels(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.ndim != 1:
        raise DataError(f"labels have {labels.ndim} dimensions; they should have one", path)
    if labels.dtype.kind in "iu":
        if labels.dtype == np.uint64 and labels.size and labels.max() > np.iinfo(np.int64).max:
            raise DataError("labels beyond the range of int64", path)
        return np.asarray(labels, dtype=np.int64)
    if labels.dtype.kind == "U":
        return np.asarray(labels)
    raise DataError(f"labels of type {labels.dtype}; they should be integers or strings", path)


def _read_labels(path: Path) -> np.ndarray:
    """Labels from ``.npy`` or, in any other file, one a line."""
    if path.suffix.lower() == ".npy":
        return _checked_labels(_open_npy(path), path)
    labels = []
    for number, label in text_lines(path):
        if not label:
            raise DataError("an empty line where a label should be", path, number, 1)
        labels.append(label)
    return np.array(labels, dtype=object)
