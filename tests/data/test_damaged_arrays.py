"""Damaged, hostile or unusual ``.npy`` and ``.npz`` files raise a DataError that names the file."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremax.data import read
from extremax.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
ONES = sparse.csc_matrix(np.ones((4, 3), np.float32))


def refused(path: Path, words: str) -> None:
    with pytest.raises(DataError, match=words) as raised:
        read(path, unlabeled=True)
    assert str(raised.value).startswith(f"{path}: ")


def npy(header: str, data: bytes = b"") -> bytes:
    """An ``.npy`` with any header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def declared(descr: str, shape: str) -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


HEADERS = {
    "unbalanced": "{'descr': '<f4', 'shape': (3,",
    "not closed": "{'descr': '<f4', 'fortran_order': False, 'shape': '''",
    "no literal": "{'descr': '<f4', 'fortran_order': False, 'shape': open}",
    "deep": "(" * 4000,
    "deeper than Python parses": "-" * 7000 + "1",
    "too large": declared("'<f4'", "(1000000000, 100000)"),
    "larger than int64": declared("'<f4'", "(9223372036854775807, 3)"),
    "larger than any integer": declared("'<f4'", "(" + "9" * 40 + ", 3)"),
    "negative": declared("'<f4'", "(-4, 3)"),
    "objects": declared("'|O'", "(4, 3)"),
    "no type": declared("'no type'", "(4, 3)"),
    "a type that is too large": declared("'<U99999999999999999999'", "(4, 3)"),
    "a nested type": declared("[('a', '<f4', (99999, 99999))]", "(4, 3)"),
    "too little data": declared("'<f4'", "(4, 4)"),
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers(tmp_path: Path, header: str) -> None:
    content = npy(header, X.tobytes())
    (tmp_path / "X.npy").write_bytes(content)
    refused(tmp_path / "X.npy", "not a readable .npy")
    with zipfile.ZipFile(tmp_path / "X.npz", "w") as archive:
        archive.writestr("X.npy", content)
    refused(tmp_path / "X.npz", "not a readable .npz")


def test_a_header_of_another_version(tmp_path: Path) -> None:
    for version in (b"\x01\x01", b"\x09\x00"):
        content = npy(declared("'<f4'", "(4, 3)"), X.tobytes())
        (tmp_path / "X.npy").write_bytes(content[:6] + version + content[8:])
        refused(tmp_path / "X.npy", "not a readable .npy")


def zipped(change: Callable[[bytearray], None], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive with X, changed before it is written."""
    stream, buffer = io.BytesIO(), io.BytesIO()
    np.save(buffer, X)
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("X.npy", buffer.getvalue())
    content = bytearray(stream.getvalue())
    change(content)
    return bytes(content)


def encrypt(content: bytearray) -> None:
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1


def compress_oddly(content: bytearray) -> None:
    content[8] = content[content.index(b"PK\x01\x02") + 10] = 97


def damage(content: bytearray) -> None:
    content[50:70] = b"\xff" * 20


def cut(content: bytearray) -> None:
    del content[len(content) // 2 :]


@pytest.mark.parametrize("change", [encrypt, compress_oddly, damage, cut])
@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_members(tmp_path: Path, change: Callable[[bytearray], None], compression: int) -> None:
    (tmp_path / "X.npz").write_bytes(zipped(lambda content: None, compression))
    assert np.array_equal(read(tmp_path / "X.npz", unlabeled=True).features, X)
    (tmp_path / "X.npz").write_bytes(zipped(change, compression))
    refused(tmp_path / "X.npz", "not a readable .npz")


def matrix(layout: str = "csc", **changed: Any) -> dict[str, Any]:
    """What `scipy.sparse.save_npz` writes for a matrix of ones, with other values for some."""
    made = ONES.asformat(layout)
    arrays = {"format": layout.encode(), "shape": made.shape, "data": made.data}
    names = ("row", "col") if layout == "coo" else ("indices", "indptr")
    return arrays | {name: getattr(made, name) for name in names} | changed


def with_value(array: np.ndarray, place: int, value: float) -> np.ndarray:
    array = array.astype(np.int64)
    array[place] = value
    return array


COO = ONES.tocoo()
DAMAGED_MATRICES: dict[str, dict[str, Any]] = {
    "a column index": matrix(indices=with_value(ONES.indices, 5, 500_000_000)),
    "a column index just outside": matrix(indices=with_value(ONES.indices, 5, 4)),
    "a negative column index": matrix(indices=with_value(ONES.indices, 5, -1)),
    "columns that end too late": matrix(indptr=with_value(ONES.indptr, 3, 500)),
    "columns that begin too late": matrix(indptr=with_value(ONES.indptr, 0, 1)),
    "columns that fall": matrix(indptr=with_value(ONES.indptr, 1, 11)),
    "too few offsets": matrix(indptr=ONES.indptr[:-1]),
    "too few values": matrix(data=ONES.data[:-1]),
    "another shape": matrix(shape=(2, 3)),
    "a negative shape": matrix(shape=(4, -3)),
    "three dimensions": matrix(shape=(4, 3, 1)),
    "a shape of one number": matrix(shape=12),
    "a shape of floats": matrix(shape=(4.0, 3.0)),
    "indices of floats": matrix(indices=ONES.indices.astype(float)),
    "unsigned indices": matrix(indices=ONES.indices.astype(np.uint64)),
    "two-dimensional indices": matrix(indices=ONES.indices.reshape(3, 4)),
    "complex values": matrix(data=ONES.data * 1j),
    "text values": matrix(data=ONES.data.astype(str)),
    "two-dimensional values": matrix(data=ONES.data.reshape(3, 4)),
    "csr index": matrix("csr", indices=with_value(ONES.tocsr().indices, 5, 500_000_000)),
    "coo row": matrix("coo", row=with_value(COO.row, 5, 500_000_000)),
    "coo negative column": matrix("coo", col=with_value(COO.col, 5, -1)),
    "coo too few columns": matrix("coo", col=COO.col[:-1]),
    "no such format": matrix() | {"format": b"lil"},
    "no format": matrix() | {"format": np.array([b"csc", b"csr"])},
    "bsr": matrix() | {"format": b"bsr"},
    "dia": {"format": b"dia", "shape": (4, 3), "data": np.ones((1, 3)), "offsets": [2**62]},
    "a missing part": {"format": b"csr", "shape": (4, 3), "data": np.ones(3)},
}


@pytest.mark.parametrize("arrays", DAMAGED_MATRICES.values(), ids=DAMAGED_MATRICES)
def test_sparse_matrices_are_checked_before_they_are_converted(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    for layout in ("csr", "csc", "coo"):
        np.savez(tmp_path / "X.npz", **matrix(layout))
        features = read(tmp_path / "X.npz", unlabeled=True).features
        assert np.array_equal(features.toarray(), np.ones((4, 3)))
    np.savez(tmp_path / "X.npz", **arrays)
    refused(tmp_path / "X.npz", "not a readable|matrix|integer indices")


def test_other_formats_of_scipy_say_how_to_convert_them(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "X.npz", sparse.bsr_matrix(X))
    refused(tmp_path / "X.npz", r"'bsr', expected one of csr, csc, coo; convert it with tocsr")


@pytest.mark.parametrize("point", [0xD800, 0x110000, 2**31])
def test_labels_that_are_not_unicode_are_refused(tmp_path, point):
    labels = np.array(["a", "b"])
    labels.view(np.uint32)[1] = point
    np.save(tmp_path / "X.npy", np.ones((2, 2), np.float32))
    np.save(tmp_path / "y.npy", labels)
    with pytest.raises(DataError, match=r"y\.npy.*not Unicode"):
        read(tmp_path / "X.npy", labels=tmp_path / "y.npy")


@pytest.mark.parametrize("last", [0, -1])
@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_offsets_beyond_the_indices_are_refused(tmp_path: Path, layout: str, last: int) -> None:
    matrix = ONES.asformat(layout, copy=True)
    matrix.indptr[1:-1], matrix.indptr[-1] = 10**9, last
    arrays = {key: getattr(matrix, key) for key in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "X.npz", format=layout.encode(), **arrays)
    refused(tmp_path / "X.npz", "indptr|number of values|nnz|size")


def test_want_of_memory_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr(np.lib.format, "read_array", fail)
    monkeypatch.setattr(np.lib.format, "open_memmap", fail)
    np.savez(tmp_path / "X.npz", X=X)
    np.save(tmp_path / "X.npy", X)
    for path in (tmp_path / "X.npz", tmp_path / "X.npy"):
        with pytest.raises(MemoryError, match=f"^{path}: Unable to allocate 3 TiB"):
            read(path, unlabeled=True)


def test_mistakes_of_the_package_are_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extremax.data.arrays.check_matrix", lambda *_: 1 / 0)
    sparse.save_npz(tmp_path / "X.npz", ONES)
    with pytest.raises(ZeroDivisionError):
        read(tmp_path / "X.npz", unlabeled=True)
