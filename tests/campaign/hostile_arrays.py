"""``.npy`` and ``.npz`` files written to be difficult: odd headers, archives that lie."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from scipy import sparse

from tests.campaign.array_files import Files, npy_bytes

_SHAPES = """
(3, 2)|(3,)|()|(3, 2, 1)|(-3, 2)|(-3, -2)|(0, 2)|(3, 0)|3|[3, 2]|(True, 2)|(3.0, 2)|('3', 2)
(None, 2)|(10**3, 2)|(1000000000000, 1000000)|(9223372036854775807, 2)|(9223372036854775808, 2)
(4611686018427387904, 4)|(1 << 70, 2)|(3L, 2)|(3, 2, 1, 1) * 99|(4294967296, 4294967296)|(1e3, 2)
(4294967296, 1)|(1, 1000000000)|(3+0j, 2)|(3, -0)
"""
_TYPES = """
'<f4'|'>f4'|'<f2'|'<f8'|'<f16'|'O'|'<i4'|'<c8'|'<U5'|'S4'|'V4'|'<M8[s]'|[('a', '<f4')]
[('a', '<f4', (2,))]|'<f4,<f4'|('<f4', (2,))|'b1'|'<f3'|''|None|4|'x'|'<f4\\x00'|{}|[]|()|[('a',)]
'<U999999999'|'(2,)<f4'|'<V0'|'S0'|'<U0'|[('a', 'O')]|b'<f4'|'float32'|'d'|'g'
"""
_NO_HEADERS = """
'|\'\'\'|\\|{}|{1: 2}|lambda: 0|{'descr': '<f4'}|{'shape': (3, 2)}|f'{1}'|0b2|{[]: 1}|é|…|
{'descr': '<f4', 'fortran_order': 1, 'shape': (3, 2)}
{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), 'x': 1}
"""


def _header(type_: str, shape: str) -> str:
    return f"{{'descr': {type_}, 'fortran_order': False, 'shape': {shape}, }}"


def _cells(table: str) -> list[str]:
    return [cell for line in table.strip().split("\n") for cell in line.split("|")]


_HEADERS = (
    *(_header("'<f4'", shape) for shape in _cells(_SHAPES)),
    *(_header(type_, "(3, 2)") for type_ in _cells(_TYPES)),
    *_cells(_NO_HEADERS),
    *("(" * 90, "(" * 400, "{" * 50_000, "[" * 5000 + "]" * 5000, "-" * 3000 + "1", "1" * 5000),
    *("\x00", "\n\n  x\n y", _header("'<f4'", f"({'9' * 5000}, 2)")),
    _header("'<f4'", "(" + "1, " * 100 + ")"),
)


def hostile_npy(random: Random) -> Files:
    """Headers that are valid for nobody, or that promise more than there is."""
    content = random.choice(_HEADERS).encode() + b"\n"
    version = random.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x04\x00", b"\x00\x00"))
    width = 2 if version[0] == 1 else 4
    size = min(len(content), 256**width - 1).to_bytes(width, "little")
    size = random.choice((size, size, size, size, b"\xff" * width, b"\x00" * width))
    data = np.arange(6, dtype="<f4").tobytes()
    hostile = b"\x93NUMPY" + version + size + content + data
    files = {
        "X.npy": npy_bytes(np.ones((3, 2), "f4"), (1, 0)),
        "y.npy": npy_bytes(np.arange(3), (1, 0)),
    }
    return files | {random.choice(("X.npy", "X.npy", "y.npy")): hostile}


def hostile_npz(random: Random) -> Files:
    """Archives and matrices that lie about their content."""
    content = random.choice(_HOSTILE_NPZ)(random)
    if isinstance(content, bytes):
        return {"data.npz": content}
    content = {"y": np.arange(3), **content}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random.choice((0, 8, 12, 14))) as archive:
        for name, array in content.items():
            archive.writestr(
                f"{name}.npy", array if isinstance(array, bytes) else npy_bytes(array, (1, 0))
            )
    data = buffer.getvalue()
    if random.random() < 0.1:
        data = _with_flags(random, data)
    return {"data.npz": data}


def _with_flags(random: Random, data: bytes) -> bytes:
    """Set flags or the compression method of the members: encrypted, patched, unknown."""
    field, value = random.choice(
        ((6, 1), (6, 1 << 5), (6, 1 << 6), (8, 99), (8, 1), (8, 9), (4, 99))
    )
    changed = bytearray(data)
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        place = data.find(mark)
        while place >= 0:
            struct.pack_into("<H", changed, place + field + shift, value)
            place = data.find(mark, place + 1)
    return bytes(changed)


def _csr(random: Random) -> dict[str, Any]:
    """A matrix of three rows and four columns with one thing wrong."""
    layout = random.choice(("csr", "csc", "coo", "bsr", "dia"))
    matrix = sparse.csr_matrix(np.array([[1, 0, 2, 0], [0, 0, 3, 0], [4, 5, 0, 6]], "f4"))
    buffer = io.BytesIO()
    sparse.save_npz(buffer, matrix.asformat(layout), compressed=False)
    arrays: dict[str, Any] = dict(np.load(io.BytesIO(buffer.getvalue())))
    for key in random.sample(sorted(arrays), random.choice((1, 1, 2))):
        arrays[key] = random.choice(_SPOILT)(random, arrays[key])
        if random.random() < 0.1:
            del arrays[key]
    return arrays


def _one_extreme(random: Random, array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    if not changed.size or changed.dtype.kind not in "if":
        return changed
    extremes = (-1, 0, 1, 2, 3, 4, 5, 100, 2**31 - 1, -(2**31), -(2**15))
    floats = (np.nan, np.inf, -np.inf, 1e30, 3e38, -0.0)
    value = random.choice(floats if changed.dtype.kind == "f" else extremes)
    changed.flat[random.randrange(changed.size)] = value
    return changed


def _of_type(random: Random, array: np.ndarray) -> np.ndarray:
    types = ("S5", "U5") if array.dtype.kind == "S" else ("f4", "f8", "i8", "u8", "u1", "?", "c8")
    return array.astype(random.choice(types))


_SPOILT: tuple[Callable[[Random, np.ndarray], Any], ...] = (
    *(_one_extreme, _one_extreme, _one_extreme, _one_extreme),
    lambda random, array: array[:-1] if array.ndim else array[None],
    lambda random, array: np.append(array, array.ravel()[:1]),
    lambda random, array: array[::-1] if array.ndim else np.array("xyz"),
    _of_type,
    lambda random, array: array[..., None],
    lambda random, array: array.astype("f8") * 1e300 if array.dtype.kind == "f" else array,
    lambda random, array: np.zeros(0, array.dtype),
    lambda random, array: np.array(10 ** random.choice((4, 9, 12, 18))),
    lambda random, array: np.array([3, 10 ** random.choice((4, 9, 12, 18))]),
    lambda random, array: np.array([10 ** random.choice((4, 9, 12, 18)), 4]),
    lambda random, array: hostile_npy(random)["X.npy"],
)


def _archive_of(names: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, npy_bytes(np.ones((3, 2)), (1, 0)))
    return buffer.getvalue()


_HOSTILE_NPZ: tuple[Callable[[Random], Any], ...] = (
    *(_csr, _csr, _csr, _csr, _csr, _csr),
    lambda random: {"X": hostile_npy(random)["X.npy"]},
    lambda random: {"X": np.ones((3, 2)), "y": hostile_npy(random)["y.npy"]},
    lambda random: {"X": b"no npy at all", "y": np.arange(3)},
    lambda random: {
        "X": np.ones((3, 2), random.choice(("f2", "f8", "i4", "c8", "U3", ">f4", "f16")))
    },
    lambda random: {"X": np.ones((3, 2)), "y": np.array([2**64 - 1, 0, 1], "u8")},
    lambda random: {"X": np.zeros((3, 2_000_000), "f4")},
    lambda random: {"X": np.ones((3, 2)), "y": np.array(["a", "b" * 100_000, "c"])},
    lambda random: {"X": np.ones(random.choice(((0, 2), (3, 0), (4, 2), (3,))))},
    lambda random: _archive_of(("X", "y.txt")),
    lambda random: _archive_of(("../X.npy", "y.npy")),
    lambda random: _archive_of(("X.npy", "X.npy")),
    lambda random: random.choice(
        (b"", b"PK", b"PK\x05\x06" + b"\0" * 18, b"\x93NUMPY", b"\x80\x04.")
    ),
)
