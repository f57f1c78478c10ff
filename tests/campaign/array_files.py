"""Valid ``.npy`` and ``.npz`` files, and a second way to read them."""

from __future__ import annotations

import io
import zipfile
from random import Random
from typing import Any

import numpy as np
from scipy import sparse

from tests.campaign.reference import InvalidFileError, Options, Reading, Row

#: More rows than these are not compared one by one.
_MOST_ROWS = 100_000
Files = dict[str, bytes]


class UncheckedError(Exception):
    """There is no second reading to compare with."""


def write_npy(random: Random, options: Options) -> Files:
    """A dense array, its labels in a second file."""
    X = _dense(random)
    files = {"X.npy": npy_bytes(X, random.choice(((1, 0), (2, 0), (3, 0))))}
    if not options.unlabeled:
        files |= _labels_file(random, len(X))
    return files


def write_npz(random: Random, options: Options) -> Files:
    """A dense array or a sparse matrix, its labels inside or in a second file."""
    files: Files = {}
    buffer = io.BytesIO()
    X = _dense(random)
    if random.random() < 0.4:
        arrays = {"X": X}
    else:
        matrix = sparse.random(*X.shape, density=0.3, random_state=random.randrange(2**31))
        matrix = matrix.astype(random.choice(("f4", "f8", "i4", "?")))
        sparse.save_npz(buffer, matrix.asformat(random.choice(("csr", "csc", "coo"))))
        arrays = dict(np.load(io.BytesIO(buffer.getvalue())))
        buffer = io.BytesIO()
    if random.random() < 0.5:
        files = {} if options.unlabeled else _labels_file(random, len(X))
    else:
        arrays["y"] = _labels(random, len(X))
    save: Any = random.choice((np.savez, np.savez_compressed))
    save(buffer, **arrays)
    return {"data.npz": buffer.getvalue(), **files}


def _dense(random: Random) -> np.ndarray:
    rng = np.random.default_rng(random.randrange(2**31))
    shape = random.randint(1, 20), random.randint(1, 8)
    X = rng.normal(size=shape).astype(random.choice(("f2", "f4", "f8")))
    if random.random() < 0.1:
        X[0, 0] = random.choice((np.nan, np.inf, -np.inf))
    return np.asfortranarray(X) if random.random() < 0.3 else X


def _labels(random: Random, n: int) -> np.ndarray:
    if random.random() < 0.4:
        return np.array(
            [random.choice(("dog", "cat", "Ü", "", "x" * 50)) for _ in range(n)], dtype="U"
        )
    dtype = random.choice(("i1", "u1", "<i2", ">i4", "u4", "i8", ">u8", "u8"))
    return np.array([random.randrange(100) for _ in range(n)], dtype=dtype)


def _labels_file(random: Random, n: int) -> Files:
    if random.random() < 0.3:
        lines = [random.choice(("dog", "my cat", "7", "Ü")) for _ in range(n)]
        return {"y.txt": "".join(line + "\n" for line in lines).encode()}
    return {"y.npy": npy_bytes(_labels(random, n), (1, 0))}


