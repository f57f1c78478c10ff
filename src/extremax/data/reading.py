"""``read`` files, stream them with ``read_blocks``, or ``scan`` their size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from extremax.data.dataset import Dataset, Summary, concatenate
from extremax.data.source import KeepLabels, Source, resolve_all
from extremax.errors import ArgumentError, DataError

_BLOCK_ROWS = 8192

Paths: TypeAlias = str | Path | Sequence[str | Path]


def read(
    path: Paths,
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
        path: The file; or several, in a list or as a pattern such as ``part-*.tsv``, whose rows
            follow each other (not ``npy`` and ``npz``). Text formats may be compressed (``.gz``,
            ``.xz``, ``.bz2``, with Python 3.14 ``.zst``), and they may come from a pipe or, with
            the path ``-``, from standard input.
        format: One of ``source.FORMATS``; None detects it by the extension or the first line.
        labels: For ``npy`` and ``npz``, the file of labels: an ``.npy``, or text with one label
            per line.
        label_column: For parquet and csv, the column of labels; None means ``label``. For tsv,
            naming this column or the next one says that the first row has names of columns.
        text_column: For parquet, csv and tsv, the column of texts; None means ``text``.
        zero_based: For svmlight and xc, whether feature indices start at 0; None means False for
            svmlight and True for xc.
        keep_labels: Which label to keep of a row with several: ``first``, ``smallest`` or
            ``all``. With ``all`` the labels of the result are LabelLists, also for rows with one
            label.
        limit: Maximum number of rows to read, including rows without labels. Rows of sessions are
            their prefixes.
        unlabeled: Ignore labels, and keep rows without labels.
    """
    sources = resolve_all(
        path,
        format,
        labels=labels,
        label_column=label_column,
        text_column=text_column,
        zero_based=zero_based,
        keep_labels=keep_labels,
        limit=limit,
        unlabeled=unlabeled,
    )
    source, dataset = sources[0], _load(sources)
    if len(dataset) == 0:
        reason = f"none of the {dataset.n_dropped} rows has a label"
        if source.format == "sessions":
            reason = "no session has two items, so there is no next item to learn from"
        raise DataError(reason if dataset.n_dropped else "the file has no rows", source.path)
    return dataset


def read_blocks(path: Paths, *, rows: int = _BLOCK_ROWS, **options: Any) -> Iterator[Dataset]:
    """Stream files in blocks of at most ``rows`` rows; the other parameters are those of ``read``.

    Memory use does not depend on the size of the file, except for ``.npz``, which is unpacked as
    a whole. A block of svmlight is as wide as the largest index read so far; resize it if you
    know the number of features.
    """
    if rows < 1:
        raise ArgumentError(f"rows must be at least 1, not {rows}")
    return _blocks(resolve_all(path, **options), rows)


def scan(path: Paths, **options: Any) -> Summary:
    """Return the size of what ``read`` would return, without keeping any rows.

    The size comes from the header or metadata if the format has them, otherwise from streaming
    through the file. The parameters are those of ``read``.
    """
    sources = resolve_all(path, **options)
    source = sources[0]
    if len(sources) == 1 and source.format in ("parquet", "xc") and source.limit is None:
        return cast(Summary, source.reader.scan(source))
    return _count(sources)


def _load(sources: list[Source]) -> Dataset:
    source = sources[0]
    if source.format in ("npy", "npz"):
        return cast(Dataset, source.reader.load(source))
    dataset = concatenate(source, _blocks(sources, _BLOCK_ROWS))
    return replace(dataset, source=tuple(file for one in sources for file in one.files))


def _blocks(sources: list[Source], rows: int) -> Iterator[Dataset]:
    """The blocks of one file after the other, as if they were one."""
    left, n_sessions = sources[0].limit, 0
    first: Dataset | None = None
    for source in sources:
        last = n_sessions
        for block in source.reader.blocks(replace(source, limit=left), rows):
            first = block if first is None else first
            _check_same(block, first)
            if block.kind == "sequences" and block.features.sessions is not None:
                # Sessions are numbered in each file.
                sessions = block.features.sessions + n_sessions
                last = int(sessions.max(initial=last - 1)) + 1
                block = replace(block, features=replace(block.features, sessions=sessions))
            if left is not None:
                left -= len(block) + (0 if block.kind == "sequences" else block.n_dropped)
            yield block
        n_sessions = last
        if left == 0:
            return


def _check_same(block: Dataset, first: Dataset) -> None:
    """Refuse a file whose rows cannot follow those of the first."""
    ours, theirs = _form(block), _form(first)
    if ours != theirs:
        raise DataError(f"it has {ours}, but {first.source[0]} has {theirs}", block.source[0])


def _form(block: Dataset) -> str:
    """What rows are, in words."""
    if block.kind == "sequences" and block.labels is not None:
        pairs = "lines of prefix<TAB>next item"
        return "whole sessions" if block.features.sessions is not None else pairs
    width = f" of {block.table.n_features:,} features" if block.kind == "dense" else ""
    return f"{block.table.name}{width}"


def _count(sources: list[Source]) -> Summary:
    """Stream through the files, keeping only counts."""
    source = sources[0]
    rows, width, nonzeros, table = 0, 0, 0, None
    names: set[Any] = set()
    for block in _blocks(sources, _BLOCK_ROWS):
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
        sum(one.n_bytes for one in sources),
    )
