"""Read parquet files with pyarrow: a column of labels, and texts or numbers as features."""

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
    join_label_blocks,
    labeled_dataset,
)
from extremax.data.source import Source
from extremax.errors import DataError
from extremax.labels import LabelLists

_LOAD_ROWS = 8192


@dataclass(frozen=True)
class _Columns:
    """The columns to read.

    label:    the labels; None for unlabeled input.
    text, vector, numbers:  the features: one text per row, one list of numbers per row, or
              columns of numbers. Exactly one of them is set.
    """

    label: str | None
    text: str | None
    vector: str | None
    numbers: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [name for name in (self.label, self.text, self.vector, *self.numbers) if name]


@contextmanager
def _open(source: Source) -> Iterator[tuple[Any, _Columns]]:
    """Open the file and choose the columns; errors of pyarrow become DataErrors."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        message = "reading parquet needs pyarrow: pip install 'extremax[parquet]'"
        raise DataError(message, source.path) from error
    try:
        with pq.ParquetFile(source.path) as file:
            yield file, _choose_columns(source, file.schema_arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DataError(f"cannot read parquet: {error}", source.path) from error


def _choose_columns(source: Source, schema: Any) -> _Columns:
    import pyarrow.types as is_type

    types = dict(zip(schema.names, schema.types, strict=True))
    names = ", ".join(types)
    label = source.label_column or "label"
    if not source.unlabeled and label not in types:
        message = f"no column {label!r}; pass the column of labels as label_column=, one of: "
        raise DataError(message + names, source.path)
    label_or_none = None if source.unlabeled else label
    text = source.text_column or "text"
    if text in types and (is_type.is_string(types[text]) or is_type.is_large_string(types[text])):
        return _Columns(label_or_none, text, None, ())
    if source.text_column:
        raise DataError(f"no column {text!r} of strings; the columns are: {names}", source.path)
    if "features" in types and _is_list(types["features"]):
        return _Columns(label_or_none, None, "features", ())
    numbers = [
        name
        for name, type_ in types.items()
        if name != label and (is_type.is_integer(type_) or is_type.is_floating(type_))
    ]
    if not numbers:
        message = "no features: neither a column of texts (text_column=), nor lists, nor numbers "
        raise DataError(f"{message}among the columns: {names}", source.path)
    return _Columns(label_or_none, None, None, tuple(numbers))


def _is_list(type_: Any) -> bool:
    import pyarrow.types as is_type

    return bool(
        is_type.is_list(type_) or is_type.is_large_list(type_) or is_type.is_fixed_size_list(type_)
    )


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows, with numbers as float32."""
    n_read = 0
    width: int | None = None
    with _open(source) as (file, columns):
        for batch in file.iter_batches(rows, columns=columns.names):
            if source.limit is not None:
                batch = batch.slice(0, source.limit - n_read)
            reader = _BatchReader(source.path, batch, n_read)
            if columns.text:
                features: Features = reader.column(columns.text).to_pylist()
            elif columns.vector:
                features = reader.vectors(columns.vector, width)
                width = features.shape[1]
            else:
                features = reader.numbers(columns.numbers)
            yield _with_labels(source, columns.label, features, batch)
            n_read += batch.num_rows
            if n_read == source.limit:
                return


def load(source: Source) -> Dataset:
    """Read all rows; dense ones directly into one array, whose size the metadata states."""
    with _open(source) as (file, columns):
        n_rows = min(file.metadata.num_rows, source.limit or file.metadata.num_rows)
    features: Features = [] if columns.text else None
    labels: list[np.ndarray | LabelLists] = []
    n_rows_kept = n_dropped = n_multilabel = 0
    for block in blocks(source, _LOAD_ROWS):
        if columns.text:
            features.extend(block.features)
        else:
            if features is None:
                features = np.empty((n_rows, block.features.shape[1]), dtype=np.float32)
            features[n_rows_kept : n_rows_kept + len(block)] = block.features
        n_rows_kept += len(block)
        n_dropped += block.n_dropped
        n_multilabel += block.n_multilabel
        if block.labels is not None:
            labels.append(block.labels)
    if features is None:
        features = np.empty((0, 0), dtype=np.float32)
    if source.unlabeled:
        return Dataset(features, None, source.files)
    all_labels = join_label_blocks(labels or [np.empty(0, np.int64)])
    return Dataset(features[:n_rows_kept], all_labels, source.files, n_dropped, n_multilabel)


