"""``read`` a file, stream it by ``read_blocks``, or ``scan`` it for its size."""

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
    "svmlight": "sparse_rows",
    "xc": "sparse_rows",
    "tsv": "text_rows",
    "fasttext": "text_rows",
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
    unlabelled: bool = False,
) -> Dataset:
    """Read a file of training or test rows.

    Args:
        path: The file. Text formats may be compressed (``.gz``, ``.xz``).
        format: One of ``source.FORMATS``; None: by the extension or the first line.
        labels: For ``npy`` and ``npz``, the file of labels: ``.npy``, or one a line.
        label_column: For parquet, the column of labels (``label``).
        text_column: For parquet, the column of texts (``text``).
        zero_based: Whether feature indices of svmlight (no) and xc (yes) count from 0.
        keep_labels: Which label a row with several keeps: ``first``, ``smallest``, or ``all``,
            and ``labels`` are then LabelLists, also of rows that have one.
        limit: Read only so many rows, counting those without a label.
        unlabelled: Ignore labels and keep rows that have none.
    """
    source = resolve(
        path, format, labels, label_column, text_column, zero_based, keep_labels, limit, unlabelled
    )
    dataset = _load(source)
    if len(dataset) == 0:
        reason = f"none of its {dataset.n_dropped} rows has a label"
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
    unlabelled: bool = False,
) -> Iterator[Dataset]:
    """Stream a file in blocks of at most ``rows`` rows; the options are those of ``read``.

    Memory is bounded by the block whatever the file's size, except for ``.npz``, which has
    to be unpacked whole. A block of svmlight is as wide as the largest index so far needs:
    whoever knows the number of features resizes it.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    source = resolve(
        path, format, labels, label_column, text_column, zero_based, keep_labels, limit, unlabelled
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
    unlabelled: bool = False,
) -> Summary:
    """The size of what ``read`` would return, without keeping any of it.

    From the header or metadata where the format has them, else by streaming through the file.
    """
    source = resolve(
        path, format, labels, label_column, text_column, zero_based, keep_labels, None, unlabelled
    )
    if source.format in ("parquet", "xc"):
        return cast(Summary, _reader(source).scan(source))
    return _count(source)


def _reader(source: Source) -> Any:
    """The module that reads the format; no other is imported, as numba and pyarrow are slow to."""
    return import_module(f"extremax.data.{_READERS[source.format]}")


def _load(source: Source) -> Dataset:
    if source.format in ("npy", "npz", "parquet"):
        return cast(Dataset, _reader(source).load(source))
    dataset = concatenate(_reader(source).blocks(source, _BLOCK_ROWS))
    return Dataset([], None, source.files) if dataset is None else dataset


def _count(source: Source) -> Summary:
    """Stream through the file, keeping counts alone."""
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
    classes = None if source.unlabelled else len(names)
    return Summary(rows, features, classes, nonzeros, kind, source.n_bytes)
