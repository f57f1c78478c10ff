"""Read numpy's ``.npy`` and ``.npz``: dense arrays, or sparse matrices saved by scipy."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import sparse

from extremax.checks import check_matrix
from extremax.data.dataset import Dataset
from extremax.data.source import Source
from extremax.data.streams import damage, text_lines
from extremax.errors import ArgumentError, DataError
from extremax.labels import one_label_per_row

_NPY, _NPZ = "not a readable .npy", "not a readable .npz"
_FLOATS = (np.float16, np.float32, np.float64)
# The formats of scipy that can be checked before compiled code sees them, and their indices.
_SPARSE = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}


def load(source: Source) -> Dataset:
    """Read all rows. The features of an ``.npy`` stay on disk until they are used."""
    labels: Any = None
    if source.format == "npy":
        features: Any = _checked_features(_open_npy(source.path), source.path)
    else:
        features, labels = _load_npz(source)
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
    return _part(Dataset(features, labels, source.files), slice(source.limit))


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows: slices of what `load` returns."""
    dataset = load(source)
    for start in range(0, len(dataset), rows):
        yield _part(dataset, slice(start, start + rows))


def _part(dataset: Dataset, rows: slice) -> Dataset:
    labels = None if dataset.labels is None else dataset.labels[rows]
    return Dataset(dataset.features[rows], labels, dataset.source)


def _load_npz(source: Source) -> tuple[Any, np.ndarray | None]:
    path = source.path
    with damage(path, _NPZ):
        archive = zipfile.ZipFile(path)
    with archive:
        keys = {name.removesuffix(".npy") for name in archive.namelist()}
        labels = None
        if "y" in keys and source.labels is None and not source.unlabeled:
            labels = _checked_labels(_member(archive, path, "y"), path)
        if "X" in keys:
            return _checked_features(_member(archive, path, "X"), path), labels
        if "format" in keys:
            return _sparse_matrix(archive, path), labels
    message = "neither an array X nor a scipy.sparse matrix; the file has the keys "
    raise DataError(message + ", ".join(sorted(keys)), path)


def _member(archive: zipfile.ZipFile, path: Path, key: str) -> np.ndarray:
    with damage(path, _NPZ):
        n_bytes = archive.getinfo(f"{key}.npy").file_size
        stream = archive.open(f"{key}.npy")
    with stream:
        _check_header(stream, n_bytes, path, _NPZ)
        with damage(path, _NPZ):
            stream.seek(0)
            return np.lib.format.read_array(stream, allow_pickle=False)


def _open_npy(path: Path) -> np.ndarray:
    with path.open("rb") as stream:
        _check_header(stream, path.stat().st_size, path, _NPY)
    with damage(path, _NPY):
        # Not np.load, which also accepts zip archives and pickles.
        return np.lib.format.open_memmap(path, mode="r")


def _check_header(stream: IO[bytes], n_bytes: int, path: Path, message: str) -> None:
    """Refuse pickles, and arrays that the bytes cannot hold, before memory is allocated."""
    with damage(path, message):
        shape, dtype = _read_header(stream)
    if dtype.hasobject:
        reason = "it holds Python objects (a pickle), which can run code when loaded"
        raise DataError(f"{message}: {reason}", path)
    needed = stream.tell() + dtype.itemsize * math.prod(shape)
    if min(shape, default=0) < 0 or needed > n_bytes:
        reason = f"an array of {dtype} {shape} needs {needed:,} bytes, but there are {n_bytes:,}"
        raise DataError(f"{message}: {reason}", path)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(stream)
    number = "1_0" if version == (1, 0) else "2_0"
    with warnings.catch_warnings():
        # Reading the array warns about a header of Python 2 again; once is enough.
        warnings.simplefilter("ignore", UserWarning)
        try:
            shape, _, dtype = getattr(np.lib.format, f"read_array_header_{number}")(stream)
        except MemoryError as error:
            # What Python's parser raises has nothing to do with the memory there is.
            raise ValueError("its header is nested too deeply") from error
    return shape, dtype


def _sparse_matrix(archive: zipfile.ZipFile, path: Path) -> sparse.csr_matrix:
    """The matrix as float32 CSR. Compiled code of scipy, such as ``tocsr``, would follow an index
    out of range to memory beyond its arrays, so everything is checked before it is converted."""
    name = _member(archive, path, "format")
    with damage(path, _NPZ):
        layout = name.astype(str).item()
    if layout not in _SPARSE:
        formats = ", ".join(_SPARSE)
        message = f"a sparse matrix in the format {layout!r}, expected one of {formats}"
        raise DataError(f"{message}; convert it with tocsr()", path)
    values, shape = _member(archive, path, "data"), _member(archive, path, "shape")
    indices = [_member(archive, path, key) for key in _SPARSE[layout]]
    if values.dtype.kind not in "biuf" or any(a.dtype.kind != "i" for a in (shape, *indices)):
        types = ", ".join(str(a.dtype) for a in (values, *indices, shape))
        raise DataError(f"expected real values and integer indices and shape, got {types}", path)
    if shape.shape != (2,):
        raise DataError(f"the matrix has shape {shape.tolist()}, expected two numbers", path)
    parts = (values, tuple(indices)) if layout == "coo" else (values, *indices)
    with damage(path, _NPZ):
        matrix = getattr(sparse, f"{layout}_matrix")(parts, shape=tuple(shape.tolist()))
    try:
        check_matrix("the data", matrix)
    except ArgumentError as error:
        raise DataError(str(error), path) from error
    with damage(path, _NPZ):
        matrix = sparse.csr_matrix(matrix, dtype=np.float32)
        matrix.sum_duplicates()
    return matrix


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
    if labels.dtype.kind == "u" and labels.size and labels.max() > np.iinfo(np.int64).max:
        raise DataError("labels exceed the range of int64", path)
    if labels.dtype.kind == "U" and labels.size:
        points = np.frombuffer(labels.astype(labels.dtype.newbyteorder("=")).tobytes(), np.uint32)
        if points.max() > 0x10FFFF or ((points >= 0xD800) & (points <= 0xDFFF)).any():
            raise DataError("labels have characters that are not Unicode", path)
    if labels.dtype.kind in "iuU":
        return np.asarray(labels, dtype=None if labels.dtype.kind == "U" else np.int64)
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