def scan(source: Source) -> Summary:
    """Return the size of the file, from its metadata and its column of labels."""
    with _open(source) as (file, columns):
        rows = file.metadata.num_rows
        classes = None
        if columns.label:
            names: set[Any] = set()
            rows = 0
            for batch in file.iter_batches(_LOAD_ROWS, columns=[columns.label]):
                block = _with_labels(source, columns.label, [""] * batch.num_rows, batch)
                names.update(block.label_values.tolist())
                rows += len(block)
            classes = len(names)
        width: int | None = None if columns.text else len(columns.numbers)
        if columns.vector:
            for batch in file.iter_batches(1, columns=[columns.vector]):
                width = _BatchReader(source.path, batch, 0).vectors(columns.vector, None).shape[1]
                break
    kind: Kind = "text" if columns.text else "dense"
    return Summary(rows, width, classes, None, kind, source.n_bytes)


def _with_labels(source: Source, label: str | None, features: Features, batch: Any) -> Dataset:
    """Combine features with the labels of their batch."""
    if label is None:
        return Dataset(features, None, source.files)
    column = batch.column(label)
    indptr = np.arange(len(column) + 1)
    if _is_list(column.type):
        import pyarrow.compute as pc

        lengths = pc.fill_null(pc.list_value_length(column), 0)
        indptr = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))])
        column = column.flatten()
    # Nulls are not labels: count only the valid values before each offset.
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    indptr = np.concatenate([[0], np.cumsum(valid)])[indptr]
    return labeled_dataset(source, features, LabelLists(_labels(source, label, column), indptr))


def _labels(source: Source, name: str, column: Any) -> np.ndarray:
    """Return the labels that are not null."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.drop_null()
    if pa.types.is_integer(column.type):
        return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    message = (
        f"column {name!r} has labels of type {column.type}, expected integers or strings, or "
        "lists of them"
    )
    raise DataError(message, source.path)


@dataclass(frozen=True)
class _BatchReader:
    """Converts the columns of a batch whose first row is row ``first`` (from 0) of the file."""

    path: Path
    batch: Any
    first: int

    def column(self, name: str) -> Any:
        """Return a column, which must not have nulls."""
        column = self.batch.column(name)
        if column.null_count:
            row = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            raise DataError(f"row {self.first + row + 1} has a null in {name!r}", self.path)
        return column

    def numbers(self, names: tuple[str, ...]) -> np.ndarray:
        """Read one feature per column."""
        features = np.empty((self.batch.num_rows, len(names)), dtype=np.float32)
        for j, name in enumerate(names):
            features[:, j] = self.column(name).to_numpy(zero_copy_only=False)
        return features

    def vectors(self, name: str, width: int | None) -> np.ndarray:
        """Read one list of features per row, of length ``width`` (None: that of the first row)."""
        import pyarrow.compute as pc

        column = self.column(name)
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if width is None else width
        ragged = np.flatnonzero(lengths != width)
        if ragged.size:
            message = f"row {self.first + ragged[0] + 1} has {lengths[ragged[0]]} numbers in"
            raise DataError(f"{message} {name!r}, but the first row has {width}", self.path)
        flat = column.flatten()
        if flat.null_count:
            row = int(np.argmin(flat.is_valid().to_numpy(zero_copy_only=False))) // width
            raise DataError(f"row {self.first + row + 1} has a null in {name!r}", self.path)
        numbers = flat.to_numpy(zero_copy_only=False).astype(np.float32)
        return numbers.reshape(len(lengths), width)
