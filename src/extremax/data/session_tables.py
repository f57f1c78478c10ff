"""Sessions from a table of events: a row says which session visited which item, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from extremax.checks import refusing
from extremax.data.streams import damage
from extremax.errors import ArgumentError, DataError
from extremax.labels import LabelIndex
from extremax.labels.index import one_dimensional


def sessions_from_table(table: Any, *, session: str, item: str, time: str) -> list[list[Any]]:
    """The items of each session by time, for `extremax.SessionRecommender.fit`.

    Events of one session at the same time keep the order of the table; sessions are in the order
    of their names.

    Args:
        table: A pandas DataFrame, a dictionary of columns, or the path of a parquet file.
        session: The column that says what session an event belongs to.
        item: The column of items.
        time: The column of times: numbers, dates, or texts that sort as the times do.
    """
    names = (session, item, time)
    if isinstance(table, (str, Path)):
        table = _parquet_columns(Path(table), names)
    sessions, items, times = (_column(table, name) for name in names)
    if not len(sessions) == len(items) == len(times):
        sizes = ", ".join(f"{len(values):,}" for values in (sessions, items, times))
        raise ArgumentError(f"columns must have the same length, got {sizes}")
    with refusing(f"column {session!r}"):
        codes = LabelIndex.of(sessions).encode(sessions)
    try:
        by_time = np.argsort(times, kind="stable")
    except TypeError as error:
        raise ArgumentError(f"column {time!r} cannot be sorted: {error}") from error
    order = by_time[np.argsort(codes[by_time], kind="stable")]
    ends = np.cumsum(np.bincount(codes))
    return [part.tolist() for part in np.split(items[order], ends[:-1])] if len(ends) else []


def _column(table: Any, name: str) -> np.ndarray:
    """A column as an array in which no value is missing."""
    try:
        column = table[name]
    except (LookupError, TypeError) as error:
        known = getattr(table, "columns", table)
        listed = ", ".join(map(str, known)) if hasattr(known, "__iter__") else repr(table)[:80]
        raise ArgumentError(f"the table has no column {name!r}; it has: {listed}") from error
    if getattr(column, "ndim", 1) != 1:
        raise ArgumentError(f"column {name!r} must have one dimension, got shape {column.shape}")
    values = one_dimensional(column if isinstance(column, (list, tuple)) else np.asarray(column))
    # pandas has missing values of its own.
    missing = np.asarray(column.isna() if hasattr(column, "isna") else _is_missing(values))
    if missing.any():
        raise ArgumentError(f"column {name!r} has no value in row {int(missing.argmax())}")
    return values


def _is_missing(values: np.ndarray) -> np.ndarray:
    if values.dtype != object:
        return np.isnan(values) if values.dtype.kind in "fmM" else np.zeros(len(values), bool)
    is_missing = (v is None or (isinstance(v, float) and v != v) for v in values)
    return np.fromiter(is_missing, bool, len(values))


def _parquet_columns(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The named columns that a file has; of two columns of one name, an error."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        message = "reading parquet needs pyarrow: pip install 'extremax[parquet]'"
        raise DataError(message, path) from error
    if not path.exists():
        raise DataError("no such file", path)
    with damage(path, "cannot read parquet"), pq.ParquetFile(path) as file:
        known = file.schema_arrow.names
        wanted = [name for name in dict.fromkeys(names) if known.count(name) == 1]
        read = file.read(columns=wanted)
        read.validate(full=True)
        columns = {}
        for name in wanted:
            column = read.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            columns[name] = column.to_numpy()
    for name in names:
        if name not in columns:
            message = f"expected one column {name!r}, got {known.count(name)}; the columns are: "
            raise DataError(message + ", ".join(known), path)
    return columns
