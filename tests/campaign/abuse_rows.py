"""Rows of features as users might pass them: in odd containers and types, with impossible values,
or not rows at all."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch
from scipy import sparse

from tests.campaign.abuse_values import WRONG_TYPES, Changes, Value, change, with_value


def _tampered(X: sparse.csr_matrix, part: str, place: Any, value: Any) -> sparse.csr_matrix:
    """A matrix that scipy would not have made; of one without values an unbearable one."""
    X = X.copy() if X.nnz else sparse.csr_matrix(np.ones(X.shape, np.float32))
    getattr(X, part)[place] = value
    return X


def _repeated(X: sparse.csr_matrix, value: float) -> sparse.csr_matrix:
    """Every row has this value twice in its first column."""
    n = X.shape[0]
    arrays = np.full(2 * n, value, np.float32), np.zeros(2 * n, int), np.arange(0, 2 * n + 1, 2)
    return sparse.csr_matrix(arrays, X.shape)


def _ends(X: sparse.csr_matrix) -> list[int]:
    return [10**9] * (X.shape[0] - 1) + [-1]


def _long_indices(X: sparse.csr_matrix) -> sparse.csr_matrix:
    X = X.copy()
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


_DENSE_ODD: Changes = {
    "list of lists": lambda X: X.tolist(),
    "tuple of arrays": tuple,
    "fortran order": np.asfortranarray,
    "float64": lambda X: X.astype(np.float64),
    "big endian": lambda X: X.astype(">f8"),
    "float16": lambda X: X.astype(np.float16),
    "long double": lambda X: X.astype(np.longdouble),
    "int8": lambda X: X.astype(np.int8),
    "largest int64": with_value(2**49, np.int64),
    "booleans": lambda X: X > 0,
    "objects": lambda X: X.astype(object),
    "numbers as strings": lambda X: X.astype(str),
    "reversed": lambda X: X[::-1, ::-1],
    "every second column of more": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "read-only": lambda X: np.frombuffer(X.tobytes(), X.dtype).reshape(X.shape),
    "np.matrix": np.asmatrix,
    "masked array": lambda X: np.ma.masked_array(X, X > 1),
    "tensor": torch.from_numpy,
    "bfloat16": lambda X: torch.from_numpy(X).bfloat16(),
    "tensor with gradient": lambda X: torch.from_numpy(X).requires_grad_(),
    "zeros": np.zeros_like,
    "tiny": lambda X: X * np.float32(1e-42),
    "large": lambda X: X * np.float32(1e13),
    "one large": with_value(1e15),
    "one minus large": with_value(-1e15),
    "one column apart in scale": lambda X: (
        X * np.array([1e14] + [1e-14] * (X.shape[1] - 1), np.float32)
    ),
    "all alike": lambda X: np.ones_like(X),
    "as sparse": sparse.csr_matrix,
}
_DENSE_BAD: Changes = {
    "NaN": with_value(np.nan),
    "infinity": with_value(np.inf),
    "minus infinity in float16": with_value(-np.inf, np.float16),
    "1e16": with_value(1e16),
    "1e38": with_value(1e38),
    "1e300": with_value(1e300, np.float64),
    "largest uint64": with_value(2**64 - 1, np.uint64),
    "NaN among objects": with_value(np.nan, object),
    "complex": lambda X: X.astype(complex),
    "dates": lambda X: X.astype(np.int64).astype("M8[D]"),
    "one dimension": lambda X: X[:, 0],
    "three dimensions": lambda X: X[None],
    "no rows": lambda X: X[:0],
    "no columns": lambda X: X[:, :0],
    "empty list": lambda X: [],
    "list of an empty list": lambda X: [[]] * len(X),
    "ragged list": lambda X: [[1.0], *X.tolist()],
    "a string": lambda X: "abc",
    "structured": lambda X: np.zeros(len(X), [("a", "f4"), ("b", "f4")]),
    "zero dimensions": lambda X: np.float32(1),
    "words in an array": lambda X: np.full(X.shape, "word"),
}
_SPARSE_ODD: Changes = {
    "csc": lambda X: X.tocsc(),
    "coo": lambda X: X.tocoo(),
    "lil": lambda X: X.tolil(),
    "dok": lambda X: X.todok(),
    "bsr": lambda X: X.tobsr(),
    "dia": lambda X: X.todia(),
    "csr array": sparse.csr_array,
    "long indices": _long_indices,
    "int8": lambda X: X.astype(np.int8),
    "booleans": lambda X: X.astype(bool),
    "float64": lambda X: X.astype(np.float64),
    "float16 values": lambda X: sparse.csr_matrix(X.toarray().astype(np.float16).astype("f8")),
    "repeated": lambda X: _repeated(X, 1.0),
    "large": lambda X: X * np.float32(1e13),
    "tiny": lambda X: X * np.float32(1e-42),
    "no values": lambda X: sparse.csr_matrix(X.shape, dtype=np.float32),
    "zeros stored": lambda X: X * np.float32(0),
    "as dense": lambda X: X.toarray(),
    "read-only values": lambda X: _read_only(X.copy()),
}
_SPARSE_BAD: Changes = {
    "NaN": lambda X: _tampered(X, "data", -1, np.nan),
    "infinity": lambda X: _tampered(X, "data", -1, np.inf),
    "1e38": lambda X: _tampered(X, "data", -1, 1e38),
    "1e300": lambda X: _tampered(X.astype(np.float64), "data", -1, 1e300),
    "repeated to infinity": lambda X: _repeated(X, 3e38),
    "column out of range": lambda X: _tampered(X, "indices", -1, 10**9),
    "negative column": lambda X: _tampered(X, "indices", 0, -5),
    "end beyond the values": lambda X: _tampered(X, "indptr", -1, 10**6),
    "falling ends": lambda X: _tampered(X, "indptr", -1, -1),
    "ends beyond the values, then none": lambda X: _tampered(X, "indptr", slice(1, None), _ends(X)),
    "complex": lambda X: X.astype(complex),
    "no rows": lambda X: X[:0],
    "no columns": lambda X: X[:, :0],
    "one dimension": lambda X: sparse.coo_array(np.ones(X.shape[0], np.float32)),
}
_TEXT_ODD: Changes = {
    "tuple": tuple,
    "array": np.array,
    "objects": lambda X: np.array(X, dtype=object),
    "empty texts": lambda X: [""] * len(X),
    "unknown words": lambda X: ["zyx"] * len(X),
    "a long text": lambda X: [*X[:-1], "word1 " * 20_000],
    "a long word": lambda X: [*X[:-1], "w" * 100_000],
    "half a character": lambda X: [*X[:-1], "word1 \ud800"],
    "no text but signs": lambda X: ["\0 \ufeff \u202e", *X[1:]],
}
_TEXT_BAD: Changes = {
    "a number in it": lambda X: [*X, 5],
    "bytes in it": lambda X: [*X, b"word1"],
    "None in it": lambda X: [*X, None],
    "NaN in an array": lambda X: np.array([*X, np.nan], dtype=object),
    "a list in it": lambda X: [*X, ["word1"]],
    "a string": lambda X: "word1",
    "two columns": lambda X: np.array([X, X]).T,
    "bytes first": lambda X: [b"word1", *X],
    "no rows": lambda X: [],
}
_CHANGES = {
    "dense": (_DENSE_ODD, _DENSE_BAD),
    "sparse": (_SPARSE_ODD, _SPARSE_BAD),
    "text": (_TEXT_ODD, _TEXT_BAD),
}


def _read_only(X: sparse.csr_matrix) -> sparse.csr_matrix:
    for array in (X.data, X.indices, X.indptr):
        array.flags.writeable = False
    return X


def changed_rows(random: Random, kind: str, rows: Any) -> Value:
    """Odd, bad or wrong rows in place of good ones."""
    wrong = {name: make for name, make in WRONG_TYPES.items() if name != "a generator"}
    return change(random, rows, *_CHANGES[kind], wrong)
