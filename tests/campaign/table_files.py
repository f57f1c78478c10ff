"""Valid and hostile parquet files, and a second way to read them."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.campaign.reference import InvalidFileError, Options, Reading, Row

Files = dict[str, bytes]


def write_parquet(random: Random, options: Options) -> Files:
    """Texts, lists or columns of numbers, with labels of any kind."""
    n = random.randint(1, 15)
    columns: dict[str, Any] = dict(_FEATURES[random.choice(tuple(_FEATURES))](random, n))
    if not options.unlabeled or random.random() < 0.5:
        columns["label"] = _labels(random, n)
    if random.random() < 0.3:
        columns["other"] = pa.array([b"x"] * n)
    names = list(columns)
    random.shuffle(names)
    return _file(random, pa.table({name: columns[name] for name in names}))


def _file(random: Random, table: pa.Table) -> Files:
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        row_group_size=random.choice((None, 1, 4)),
        compression=random.choice(("none", "snappy", "zstd", "gzip")),
        use_dictionary=random.random() < 0.5,
        version=random.choice(("1.0", "2.6")),
        data_page_version=random.choice(("1.0", "2.0")),
        write_page_checksum=random.random() < 0.3,
    )
    return {"data.parquet": buffer.getvalue()}


def _labels(random: Random, n: int) -> pa.Array:
    def integer() -> int:
        return random.choice((random.randrange(20), random.randrange(100)))

    def string() -> str:
        return random.choice(("dog", "cat", "Ü", "", "x" * 50))

    one = random.choice((integer, string))
    empty = random.choice((0.0, 0.2))
    values: list[Any] = [None if random.random() < empty else one() for _ in range(n)]
    type_ = pa.string() if one is string else random.choice((pa.int64(), pa.uint8(), pa.uint64()))
    if random.random() < 0.4:
        values = [
            None if random.random() < empty else [one() for _ in range(random.randint(0, 4))]
            for _ in range(n)
        ]
        type_ = random.choice((pa.list_, pa.large_list))(type_)
    elif random.random() < 0.3:
        return pa.array(values, type_).dictionary_encode()
    return pa.array(values, type_)


def _numbers(random: Random, n: int, type_: pa.DataType) -> list[Any]:
    if pa.types.is_integer(type_):
        return [random.randrange(127) for _ in range(n)]
    values = [random.gauss(0, 1) for _ in range(n)]
    return [np.float16(value) for value in values] if pa.types.is_float16(type_) else values


def _number_columns(random: Random, n: int) -> dict[str, pa.Array]:
    types = (pa.int8(), pa.uint8(), pa.int64(), pa.float32(), pa.float64(), pa.float16())
    columns = {}
    for j in range(random.randint(1, 4)):
        type_ = random.choice(types)
        columns[f"x{j}"] = pa.array(_numbers(random, n, type_), type_)
    return columns


def _vectors(random: Random, n: int) -> dict[str, pa.Array]:
    width = random.randint(1, 5)
    type_ = random.choice((pa.float32(), pa.float64(), pa.int32()))
    lists = random.choice(
        (pa.list_(type_), pa.large_list(type_), pa.list_(type_, width)),
    )
    return {"features": pa.array([_numbers(random, width, type_) for _ in range(n)], lists)}


def _texts(random: Random, n: int) -> dict[str, pa.Array]:
    texts = [random.choice(("", "red blue", "日本", "tab\there\nand")) for _ in range(n)]
    return {"text": pa.array(texts, random.choice((pa.string(), pa.large_string())))}


_FEATURES: dict[str, Callable[[Random, int], dict[str, pa.Array]]] = {
    "text": _texts,
    "vectors": _vectors,
    "numbers": _number_columns,
}


def hostile_parquet(random: Random) -> Files:
    """Columns of unusual types, duplicate names, nulls and ragged lists."""
    n = random.choice((0, 1, 3))
    columns = [
        (random.choice(("label", "text", "features", "x", "a.b", "", "é")), _odd_column(random, n))
        for _ in range(random.choice((1, 2, 2, 3)))
    ]
    if random.random() < 0.7:
        columns.append(("label", pa.array(range(n), pa.int64())))
    table = pa.Table.from_arrays([c for _, c in columns], names=[name for name, _ in columns])
    return _file(random, table)


def _odd_column(random: Random, n: int) -> pa.Array:
    value, type_ = random.choice(_ODD)
    values = [value] * n
    if n and random.random() < 0.3:
        values[random.randrange(n)] = None
    if n > 1 and pa.types.is_list(type_) and random.random() < 0.4:
        values[-1] = value[:-1]
    return pa.array(values, type_)


_ODD: tuple[tuple[Any, pa.DataType], ...] = (
    *(
        (["a", "b"], pa.list_(pa.string())),
        ([1.0, None], pa.list_(pa.float32())),
        ([], pa.list_(pa.float32())),
    ),
    *(
        ([[1.0]], pa.list_(pa.list_(pa.float32()))),
        ([True], pa.list_(pa.bool_())),
        ([1e300], pa.list_(pa.float64())),
    ),
    *(
        ([2**63], pa.list_(pa.uint64())),
        (2**63, pa.uint64()),
        (1e300, pa.float64()),
        (float("nan"), pa.float32()),
    ),
    *(
        (2**53 + 1, pa.int64()),
        (True, pa.bool_()),
        (b"x", pa.binary()),
        (None, pa.null()),
        (0, pa.timestamp("s")),
    ),
    *(
        ({"a": 1}, pa.struct([("a", pa.int64())])),
        ([{"a": 1}], pa.list_(pa.struct([("a", pa.int64())]))),
    ),
    *(
        (b"\xff\xfe", pa.binary(2)),
        (1.5, pa.float64()),
        ("7", pa.string()),
        ("x" * 10**5, pa.string()),
    ),
    *(
        ([("k", 1)], pa.map_(pa.string(), pa.int64())),
        (0, pa.date32()),
        ([None], pa.list_(pa.null())),
    ),
    *(
        ([1, 2], pa.list_(pa.int64(), 2)),
        (["a"], pa.large_list(pa.large_string())),
        (7, pa.duration("s")),
    ),
)


# A second way to read them ------------------------------------------------------------------------


def read_parquet(files: Files, options: Options) -> Reading:
    """What the docs say of the columns, in plain Python on Python values."""
    try:
        file = pq.ParquetFile(io.BytesIO(files["data.parquet"]))
        types = list(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
    except Exception as error:
        raise InvalidFileError(repr(error)) from error
    names = [name for name, _ in types]
    if not options.unlabeled and "label" not in names:
        raise InvalidFileError("no column of labels")
    features = _feature_columns(types)
    labels = [] if options.unlabeled else ["label"]
    if any(names.count(name) > 1 for name in features + labels):
        raise InvalidFileError("duplicate columns")
    try:
        table = file.read(columns=features + labels)
        values = {name: table.column(name).to_pylist() for name in features + labels}
    except Exception as error:
        raise InvalidFileError(repr(error)) from error
    types_of = dict(types)
    n_rows = len(next(iter(values.values())))
    n_rows = n_rows if options.limit is None else min(options.limit, n_rows)
    lists = (
        [[]] * n_rows
        if options.unlabeled
        else _label_lists(types_of["label"], values["label"][:n_rows])
    )
    if pa.types.is_string(types_of[features[0]]) or pa.types.is_large_string(types_of[features[0]]):
        kind, width, rows = "text", None, values[features[0]][:n_rows]
        if None in rows:
            raise InvalidFileError("a null")
    else:
        kind = "dense"
        if features == ["features"] and _is_list(types_of["features"]):
            rows = values["features"][:n_rows]
        else:
            rows = [list(row) for row in zip(*(values[name] for name in features), strict=True)][
                :n_rows
            ]
        rows = [_vector(row) for row in rows]
        if len({len(row) for row in rows}) > 1:
            raise InvalidFileError("ragged lists")
        width = len(rows[0]) if rows else 0
    return Reading(kind, [Row(*row) for row in zip(lists, rows, strict=True)], width)


def _feature_columns(types: list[tuple[str, pa.DataType]]) -> list[str]:
    for name, type_ in types:
        if name == "text" and (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
            return ["text"]
    for name, type_ in types:
        if name == "features" and _is_list(type_):
            return ["features"]
    numbers = [
        name
        for name, type_ in types
        if name != "label" and (pa.types.is_integer(type_) or pa.types.is_floating(type_))
    ]
    if not numbers:
        raise InvalidFileError("no features")
    return numbers


def _is_list(type_: pa.DataType) -> bool:
    is_type = pa.types
    return (
        is_type.is_list(type_) or is_type.is_large_list(type_) or is_type.is_fixed_size_list(type_)
    )


def _vector(row: Any) -> np.ndarray:
    if row is None or any(
        isinstance(v, bool) or not isinstance(v, (int, float, np.floating)) for v in row
    ):
        raise InvalidFileError("not numbers")
    with np.errstate(over="ignore"):
        return np.array([np.float32(float(v)) for v in row], np.float32)


def _label_lists(type_: pa.DataType, values: list[Any]) -> list[list[Any]]:
    listed = _is_list(type_)
    lists = [(row or []) if listed else [row] for row in values]
    lists = [[label for label in row if label is not None] for row in lists]
    for label in (label for row in lists for label in row):
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise InvalidFileError(f"label {label!r}")
        if isinstance(label, int) and label >= 2**63:
            raise InvalidFileError("labels beyond int64")
    return lists