def npy_bytes(array: np.ndarray, version: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    return buffer.getvalue()


# A second way to read them ------------------------------------------------------------------------


def read_npy(files: Files, options: Options) -> Reading:
    return _dense_reading(_array(files["X.npy"]), _read_labels(files, options), options)


# What every sparse matrix of scipy has; the indices depend on the format.
_MEMBERS = ("format", "shape", "data")


def read_npz(files: Files, options: Options) -> Reading:
    data = files["data.npz"]
    if not data.startswith(b"PK") and zipfile.is_zipfile(io.BytesIO(data)):
        raise UncheckedError  # numpy tells an archive by its first bytes, zipfile by its last
    try:
        with np.load(io.BytesIO(data)) as archive:
            used = {"X"} if "X" in archive.files else _MEMBERS
            arrays = {key: archive[key] for key in used if key in archive.files}
            if "format" in arrays:
                is_coo = arrays["format"].item() in ("coo", b"coo")
                more = ("row", "col") if is_coo else ("indices", "indptr")
                arrays |= {key: archive[key] for key in more if key in archive.files}
            wanted = not options.unlabeled and len(files) == 1
            labels = archive["y"] if wanted and "y" in archive.files else None
    except Exception as error:
        raise InvalidFileError(repr(error)) from error
    if any(isinstance(array, bytes) for array in (*arrays.values(), labels)):
        raise InvalidFileError("a member is not an array")
    rows = _read_labels(files, options) if labels is None else _label_list(labels)
    if "X" in arrays:
        return _dense_reading(arrays["X"], rows, options)
    try:
        entries, shape = _entries(arrays)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFileError(repr(error)) from error
    if len(shape) != 2 or min(shape) < 0:
        raise InvalidFileError(f"shape {shape}")
    if shape[0] > _MOST_ROWS:
        raise UncheckedError
    values: list[dict[int, np.float32]] = [{} for _ in range(shape[0])]
    with np.errstate(over="ignore", invalid="ignore"):
        for row, column, value in entries:
            if not (0 <= row < shape[0] and 0 <= column < shape[1]):
                raise InvalidFileError(f"entry ({row}, {column}) of {shape}")
            values[row][column] = values[row].get(column, np.float32(0)) + np.float32(value)
    return _with_labels("sparse", values, rows, shape[1], options)


def _array(data: bytes) -> np.ndarray:
    try:
        return np.load(io.BytesIO(data))
    except Exception as error:
        raise InvalidFileError(repr(error)) from error


def _entries(arrays: dict[str, Any]) -> tuple[list[tuple[int, int, Any]], tuple[int, ...]]:
    """(row, column, value) of everything that is stored in a sparse matrix, in three layouts."""
    layout = arrays["format"].item()
    layout = layout if isinstance(layout, str) else layout.decode()
    shape = tuple(int(size) for size in arrays["shape"])
    data = arrays["data"]
    if data.dtype.kind not in "fiub":
        raise InvalidFileError(f"values of type {data.dtype}")
    if layout == "coo":
        rows, columns = arrays["row"], arrays["col"]
        if any(array.dtype.kind not in "iu" or array.ndim != 1 for array in (rows, columns)):
            raise InvalidFileError("indices of another type")
        return list(zip(rows.tolist(), columns.tolist(), data, strict=True)), shape
    if layout not in ("csr", "csc"):
        raise InvalidFileError(f"layout {layout!r}")
    indptr, indices = arrays["indptr"], arrays["indices"]
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise InvalidFileError("indices of another type")
    lines = shape[layout == "csc"]
    starts = indptr.tolist()
    if len(starts) != lines + 1 or starts[0] != 0 or starts != sorted(starts):
        raise InvalidFileError("indptr")
    if starts[-1] > len(indices) or len(data) != len(indices) or data.ndim != 1:
        raise InvalidFileError("indptr")
    entries = []
    for line in range(lines):
        for k in range(starts[line], starts[line + 1]):
            place = int(indices[k])
            entries.append((*((place, line) if layout == "csc" else (line, place)), data[k]))
    return entries, shape


def _read_labels(files: Files, options: Options) -> list[Any] | None:
    if options.unlabeled:
        return None
    if "y.npy" in files:
        return _label_list(_array(files["y.npy"]))
    if "y.txt" not in files:
        raise InvalidFileError("no labels")
    lines = files["y.txt"].removeprefix(b"\xef\xbb\xbf").split(b"\n")
    try:
        labels = [line.rstrip(b"\r").decode() for line in (lines if lines[-1] else lines[:-1])]
    except UnicodeDecodeError as error:
        raise InvalidFileError("not UTF-8") from error
    if not all(labels):
        raise InvalidFileError("an empty line")
    return labels


def _label_list(labels: np.ndarray) -> list[Any]:
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise InvalidFileError(f"labels {labels.dtype} {labels.shape}")
    try:
        numbers = labels.tolist()
    except SystemError as error:
        raise InvalidFileError("no such character") from error
    if any(isinstance(number, int) and number >= 2**63 for number in numbers):
        raise InvalidFileError("labels beyond int64")
    return numbers


def _dense_reading(X: np.ndarray, labels: list[Any] | None, options: Options) -> Reading:
    if X.ndim != 2 or X.dtype.kind != "f" or X.itemsize > 8:
        raise InvalidFileError(f"features {X.dtype} {X.shape}")
    return _with_labels("dense", list(X), labels, X.shape[1], options)


def _with_labels(
    kind: str, features: list[Any], labels: list[Any] | None, width: int, options: Options
) -> Reading:
    if labels is not None and len(labels) != len(features):
        raise InvalidFileError("as many labels as rows")
    lists = [[]] * len(features) if labels is None else [[label] for label in labels]
    rows = [Row(*row) for row in zip(lists, features, strict=True)]
    return Reading(kind, rows[: options.limit], width)
