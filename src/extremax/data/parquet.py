"""Read parquet files with pyarrow: a column of labels, and texts or numbers as features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from extremax.data.dataset import Dataset, Features, Kind, Summary, labeled_dataset
from extremax.data.source import Source
from extremax.data.streams import damage
from extremax.errors import DataError
from extremax.labels import LabelLists

_SCAN_ROWS = 8192
_UNREADABLE = "cannot read parquet"


class _Columns(NamedTuple):
    """The columns to read.

    label:     the labels; None for unlabeled input.
    kind:      whether a row has its features in a text, in a list of numbers, or in columns of
               numbers.
    features:  the columns of features.
    """

    label: str | None
    kind: Literal["text", "vector", "numbers"]
    features: list[str]


@contextmanager
def _open(source: Source) -> Iterator[tuple[Any, _Columns]]:
    """Open the file and choose the columns."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        message = "reading parquet needs pyarrow: pip install 'extremax[parquet]'"
        raise DataError(message, source.path) from error
    with damage(source.path, _UNREADABLE):
        file = pq.ParquetFile(source.path)
        names, types = file.schema_arrow.names, file.schema_arrow.types
    with file:
        columns = _choose_columns(source, dict(zip(names, types, strict=True)))
        wanted = {columns.label, *columns.features}
        if columns.kind == "numbers":
            # Of two columns of one name, the last may be no number.
            wanted |= {n for n, kind in zip(names, types, strict=True) if _is_number(kind)}
        for name in names:
            if name in wanted and names.count(name) > 1:
                raise DataError(f"two columns are named {name!r}; rename one of them", source.path)
        yield file, columns


def _batches(source: Source, file: Any, rows: int, names: list[str]) -> Iterator[Any]:
    """Batches of columns, all of whose offsets, indices and texts are valid."""
    with damage(source.path, _UNREADABLE):
        batches = file.iter_batches(rows, columns=names)
    while True:
        with damage(source.path, _UNREADABLE):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
        yield batch


def _choose_columns(source: Source, types: dict[str, Any]) -> _Columns:
    import pyarrow.types as is_type

    names = ", ".join(types)
    label = source.label_column or "label"
    if not source.unlabeled and label not in types:
        message = f"no column {label!r}; pass the column of labels as label_column=, one of: "
        raise DataError(message + names, source.path)
    label_or_none = None if source.unlabeled else label
    text = source.text_column or "text"
    if text in types and (is_type.is_string(types[text]) or is_type.is_large_string(types[text])):
        return _Columns(label_or_none, "text", [text])
    if source.text_column:
        raise DataError(f"no column {text!r} of strings; the columns are: {names}", source.path)
    if "features" in types and _is_list(types["features"]):
        if not _is_number(types["features"].value_type):
            message = (
                f"column 'features' has the type {types['features']}, expected lists of numbers"
            )
            raise DataError(message, source.path)
        return _Columns(label_or_none, "vector", ["features"])
    numbers = [name for name, kind in types.items() if name != label and _is_number(kind)]
    if not numbers:
        message = "no features: neither a column of texts (text_column=), nor lists, nor numbers "
        raise DataError(f"{message}among the columns: {names}", source.path)
    return _Columns(label_or_none, "numbers", numbers)


def _is_number(kind: Any) -> bool:
    import pyarrow.types as is_type

    return bool(is_type.is_integer(kind) or is_type.is_floating(kind))


def _is_list(kind: Any) -> bool:
    return hasattr(kind, "value_field")


def blocks(source: Source, rows: int) -> Iterator[Dataset]:
    """Yield blocks of at most ``rows`` rows, with numbers as float32."""
    n_read = 0
    width: int | None = None
    with _open(source) as (file, columns):
        names = [name for name in (columns.label, *columns.features) if name is not None]
        for batch in _batches(source, file, rows, names):
            if source.limit is not None:
                batch = batch.slice(0, source.limit - n_read)
            arrays = [
                _without_nulls(source, name, batch.column(name), n_read)
                for name in columns.features
            ]
            if columns.kind == "text":
                features: Features = arrays[0].to_pylist()
            elif columns.kind == "vector":
                features = _vectors(source, arrays[0], n_read, width)
                width = features.shape[1]
            else:
                features = np.empty((batch.num_rows, len(arrays)), dtype=np.float32)
                with np.errstate(over="ignore"):  # infinity is refused with row and column
                    for j, array in enumerate(arrays):
                        features[:, j] = array.to_numpy(zero_copy_only=False)
            yield _with_labels(source, columns.label, features, batch)
            n_read += batch.num_rows
            if n_read == source.limit:
                return
        if n_read != file.metadata.num_rows:
            # Where columns differ in length, pyarrow ends with the shortest.
            message = f"{n_read} rows can be read, but the file says {file.metadata.num_rows}"
            raise DataError(f"{message}; it is damaged", source.path)


def scan(source: Source) -> Summary:
    """Return the size of the file, from its metadata and its column of labels."""
    with _open(source) as (file, columns):
        rows, classes = file.metadata.num_rows, None
        if columns.label:
            names: set[Any] = set()
            rows = 0
            for batch in _batches(source, file, _SCAN_ROWS, [columns.label]):
                block = _with_labels(source, columns.label, [""] * batch.num_rows, batch)
                names.update(block.label_values.tolist())
                rows += len(block)
            classes = len(names)
    first = next(blocks(replace(source, limit=1, unlabeled=True), 1), None)
    kind: Kind = "text" if columns.kind == "text" else "dense"
    width = None if first is None else first.table.n_features
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
        with damage(source.path, _UNREADABLE):  # beyond the range of int64
            return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    message = (
        f"column {name!r} has labels of type {column.type}, expected integers or strings, or "
        "lists of them"
    )
    raise DataError(message, source.path)


def _without_nulls(source: Source, name: str, column: Any, n_before: int, per_row: int = 1) -> Any:
    """The column, with ``per_row`` values per row, of a batch that follows ``n_before`` rows."""
    if column.null_count:
        row = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False))) // per_row
        raise DataError(f"row {n_before + row + 1} has a null in {name!r}", source.path)
    return column


def _vectors(source: Source, column: Any, n_before: int, width: int | None) -> np.ndarray:
    """Read one list of features per row, of length ``width`` (None: that of the first row)."""
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    width = int(lengths[0]) if width is None else width
    ragged = np.flatnonzero(lengths != width)
    if ragged.size:
        message = f"row {n_before + ragged[0] + 1} has {lengths[ragged[0]]} numbers in 'features'"
        raise DataError(f"{message}, but the first row has {width}", source.path)
    flat = _without_nulls(source, "features", column.flatten(), n_before, width)
    return flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(lengths), width)
