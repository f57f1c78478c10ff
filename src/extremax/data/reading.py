"""``read`` a file, stream it with ``read_blocks``, or ``scan`` its size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from extremax.data.dataset import Dataset, Summary, concatenate
from extremax.data.source import KeepLabels, Source, resolve
from extremax.errors import ArgumentError, DataError

_BLOCK_ROWS = 8192


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
        path: The file. Text formats may be compressed (``.gz``, ``.xz``), and they may come from a
            pipe or, with the path ``-``, from standard input.
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
        limit: Maximum number of rows to read, including rows without labels. Rows of sessions are
            their prefixes.
        unlabeled: Ignore labels, and keep rows without labels.
    """
    source = resolve(
        path,
        format,
        labels,
        label_column=label_column,
        text_column=text_column,
        zero_based=zero_based,
        keep_labels=keep_labels,
        limit=limit,
        unlabeled=unlabeled,
    )
    dataset = _load(source)
    if len(dataset) == 0:
        reason = f"none of the {dataset.n_dropped} rows has a label"
        if source.format == "sessions":
            reason = "no session has two items, so there is no next item to learn from"
        raise DataError(reason if dataset.n_dropped else "the file has no rows", source.path)
    return dataset


def read_blocks(path: str | Path, *, rows: int = _BLOCK_ROWS, **options: Any) -> Iterator[Dataset]:
    """Stream a file in blocks of at most ``rows`` rows; the other parameters are those of ``read``.

    Memory use does not depend on the size of the file, except for ``.npz``, which is unpacked as
    a whole. A block of svmlight is as wide as the largest index read so far; resize it if you
    know the number of features.
    """
    if rows < 1:
        raise ArgumentError(f"rows must be at least 1, not {rows}")
    source = resolve(path, **options)
    return cast(Iterator[Dataset], source.reader.blocks(source, rows))


def scan(path: str | Path, **options: Any) -> Summary:
    """Return the size of what ``read`` would return, without keeping any rows.

    The size comes from the header or metadata if the format has them, otherwise from streaming
    through the file. The parameters are those of ``read``.
    """
    source = resolve(path, **options)
    if source.format in ("parquet", "xc") and source.limit is None:
        return cast(Summary, source.reader.scan(source))
    return _count(source)


def _load(source: Source) -> Dataset:
    if source.format in ("npy", "npz"):
        return cast(Dataset, source.reader.load(source))
    return concatenate(source, source.reader.blocks(source, _BLOCK_ROWS))


def _count(source: Source) -> Summary:
    """Stream through the file, keeping only counts."""
    rows, width, nonzeros, table = 0, 0, 0, None
    names: set[Any] = set()
    for block in source.reader.blocks(source, _BLOCK_ROWS):
        table = block.table
        rows += len(block)
        names.update(block.class_values.tolist())
        width = max(width, table.n_features or 0)
        nonzeros += block.features.nnz if table.kind == "sparse" else 0
    if table is None:
        raise DataError("the file has no rows", source.path)
    if table.kind == "sequences":
        width = len(names)
    return Summary(
        rows,
        None if table.kind == "text" else width,
        None if source.unlabeled else len(names),
        nonzeros if table.kind == "sparse" else None,
        table.kind,
        source.n_bytes,
    )
