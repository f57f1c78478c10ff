"""``read`` a file, stream it with ``read_blocks``, or ``scan`` its size."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from extremax.data.dataset import Dataset, Summary, concatenate
from extremax.data.source import KeepLabels, Source, resolve
from extremax.errors import DataError

_BLOCK_ROWS = 8192
_READERS = {
    "npy": "arrays",
    "npz": "arrays",
    "parquet": "parquet",
    "svmlight": "sparse_text",
    "xc": "sparse_text",
    "tsv": "labeled_text",
    "fasttext": "labeled_text",
}


def read(
    path: str | Path,
    *,
    format: str | None = None,
    labels: str | Path | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    zero_based: bool | None = None,
    keep_labels: KeepLabels = "first",
    limit: int | None = None,
    unlabeled: bool = False,
) -> Dataset:
    """Read a file of training or test rows.

    Args:
        path: The file. Text formats may be compressed (``.gz``, ``.xz``).
        format: One of ``source.FORMATS``; None detects it by the extension or the first line.
        labels: For ``npy`` and ``npz``, the file of labels: an ``.npy``, or text with one label
            per line.
        label_column: For parquet, the column of labels; None means ``label``.
        text_column: For parquet, the column of texts; None means ``text``.
        zero_based: For svmlight and xc, whether feature indices start at 0; None means False for
            svmlight and True for xc.
        keep_labels: Which label to keep of a row with several: ``first``, ``smallest`` or
            ``all``. With ``all`` the labels of the result are LabelLists, also for rows with one
            label.
        limit: Maximum number of rows to read, including rows without labels.
        unlabeled: Ignore labels, and keep rows without labels.
    """
    source = resolve(
        path, format, labels, label_column, text_column, zero_based, keep_labels, limit, unlabeled
    )
    dataset = _load(source)
    if len(dataset) == 0:
        reason = f"none of the {dataset.n_dropped} rows has a label"
        raise DataError(reason if dataset.n_dropped else "the file has no rows", source.path)
    return dataset


def read_blocks(
    path: str | Path,
    *,
    rows: int = _BLOCK_ROWS,
    format: str | None = None,
    labels: str | Path | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    zero_based: bool | None = None,
    keep_labels: KeepLabels = "first",
    limit: int | None = None,
    unlabeled: bool = False,
) -> Iterator[Dataset]:
    """Stream a file in blocks of at most ``rows`` rows; the other parameters are those of ``read``.

    Memory use does not depend on the size of the file, except for ``.npz``, which is unpacked as
    a whole. A block of svmlight is as wide as the largest index read so far; resize it if you
    know the number of features.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    source = resolve(
        path, format, labels, label_column, text_column, zero_based, keep_labels, limit, unlabeled
    )
    return cast(Iterator[Dataset], _reader(source).blocks(source, rows))


def scan(
    path: str | Path,
    *,
    format: str | None = None,
    labels: str | Path | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    zero_based: bool | None = None,
    keep_labels: KeepLabels = "first",
    unlabeled: bool = False,
) -> Summary:
    """Return the size of what ``read`` would return, without keeping any rows.

    The size comes from the header or metadata if the format has them, otherwise from streaming
    through the file. The parameters are those of ``read``.
    """
    source = resolve(
        path, format, labels, label_column, text_column, zero_based, keep_labels, None, unlabeled
    )
    if source.format in ("parquet", "xc"):
        return cast(Summary, _reader(source).scan(source))
    return _count(source)


def _reader(source: Source) -> Any:
    """Import the module that reads the format, and no other: numba and pyarrow load slowly."""
    return import_module(f"extremax.data.{_READERS[source.format]}")


def _load(source: Source) -> Dataset:
    if source.format in ("npy", "npz", "parquet"):
        return cast(Dataset, _reader(source).load(source))
    dataset = concatenate(_reader(source).blocks(source, _BLOCK_ROWS))
    return Dataset([], None, source.files) if dataset is None else dataset


def _count(source: Source) -> Summary:
    """Stream through the file, keeping only counts."""
    rows = 0
    features: int | None = None
    nonzeros: int | None = None
    names: set[Any] = set()
    kind = None
    for block in _reader(source).blocks(source, _BLOCK_ROWS):
        kind = block.kind
        rows += len(block)
        names.update(block.label_values.tolist())
        if kind != "text":
            features = max(features or 0, block.features.shape[1])
        if kind == "sparse":
            nonzeros = (nonzeros or 0) + block.features.nnz
    if kind is None:
        raise DataError("the file has no rows", source.path)
    classes = None if source.unlabeled else len(names)
    return Summary(rows, features, classes, nonzeros, kind, source.n_bytes)
