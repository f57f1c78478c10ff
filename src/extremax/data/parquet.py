"""Parquet, by pyarrow: a label column, and texts or numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extremax.data.dataset import (
    Dataset,
    Features,
    Kind,
    Summary,
    join_labels,
    labelled,
)
from extremax.data.source import Source
from extremax.errors import DataError
from extremax.label_lists import LabelLists

_LOAD_ROWS = 8192


@dataclass(frozen=True)
class _Columns:
    """The columns to read: a text, or one list of numbers a row, or a number each."""

    label: str | None
    text: str | None
    vector: str | None
    numbers: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [name for name in (self.label, self.text, self.vector, *self.numbers) if name]


@contextmanager
def _open(source: Source) -> Iterator[tuple[Any, _Columns]]:
    """The open file and the columns wanted; pyarrow's complaints become DataErrors."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        message = "reading parquet needs pyarrow: pip install 'extremax[parquet]'"
        raise DataError(message, source.path) from error
    try:
        with pq.ParquetFile(source.path) as file:
            yield file, _choose(source, file.schema_arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DataError(f"parquet cannot be read: {error}", source.path) from error


def _choose(source: Source, schema: Any) -> _Columns:
    import pyarrow.types as is_type

    types = dict(zip(schema.names, schema.types, strict=True))
    has = ", ".join(types)
    label = source.label_column or "label"
    if not source.unlabelled and label not in types:
        message = f"no column {label!r}; name the labels' one (label_column=) of: {has}"
        raise DataError(message, source.path)
    wanted = None if source.unlabelled else label
    text = source.text_column or "text"
    if text in types and (is_type.is_string(types[text]) or is_type.is_large_string(types[text])):
        return _Columns(wanted, text, None, ())
    if source.text_column:
        raise DataError(f"no column {text!r} of strings; there are: {has}", source.path)
    if "features" in types and _is_list(types["features"]):
        return _Columns(wanted, None, "features", ())
    numbers = [
        name
        for name, type_ in types.items()
        if name != label and (is_type.is_integer(type_) or is_type.is_floating(type_))
    ]
    if not numbers:
        message = f"no column of texts (text_column=), no lists and no numbers among: {has}"
        raise DataError(message, source.path)
    return _Columns(wanted, None, None, tuple(numbers))


def _is_list(type_: Any) -> bool:
    import pyarrow.types as is_type

    return bool(
        is_type.is_list(type_) or is_type.is_large_list(type_) or is_type.is_fixed_size_list(type_)
    )


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows, numbers as float32."""
    seen = 0
    width: int | None = None
    with _open(source) as (file, columns):
        for batch in file.iter_batches(rows, columns=columns.names):
            if source.limit is not None:
                batch = batch.slice(0, source.limit - seen)
            part = _Part(source.path, batch, seen)
            if columns.text:
                features: Features = part.column(columns.text).to_pylist()
            elif columns.vector:
                features = part.vectors(columns.vector, width)
                width = features.shape[1]
            else:
                features = part.numbers(columns.numbers)
            yield _labelled(source, columns.label, features, batch)
            seen += batch.num_rows
            if seen == source.limit:
                return


def load(source: Source) -> Dataset:
    """All rows; dense ones go straight into one array of the size the metadata says."""
    with _open(source) as (file, columns):
        n_rows = min(file.metadata.num_rows, source.limit or file.metadata.num_rows)
    features: Features = [] if columns.text else None
    labels: list[np.ndarray | LabelLists] = []
    at = n_dropped = n_multilabel = 0
    for block in blocks(source, _LOAD_ROWS):
        if columns.text:
            features.extend(block.features)
        else:
            if features is None:
                features = np.empty((n_rows, block.features.shape[1]), dtype=np.float32)
            features[at : at + len(block)] = block.features
        at += len(block)
        n_dropped += block.n_dropped
        n_multilabel += block.n_multilabel
        if block.labels is not None:
            labels.append(block.labels)
    if features is None:
        features = np.empty((0, 0), dtype=np.float32)
    kept = None if source.unlabelled else join_labels(labels or [np.empty(0, np.int64)])
    return Dataset(features[:at], kept, source.files, n_dropped, n_multilabel)


def scan(source: Source) -> Summary:
    """The size of the file, by its metadata and by reading the labels alone."""
    with _open(source) as (file, columns):
        rows = file.metadata.num_rows
        classes = None
        if columns.label:
            names: set[Any] = set()
            rows = 0
            for batch in file.iter_batches(_LOAD_ROWS, columns=[columns.label]):
                block = _labelled(source, columns.label, [""] * batch.num_rows, batch)
                names.update(block.label_values.tolist())
                rows += len(block)
            classes = len(names)
        width: int | None = None if columns.text else len(columns.numbers)
        if columns.vector:
            for batch in file.iter_batches(1, columns=[columns.vector]):
                width = _Part(source.path, batch, 0).vectors(columns.vector, None).shape[1]
                break
    kind: Kind = "text" if columns.text else "dense"
    return Summary(rows, width, classes, None, kind, source.n_bytes)


def _labelled(source: Source, label: str | None, features: Features, batch: Any) -> Dataset:
    if label is None:
        return Dataset(features, None, source.files)
    column = batch.column(label)
    ends = np.arange(len(column) + 1)
    if _is_list(column.type):
        import pyarrow.compute as pc

        lengths = pc.fill_null(pc.list_value_length(column), 0)
        ends = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))])
        column = column.flatten()
    # A null is no label.
    known = column.is_valid().to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(known)])[ends]
    return labelled(source, features, LabelLists(_labels(source, label, column), ends))


def _labels(source: Source, name: str, column: Any) -> np.ndarray:
    """The labels that are not null."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.drop_null()
    if pa.types.is_integer(column.type):
        return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    message = (
        f"labels of type {column.type} in {name!r}; they should be integers or strings, or lists "
        "of them"
    )
    raise DataError(message, source.path)


@dataclass(frozen=True)
class _Part:
    """A batch of rows, the first of which is row ``first`` (from 0) of the file."""

    path: Path
    batch: Any
    first: int

    def column(self, name: str) -> Any:
        """A column, which must have no nulls."""
        column = self.batch.column(name)
        if column.null_count:
            row = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            raise DataError(f"row {self.first + row + 1} has a null in {name!r}", self.path)
        return column

    def numbers(self, names: tuple[str, ...]) -> np.ndarray:
        """One feature a column."""
        features = np.empty((self.batch.num_rows, len(names)), dtype=np.float32)
        for j, name in enumerate(names):
            features[:, j] = self.column(name).to_numpy(zero_copy_only=False)
        return features

    def vectors(self, name: str, width: int | None) -> np.ndarray:
        """One list of features a row, all ``width`` long (None: as long as the first)."""
        import pyarrow.compute as pc

        column = self.column(name)
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if width is None else width
        wrong = np.flatnonzero(lengths != width)
        if wrong.size:
            message = f"row {self.first + wrong[0] + 1} has {lengths[wrong[0]]} numbers in"
            raise DataError(f"{message} {name!r}, the first row has {width}", self.path)
        flat = column.flatten()
        if flat.null_count:
            at = int(np.argmin(flat.is_valid().to_numpy(zero_copy_only=False)))
            raise DataError(f"row {self.first + at // width + 1} has a null in {name!r}", self.path)
        numbers = flat.to_numpy(zero_copy_only=False).astype(np.float32)
        return numbers.reshape(len(lengths), width)
