"""Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError
from extremax.label_lists import LabelLists

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def save(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "a.parquet", **options)
    return folder / "a.parquet"


def test_text(tmp_path):
    path = save(tmp_path, {"text": ["x", "y", "z"], "id": [1, 2, 3], "label": ["b", None, "a"]})
    found = read(path)
    assert found.kind == "text"
    assert found.features == ["x", "z"]
    assert found.labels.tolist() == ["b", "a"]
    assert found.n_dropped == 1
    found = read(path, unlabelled=True)
    assert (found.features, found.labels, found.n_dropped) == (["x", "y", "z"], None, 0)


def test_named_columns(tmp_path):
    path = save(tmp_path, {"title": ["x", "y"], "subject": [5, 7], "text": ["no", "no"]})
    found = read(path, label_column="subject", text_column="title")
    assert found.features == ["x", "y"]
    assert found.labels.tolist() == [5, 7]
    assert found.labels.dtype == np.int64


def test_numbers(tmp_path):
    columns = {
        "b": np.array([1.5, 2.5, 3.5]),
        "name": ["x", "y", "z"],
        "label": pa.array([3, None, 4], pa.int16()),
        "a": np.array([7, 8, 9], dtype=np.int8),
    }
    path = save(tmp_path, columns)
    found = read(path)
    assert found.kind == "dense"
    assert found.features.dtype == np.float32
    # In the file's order; strings and the label are no features, even when labels are ignored.
    assert found.features.tolist() == [[1.5, 7], [3.5, 9]]
    assert found.labels.tolist() == [3, 4]
    assert found.labels.dtype == np.int64
    assert found.n_dropped == 1
    assert read(path, unlabelled=True).features.tolist() == [[1.5, 7], [2.5, 8], [3.5, 9]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 2), pa.large_list(pa.int32())]
)
def test_lists(tmp_path, kind):
    rows = [[i, 2 * i] for i in range(10)]
    labels = pa.array(list("abcdefghij")).dictionary_encode()
    path = save(tmp_path, {"features": pa.array(rows, kind), "label": labels}, row_group_size=4)
    found = read(path, limit=9)
    assert found.features.tolist() == rows[:9]
    assert found.labels.tolist() == list("abcdefghi")
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
    found = read(path, keep_labels="all")
    assert isinstance(found.labels, LabelLists)
    # A null is no label, whether it stands for a list or in one.
    assert found.labels.tolist() == [["b", "a"], ["c"], ["a"], ["d", "a"]]
    assert found.features == list("uwyz")
    assert (found.n_dropped, found.n_multilabel) == (2, 3)
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


def test_lists_of_whole_numbers_as_labels(tmp_path):
    labels = pa.array([[7, 5], [], [5]], pa.list_(pa.int32()))
    path = save(tmp_path, {"x": [1.0, 2.0, 3.0], "label": labels})
    found = read(path, keep_labels="all")
    assert found.labels.tolist() == [[7, 5], [5]]
    assert found.labels.values.dtype == np.int64
    assert found.features.tolist() == [[1], [3]]
    assert (found.n_dropped, found.n_multilabel) == (1, 1)


def test_one_label_a_row_may_be_read_as_lists(tmp_path):
    path = save(tmp_path, {"text": ["x", "y", "z"], "label": ["b", None, "a"]})
    found = read(path, keep_labels="all")
    assert (found.labels.tolist(), found.n_dropped) == ([["b"], ["a"]], 1)


def test_scan(tmp_path):
    path = save(tmp_path, {"x": [1.0, 2.0, 3.0], "y": [1, 2, 3], "label": ["a", None, "a"]})
    found = scan(path)
    assert (found.rows, found.features, found.classes, found.nonzeros) == (2, 2, 1, None)
    assert (found.kind, found.bytes) == ("dense", path.stat().st_size)
    assert scan(path, unlabelled=True).rows == 3
    assert scan(path, unlabelled=True).classes is None


def test_only_needed_columns_are_read(tmp_path, monkeypatch):
    path = save(tmp_path, {"text": ["x"], "big": ["y"], "label": [1]})
    asked = []
    original = pq.ParquetFile.iter_batches

    def spy(self, *args, columns=None, **options):
        asked.append(columns)
        return original(self, *args, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    read(path)
    assert [sorted(columns) for columns in asked] == [["label", "text"]]


NULL = pa.array([1.0, 2.0, None])
PROBLEMS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no label": ({"x": [1.0]}, {}, "no column 'label'.*of: x"),
    "no such label": ({"x": [1.0], "label": [1]}, {"label_column": "y"}, "no column 'y'"),
    "no such text": ({"x": [1.0], "label": [1]}, {"text_column": "x"}, "no column 'x' of strings"),
    "no features": ({"name": ["a"], "label": [1]}, {}, "no lists and no numbers among: name"),
    "float labels": ({"x": [1.0], "label": [1.5]}, {}, "labels of type double in 'label'"),
    "lists of floats": ({"x": [1.0], "label": [[1.5]]}, {}, "labels of type double in 'label'"),
    "null": ({"x": NULL, "label": [1, 2, 3]}, {}, "row 3 has a null in 'x'"),
    "null text": ({"text": ["a", None], "label": [1, 2]}, {}, "row 2 has a null in 'text'"),
    "ragged": ({"features": [[1.0], [1.0], [1.0, 2.0]], "label": [1, 2, 3]}, {}, "row 3 has 2"),
    "null in a list": (
        {"features": [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, None]], "label": [1, 2, 3, 4]},
        {},
        "row 4 has a null in 'features'",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_names_its_row_or_column(tmp_path, name):
    columns, options, words = PROBLEMS[name]
    path = save(tmp_path, columns)
    with pytest.raises(DataError, match=words) as caught:
        list(read_blocks(path, rows=2, **options))
    assert str(caught.value).startswith(f"{path}: ")


def test_not_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"this is not a parquet file")
    with pytest.raises(DataError, match="parquet cannot be read") as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_without_pyarrow(tmp_path, monkeypatch):
    path = save(tmp_path, {"x": [1.0], "label": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'extremax\[parquet\]'"):
        read(path)
