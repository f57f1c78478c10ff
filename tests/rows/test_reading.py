"""What a user may pass as features, and what is refused; dropout of sparse values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.errors import ArgumentError
from extremax.kernels.cpu.threads import limit
from extremax.random import Stream
from extremax.rows import DenseRows, Rows, SparseRows, as_rows

every_kind = pytest.mark.parametrize("kind", [DenseRows, SparseRows])
NUMBERS = np.array([[1, 0, 2], [0, 0, 0], [0, 3, -4]])


def numbers_of(rows: Rows) -> np.ndarray:
    return rows.array if isinstance(rows, DenseRows) else rows.sparse().matrix.toarray()


INPUTS: dict[str, Any] = {
    "float32": NUMBERS.astype(np.float32),
    "float64": NUMBERS.astype(np.float64),
    "float16": NUMBERS.astype(np.float16),
    "int8": NUMBERS.astype(np.int8),
    "by columns": np.asfortranarray(NUMBERS),
    "list": NUMBERS.tolist(),
    "csr": sparse.csr_matrix(NUMBERS),
    "csc": sparse.csc_matrix(NUMBERS),
    "coo": sparse.coo_matrix(NUMBERS),
    "csr array": sparse.csr_array(NUMBERS),
}


@every_kind
@pytest.mark.parametrize("features", INPUTS.values(), ids=INPUTS)
def test_numbers_of_every_kind_are_read(kind: type[Rows], features: Any) -> None:
    rows = kind.read(features)
    assert type(rows) is kind
    assert np.array_equal(numbers_of(rows), NUMBERS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_tensors_are_read(dtype: torch.dtype) -> None:
    tensor = torch.from_numpy(NUMBERS).to(dtype)
    assert np.array_equal(DenseRows.read(tensor).array, NUMBERS)
    if dtype.is_floating_point:
        assert np.array_equal(DenseRows.read(tensor.requires_grad_()).array, NUMBERS)


def test_columns_of_a_matrix_have_one_dimension() -> None:
    assert DenseRows.read(np.asmatrix(NUMBERS)).array[:, 0].shape == (len(NUMBERS),)


def test_arrays_and_memory_maps_are_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", INPUTS["float64"])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for array in (INPUTS["float32"], INPUTS["int8"], mapped):
        assert DenseRows.read(array).array is array


@every_kind
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "NaN"),
        (np.inf, "infinity or a value too large"),
        (-np.inf, "infinity or a value too large"),
        (1e39, "infinity or a value too large"),
        (-3e38, "-3e\\+38, beyond ±1e\\+15,"),
        (2e15, "2e\\+15, beyond ±1e\\+15,"),
    ],
)
def test_what_is_not_finite_is_refused_with_its_row_and_column(
    kind: type[Rows], value: float, words: str
) -> None:
    features = np.ones((40, 6))
    features[17, 4] = value
    for given in (features, sparse.csr_matrix(features)):
        with pytest.raises(ValueError, match=rf"contains {words}.* in row 17, column 4"):
            kind.read(given)


@every_kind
def test_large_integers_are_refused_too(kind: type[Rows]) -> None:
    features = np.array([[1, -(2**62)]])
    for given in (features, sparse.csr_matrix(features), features.tolist()):
        with pytest.raises(ArgumentError, match="in row 0, column 1; remove, impute or rescale it"):
            kind.read(given)
    kind.read(np.full((2, 2), 1e15))


@every_kind
@pytest.mark.parametrize(
    "features",
    [np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(3), np.zeros((2, 2, 2)), [["a"]], [[1j]], None],
)
def test_what_is_not_a_table_of_numbers_is_refused(kind: type[Rows], features: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        kind.read(features)


def duplicated(*values: float) -> sparse.csr_matrix:
    """Two entries of one place, out of order."""
    data, indices = np.array([*values, 5.0], np.float32), np.array([2, 2, 0])
    return sparse.csr_matrix((data, indices, np.array([0, 3, 3])), shape=(2, 3))


def test_repeated_entries_are_summed_and_put_in_order() -> None:
    given = duplicated(1.0, 2.0)
    rows = SparseRows.read(given)
    assert rows.indices.tolist() == [0, 2]
    assert rows.values.tolist() == [5.0, 3.0]
    # The caller's matrix is as it was.
    assert given.indices.tolist() == [2, 2, 0]
    with pytest.raises(ValueError, match="too large for float32 in row 0, column 2"):
        SparseRows.read(duplicated(3e38, 3e38))


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array])
@pytest.mark.parametrize("index", [-1, 3, 500_000_000])
def test_indices_are_checked_before_compiled_code_sees_them(make: Any, index: int) -> None:
    matrix = make(np.eye(3))
    matrix.indices[1] = index
    with pytest.raises(ArgumentError, match=f"not a valid {matrix.format} matrix"):
        as_rows(matrix)


@pytest.mark.parametrize(
    "X",
    [
        *(np.zeros(3), np.zeros((2, 2, 2)), np.zeros((2, 0)), np.ones((2, 2), complex)),
        *(1.0, None, {"a": 1}, [[1.0], [1.0, 2.0]], np.array([["a"]]), sparse.csr_matrix((2, 0))),
    ],
    ids=str,
)
def test_what_is_no_matrix_of_numbers_is_an_argument_error(X: Any) -> None:
    with pytest.raises(ArgumentError, match="X cannot be used"):
        as_rows(X)


def test_kernels_get_the_types_they_are_compiled_for() -> None:
    for features in INPUTS.values():
        types = [array.dtype for array in SparseRows.read(features).arrays]
        assert types == [np.int64, np.int32, np.float32]


def test_dropout_keeps_the_mean_and_depends_on_the_row_alone() -> None:
    rows = SparseRows.of(np.ones((4_000, 5), np.float32))
    stream = Stream.of(1, rows=np.arange(4_000))
    dropped = rows.with_dropout(0.25, stream)
    values = dropped.matrix.toarray()
    np.testing.assert_allclose(np.unique(values), [0.0, 1 / 0.75], rtol=1e-6)
    # 20,000 values with a standard deviation of 0.58.
    assert abs(values.mean() - 1.0) < 5 * 0.58 / 20_000**0.5
    selected = np.array([7, 3, 3_999])
    alone = rows[selected].with_dropout(0.25, Stream(stream.key, selected))
    np.testing.assert_array_equal(alone.matrix.toarray(), values[selected])
    np.testing.assert_array_equal(rows.values, 1.0)
    with limit(3):
        again = rows.with_dropout(0.25, stream)
    np.testing.assert_array_equal(again.values, dropped.values)


@pytest.mark.parametrize("last", [0, -1, 10**9])
@pytest.mark.parametrize("read", [DenseRows.read, SparseRows.read])
def test_offsets_are_checked_before_compiled_code_sees_them(read: Any, last: int) -> None:
    matrix = sparse.csr_matrix(np.ones((4, 3), np.float32))
    matrix.indptr[1:-1], matrix.indptr[-1] = 10**9, last
    before = matrix.data.copy()
    with pytest.raises(ArgumentError, match="indptr"):
        read(matrix)
    np.testing.assert_array_equal(matrix.data, before)


def test_dates_are_not_features() -> None:
    with pytest.raises(ArgumentError, match="datetime64"):
        as_rows(np.ones((2, 2), "M8[D]"))


@pytest.mark.parametrize("read", [DenseRows.read, SparseRows.read])
def test_the_scale_of_tiny_numbers_fits_float32(read: Any) -> None:
    scale = read(np.full((4, 3), 1e-44, np.float32)).unit_scale()
    # With room for the weights that absorb it.
    assert 1.0 < 1e4 * scale < np.finfo(np.float32).max
