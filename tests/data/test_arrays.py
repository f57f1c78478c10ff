"""``.npy`` and ``.npz`` files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from extremax.data import read, read_blocks, scan
from extremax.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def save(folder: Path, name: str, array: np.ndarray) -> Path:
    np.save(folder / name, array)
    return folder / name


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npy_stays_on_disk(tmp_path, dtype):
    path = save(tmp_path, "X.npy", X.astype(dtype))
    labels = save(tmp_path, "y.npy", np.array([3, 1, 3, 2], dtype=np.uint8))
    data = read(path, labels=labels)
    assert isinstance(data.features, np.memmap)
    assert data.features.dtype == dtype
    np.testing.assert_array_equal(data.features, X)
    assert data.labels.tolist() == [3, 1, 3, 2]
    assert data.labels.dtype == np.int64
    assert data.kind == "dense"
    assert (len(data), data.source) == (4, (path, labels))
    for start, block in zip((0, 3), read_blocks(path, labels=labels, rows=3), strict=True):
        assert isinstance(block.features, np.memmap)
        np.testing.assert_array_equal(block.features, X[start : start + 3])
        assert block.labels.tolist() == [3, 1, 3, 2][start : start + 3]


def test_npy_with_string_labels(tmp_path):
    path = save(tmp_path, "X.npy", X)
    labels = save(tmp_path, "y.npy", np.array(["a", "bc", "a", "é"]))
    assert read(path, labels=labels).labels.tolist() == ["a", "bc", "a", "é"]
    (tmp_path / "y.txt").write_text("1\nb c\n1\né\n", encoding="utf-8")
    assert read(path, labels=tmp_path / "y.txt").labels.tolist() == ["1", "b c", "1", "é"]


def test_one_label_per_row_can_be_read_as_lists(tmp_path):
    path = save(tmp_path, "X.npy", X)
    labels = save(tmp_path, "y.npy", np.array([3, 1, 3, 2]))
    data = read(path, labels=labels, keep_labels="all", limit=3)
    assert data.labels.tolist() == [[3], [1], [3]]
    blocks = list(read_blocks(path, labels=labels, keep_labels="all", rows=3))
    assert [block.labels.tolist() for block in blocks] == [[[3], [1], [3]], [[2]]]
    assert read(path, keep_labels="all", unlabeled=True).labels is None


def test_npy_unlabeled_and_limit(tmp_path):
    path = save(tmp_path, "X.npy", X)
    data = read(path, unlabeled=True, limit=2)
    assert data.labels is None
    np.testing.assert_array_equal(data.features, X[:2])
    assert isinstance(data.features, np.memmap)


def test_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=X, y=np.array([0, 1, 2, 3]))
    data = read(path, limit=3)
    np.testing.assert_array_equal(data.features, X[:3])
    assert data.labels.tolist() == [0, 1, 2]
    labels = save(tmp_path, "y.npy", np.array([9, 8, 7, 6]))
    assert read(path, labels=labels).labels.tolist() == [9, 8, 7, 6]
    assert read(path, unlabeled=True).labels is None


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.coo_array, sparse.csc_matrix])
def test_sparse_npz(tmp_path, make):
    path = tmp_path / "a.npz"
    sparse.save_npz(path, make(X.astype(np.float64)))
    labels = save(tmp_path, "y.npy", np.array([1, 2, 3, 4]))
    data = read(path, labels=labels)
    assert data.kind == "sparse"
    assert data.features.format == "csr"
    assert data.features.dtype == np.float32
    np.testing.assert_array_equal(data.features.toarray(), X)
    blocks = list(read_blocks(path, labels=labels, rows=3))
    assert [block.features.shape for block in blocks] == [(3, 3), (1, 3)]
    summary = scan(path, labels=labels)
    assert (summary.rows, summary.features, summary.classes) == (4, 3, 4)
    assert summary.nonzeros == 11
    assert summary.bytes == path.stat().st_size + labels.stat().st_size


def test_sparse_npz_with_labels(tmp_path):
    path = tmp_path / "a.npz"
    matrix = sparse.csr_matrix(X)
    arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    np.savez(path, format=b"csr", shape=(4, 3), y=np.array([5, 6, 7, 8]), **arrays)
    data = read(path)
    assert data.labels.tolist() == [5, 6, 7, 8]
    np.testing.assert_array_equal(data.features.toarray(), X)
    # An index out of range must not reach compiled code.
    arrays["indices"] = arrays["indices"] + 1
    np.savez(path, format=b"csr", shape=(4, 3), y=np.array([5, 6, 7, 8]), **arrays)
    with pytest.raises(DataError, match=f"{path}: .* not a valid csr matrix"):
        read(path)


def test_scan(tmp_path):
    path = save(tmp_path, "X.npy", X)
    labels = save(tmp_path, "y.npy", np.array([3, 1, 3, 2]))
    data = scan(path, labels=labels)
    assert (data.rows, data.features, data.classes, data.nonzeros) == (4, 3, 3, None)
    assert (data.kind, data.bytes) == ("dense", path.stat().st_size + labels.stat().st_size)
    assert scan(path, unlabeled=True).classes is None


FEATURES = {
    "objects": (np.array([[1, "a"]], dtype=object), "a pickle"),
    "integers": (np.ones((4, 3), dtype=np.uint8), "uint8; save them as float32"),
    "big-endian": (np.ones((4, 3), dtype=">f4"), ">f4; save them as float32"),
    "one dimension": (np.ones(4), "1 dimensions"),
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_invalid_features_are_rejected(tmp_path, name, suffix):
    array, message = FEATURES[name]
    path = tmp_path / f"X{suffix}"
    if suffix == ".npy":
        np.save(path, array, allow_pickle=True)
    else:
        np.savez(path, X=array)
        message = "not a readable .npz" if name == "objects" else message
    with pytest.raises(DataError, match=message) as raised:
        read(path, unlabeled=True)
    assert str(raised.value).startswith(f"{path}: ")


LABELS = {
    "objects": (np.array([1, "a", 2, 3], dtype=object), "a pickle"),
    "floats": (np.ones(4), "float64, expected integers or strings"),
    "two dimensions": (np.ones((4, 1), dtype=int), "2 dimensions"),
    "beyond int64": (np.full(4, 2**63, dtype=np.uint64), "exceed the range of int64"),
    "missing": (np.ones(3, dtype=int), "3 labels for the 4 rows"),
}


@pytest.mark.parametrize("name", LABELS)
def test_invalid_labels_are_rejected(tmp_path, name):
    array, message = LABELS[name]
    path, labels = save(tmp_path, "X.npy", X), save(tmp_path, "y.npy", array)
    with pytest.raises(DataError, match=message) as raised:
        read(path, labels=labels)
    assert str(raised.value).startswith(f"{labels}: ")


def test_errors_name_the_line_of_the_label(tmp_path):
    path, labels = save(tmp_path, "X.npy", X), tmp_path / "y.txt"
    labels.write_bytes(b"1\n2\n\n4\n")
    with pytest.raises(DataError, match="empty line") as raised:
        read(path, labels=labels)
    assert str(raised.value).startswith(f"{labels}:3:1: ")
    labels.write_bytes(b"1\nab\xff\n3\n4\n")
    with pytest.raises(DataError, match="UTF-8") as raised:
        read(path, labels=labels)
    assert str(raised.value).startswith(f"{labels}:2:3: ")


def test_files_with_the_wrong_content_are_rejected(tmp_path):
    for name in ("a.npy", "a.npz"):
        for content in (b"", b"no array here", b"PK\x03\x04 cut off"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(DataError, match="not a readable") as raised:
                read(tmp_path / name, unlabeled=True)
            assert str(raised.value).startswith(f"{tmp_path / name}: ")
    np.savez(tmp_path / "a.npz", Z=X)
    with pytest.raises(DataError, match=r"neither an array X nor .* keys Z"):
        read(tmp_path / "a.npz")


def test_missing_labels_are_reported(tmp_path):
    with pytest.raises(DataError, match="no labels; pass the file that holds them as labels="):
        read(save(tmp_path, "X.npy", X))
    np.savez(tmp_path / "a.npz", X=X)
    with pytest.raises(DataError, match="under the key y"):
        read(tmp_path / "a.npz")
