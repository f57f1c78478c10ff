"""Parquet files."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError
from extremax.labels import LabelLists

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def save(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "a.parquet", **options)
    return folder / "a.parquet"


def test_texts(tmp_path):
    path = save(tmp_path, {"text": ["x", "y", "z"], "id": [1, 2, 3], "label": ["b", None, "a"]})
    data = read(path)
    assert data.kind == "text"
    assert data.features == ["x", "z"]
    assert data.labels.tolist() == ["b", "a"]
    assert data.n_dropped == 1
    data = read(path, unlabeled=True)
    assert (data.features, data.labels, data.n_dropped) == (["x", "y", "z"], None, 0)


def test_named_columns(tmp_path):
    path = save(tmp_path, {"title": ["x", "y"], "subject": [5, 7], "text": ["no", "no"]})
    data = read(path, label_column="subject", text_column="title")
    assert data.features == ["x", "y"]
    assert data.labels.tolist() == [5, 7]
    assert data.labels.dtype == np.int64


def test_numbers(tmp_path):
    columns = {
        "b": np.array([1.5, 2.5, 3.5]),
        "name": ["x", "y", "z"],
        "label": pa.array([3, None, 4], pa.int16()),
        "a": np.array([7, 8, 9], dtype=np.int8),
    }
    path = save(tmp_path, columns)
    data = read(path)
    assert data.kind == "dense"
    assert data.features.dtype == np.float32
    # Features keep the order of the file. Strings and labels are not features, even if labels
    # are ignored.
    assert data.features.tolist() == [[1.5, 7], [3.5, 9]]
    assert data.labels.tolist() == [3, 4]
    assert data.labels.dtype == np.int64
    assert data.n_dropped == 1
    assert read(path, unlabeled=True).features.tolist() == [[1.5, 7], [2.5, 8], [3.5, 9]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 2), pa.large_list(pa.int32())]
)
def test_vectors(tmp_path, kind):
    rows = [[i, 2 * i] for i in range(10)]
    labels = pa.array(list("abcdefghij")).dictionary_encode()
    path = save(tmp_path, {"features": pa.array(rows, kind), "label": labels}, row_group_size=4)
    data = read(path, limit=9)
    assert data.features.tolist() == rows[:9]
    assert data.labels.tolist() == list("abcdefghi")
    blocks = list(read_blocks(path, rows=3))
    assert max(len(block) for block in blocks) == 3
    assert np.concatenate([block.features for block in blocks]).tolist() == rows
    assert scan(path).features == 2


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.string()), pa.list_(pa.string(), 2), pa.large_list(pa.string())]
)
def test_lists_of_labels(tmp_path, kind):
    labels = [["b", "a"], None, ["c", None], [None, None], ["a", "a"], ["d", "a"]]
    columns = {"text": list("uvwxyz"), "label": pa.array(labels, kind)}
    path = save(tmp_path, columns, row_group_size=4)
    data = read(path, keep_labels="all")
    assert isinstance(data.labels, LabelLists)
    # Nulls are not labels, neither instead of a list nor within one.
    assert data.labels.tolist() == [["b", "a"], ["c"], ["a"], ["d", "a"]]
    assert data.features == list("uwyz")
    assert (data.n_dropped, data.n_multilabel) == (2, 3)
    assert read(path).labels.tolist() == ["b", "c", "a", "d"]
    assert read(path, keep_labels="smallest").labels.tolist() == ["a", "c", "a", "a"]
    blocks = list(read_blocks(path, rows=2, keep_labels="all"))
    assert [block.labels.tolist() for block in blocks] == [
        [["b", "a"]],
        [["c"]],
        [["a"], ["d", "a"]],
    ]
    assert (scan(path).rows, scan(path).classes) == (4, 4)
    assert (scan(path, keep_labels="smallest").classes) == 2


def test_lists_of_integer_labels(tmp_path):
    labels = pa.array([[7, 5], [], [5]], pa.list_(pa.int32()))
    path = save(tmp_path, {"x": [1.0, 2.0, 3.0], "label": labels})
    data = read(path, keep_labels="all")
    assert data.labels.tolist() == [[7, 5], [5]]
    assert data.labels.values.dtype == np.int64
    assert data.features.tolist() == [[1], [3]]
    assert (data.n_dropped, data.n_multilabel) == (1, 1)


def test_one_label_per_row_can_be_read_as_lists(tmp_path):
    path = save(tmp_path, {"text": ["x", "y", "z"], "label": ["b", None, "a"]})
    data = read(path, keep_labels="all")
    assert (data.labels.tolist(), data.n_dropped) == ([["b"], ["a"]], 1)


def test_scan(tmp_path):
    path = save(tmp_path, {"x": [1.0, 2.0, 3.0], "y": [1, 2, 3], "label": ["a", None, "a"]})
    data = scan(path)
    assert (data.rows, data.features, data.classes, data.nonzeros) == (2, 2, 1, None)
    assert (data.kind, data.bytes) == ("dense", path.stat().st_size)
    assert scan(path, unlabeled=True).rows == 3
    assert scan(path, unlabeled=True).classes is None


def test_scan_of_vectors_and_of_a_part(tmp_path):
    path = save(tmp_path, {"features": [[1.0, 2.0], [3.0, 4.0]], "label": ["a", "b"]})
    assert (scan(path).features, scan(path, limit=1).rows) == (2, 1)
    path = save(tmp_path, {"features": pa.array([], pa.list_(pa.float32())), "label": []})
    assert (scan(path, unlabeled=True).rows, scan(path, unlabeled=True).features) == (0, None)


def test_only_needed_columns_are_read(tmp_path, monkeypatch):
    path = save(tmp_path, {"text": ["x"], "big": ["y"], "label": [1]})
    requested = []
    original = pq.ParquetFile.iter_batches

    def spy(self, *args, columns=None, **options):
        requested.append(columns)
        return original(self, *args, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    read(path)
    assert [sorted(columns) for columns in requested] == [["label", "text"]]


BEYOND = pa.array([2**63], pa.uint64())
NULL = pa.array([1.0, 2.0, None])
INVALID: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no label": ({"x": [1.0]}, {}, "no column 'label'.*one of: x"),
    "no such label": ({"x": [1.0], "label": [1]}, {"label_column": "y"}, "no column 'y'"),
    "no such text": ({"x": [1.0], "label": [1]}, {"text_column": "x"}, "no column 'x' of strings"),
    "no features": (
        {"name": ["a"], "label": [1]},
        {},
        "nor lists, nor numbers among the columns: name",
    ),
    "float labels": ({"x": [1.0], "label": [1.5]}, {}, "column 'label' has labels of type double"),
    "lists of floats": (
        {"x": [1.0], "label": [[1.5]]},
        {},
        "column 'label' has labels of type double",
    ),
    "null": ({"x": NULL, "label": [1, 2, 3]}, {}, "row 3 has a null in 'x'"),
    "null text": ({"text": ["a", None], "label": [1, 2]}, {}, "row 2 has a null in 'text'"),
    "ragged": ({"features": [[1.0], [1.0], [1.0, 2.0]], "label": [1, 2, 3]}, {}, "row 3 has 2"),
    "lists of texts": (
        {"features": [["1", "2"]], "label": [1]},
        {},
        "column 'features' .* expected lists of numbers",
    ),
    "labels beyond int64": ({"x": [1.0], "label": BEYOND}, {}, "9223372036854775808"),
    "null in a list": (
        {"features": [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, None]], "label": [1, 2, 3, 4]},
        {},
        "row 4 has a null in 'features'",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_errors_name_the_row_or_column(tmp_path, name):
    columns, options, message = INVALID[name]
    path = save(tmp_path, columns)
    with pytest.raises(DataError, match=message) as raised:
        list(read_blocks(path, rows=2, **options))
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["x", "label", "text", "features"])
def test_two_columns_of_one_name_are_refused(tmp_path, name):
    values = {"x": [1.0], "label": ["a"], "text": ["b"], "features": [[1.0]]}
    columns = {"label": ["a"], "x": [1.0], name: values[name]}
    names = [*columns, name]
    table = pa.Table.from_arrays([pa.array(values[n]) for n in names], names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    for reader in (read, scan):
        with pytest.raises(DataError, match=f"two columns are named '{name}'") as raised:
            reader(tmp_path / "a.parquet")
        assert str(raised.value).startswith(f"{tmp_path / 'a.parquet'}: ")
    names = ["label", "x", "y", "y"]
    table = pa.Table.from_arrays([pa.array(v) for v in (["a"], [1.0], [2.0], ["d"])], names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns are named 'y'"):
        read(tmp_path / "a.parquet")
    # Columns that are not read may have any name.
    names = ["label", "x", "note", "note"]
    table = pa.Table.from_arrays([pa.array(v) for v in (["a"], [1.0], ["c"], ["d"])], names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").features.tolist() == [[1.0]]


@pytest.mark.parametrize("error", [pa.ArrowKeyError, pa.ArrowTypeError, OSError, UnicodeError])
def test_errors_of_pyarrow_name_the_file(tmp_path, monkeypatch, error):
    path = save(tmp_path, {"x": [1.0], "label": [1]})

    def fail(*args: Any, **options: Any) -> None:
        raise error("damaged")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    for reader in (read, scan):
        with pytest.raises(DataError, match=r"cannot read parquet: .*damaged") as raised:
            reader(path)
        assert str(raised.value).startswith(f"{path}: ")


def test_want_of_memory_is_not_taken_for_damage(tmp_path, monkeypatch):
    path = save(tmp_path, {"x": [1.0], "label": [1]})

    def fail(*args: Any, **options: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 9 failed")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    for reader in (read, scan):
        with pytest.raises(MemoryError, match=f"^{path}: malloc of size 9 failed"):
            reader(path)


def test_mistakes_of_the_package_are_not_taken_for_damage(tmp_path, monkeypatch):
    path = save(tmp_path, {"x": [1.0], "label": [1]})
    monkeypatch.setattr("extremax.data.parquet.labeled_dataset", lambda *_: 1 / 0)
    for reader in (read, scan):
        with pytest.raises(ZeroDivisionError):
            reader(path)


def test_texts_that_are_not_utf8_are_refused(tmp_path):
    good, bad = b"a text of some length", b"a text \xff\xff some length"
    path = save(tmp_path, {"text": [good.decode()], "label": [1]})
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises(DataError, match=r"cannot read parquet: .*(UTF|utf)"):
        read(path)


def test_truncated_files_are_refused(tmp_path):
    path = save(tmp_path, {"x": np.arange(50.0), "label": [str(i % 7) for i in range(50)]})
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="cannot read parquet") as raised:
            read(path)
        assert str(raised.value).startswith(f"{path}: ")


def test_a_file_that_is_not_parquet_is_rejected(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"this is not a parquet file")
    with pytest.raises(DataError, match="cannot read parquet") as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_without_pyarrow_the_error_names_the_extra(tmp_path, monkeypatch):
    path = save(tmp_path, {"x": [1.0], "label": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'extremax\[parquet\]'"):
        read(path)


def test_fewer_rows_than_the_file_says_are_refused(tmp_path, monkeypatch):
    path = save(tmp_path, {"x": [1.0, 2.0, 3.0], "label": [1, 2, 3]})
    batches = pq.ParquetFile.iter_batches

    def shortened(*args, **options):
        for batch in batches(*args, **options):
            yield batch.slice(0, 2)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", shortened)
    with pytest.raises(DataError, match="2 rows can be read, but the file says 3"):
        read(path)


def test_warnings_of_the_caller_are_shown_while_blocks_are_read(tmp_path):
    path = save(tmp_path, {"x": [1.0, 2.0], "label": [1, 2]})
    for _ in read_blocks(path, rows=1):
        with pytest.warns(UserWarning, match="mine"):
            warnings.warn("mine", UserWarning, stacklevel=1)
        before = list(warnings.filters)
    assert not [f for f in before if f[0] == "ignore" and f[1] is None and f[2] is UserWarning]
