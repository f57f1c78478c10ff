"""What rows of either kind promise, against plain numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.rows import DenseRows, Rows, SparseRows, as_rows, dense, row_blocks
from extremax.rows import sparse as sparse_rows

N, K = 50, 7
KINDS: list[type[Rows]] = [DenseRows, SparseRows]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def array() -> np.ndarray:
    """Numbers of which half are zero, and a row that is all zero."""
    rng = np.random.default_rng(0)
    array = np.where(rng.random((N, K)) < 0.5, rng.standard_normal((N, K)), 0.0)
    array[4] = 0.0
    return array.astype(np.float32)


def make(kind: type[Rows], array: np.ndarray) -> Rows:
    return DenseRows(array) if kind is DenseRows else SparseRows.of(array)


def numbers_of(rows: Rows) -> np.ndarray:
    """The rows as an array."""
    return rows.array if isinstance(rows, DenseRows) else rows.sparse().matrix.toarray()


@every_kind
def test_rows_know_their_shape(kind: type[Rows], array: np.ndarray) -> None:
    rows = make(kind, array)
    assert rows.shape == (len(rows), rows.n_features) == (N, K)
    stored = array.size if kind is DenseRows else np.count_nonzero(array)
    assert rows.nonzeros == stored / N
    assert rows.nbytes >= 4 * stored
    assert np.array_equal(numbers_of(rows), array)


SELECTIONS: dict[str, Any] = {
    "slice": slice(3, 20, 2),
    "reversed": slice(None, None, -1),
    "mask": np.arange(N) % 3 == 0,
    "numbers": np.array([7, 3, 3, 49, -1]),
    "none": np.zeros(0, np.int64),
    "tensor": torch.tensor([5, 1]),
}


@every_kind
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_indexing_selects_rows_as_in_numpy(
    kind: type[Rows], array: np.ndarray, selection: Any
) -> None:
    rows = make(kind, array)[selection]
    assert type(rows) is kind
    where = selection if isinstance(selection, slice) else np.asarray(selection)
    assert np.array_equal(numbers_of(rows), array[where])


@every_kind
def test_joined_rows_follow_one_another(kind: type[Rows], array: np.ndarray) -> None:
    rows = make(kind, array)
    joined = rows[:20].joined(rows[20:])
    assert type(joined) is kind
    assert np.array_equal(numbers_of(joined), array)
    # The other rows are converted if they must be; dense rows cannot be made of sparse ones.
    dense_too = SparseRows.of(array[:20]).joined(DenseRows(array[20:]))
    assert np.array_equal(numbers_of(dense_too), array)
    with pytest.raises(ValueError, match="these rows are sparse"):
        DenseRows(array[:20]).joined(SparseRows.of(array[20:]))


def test_dense_rows_become_sparse_and_sparse_rows_refuse_to_become_dense(
    array: np.ndarray,
) -> None:
    rows = DenseRows(array)
    assert rows.dense() is rows
    for dtype in (np.float32, np.float64, np.int64):
        converted = DenseRows(np.round(array).astype(dtype)).sparse()
        assert np.array_equal(converted.matrix.toarray(), np.round(array))
        assert converted.values.dtype == np.float32
    rows_too = SparseRows.of(array)
    assert rows_too.sparse() is rows_too
    with pytest.raises(ValueError, match=r"sparse \(7 features\).*Encoder\(n_components=256\)"):
        rows_too.dense()


def test_the_scale_of_dense_rows_makes_their_mean_square_one(
    array: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = np.arange(5, 45)
    expected = np.sqrt(np.square(array[selected], dtype=np.float64).mean())
    rows = DenseRows(array)
    assert rows.unit_scale(selected) == pytest.approx(1 / expected, rel=1e-12)
    assert rows.unit_scale() == rows.unit_scale(np.arange(N))
    # Squares that float32 cannot hold.
    for factor in (1e-30, 1e30):
        scaled = DenseRows(array * np.float32(factor))
        assert scaled.unit_scale(selected) * factor == pytest.approx(1 / expected, rel=1e-5)
    whole = rows.unit_scale()
    monkeypatch.setattr(dense, "_BLOCK_BYTES", 4 * K * 8)
    assert rows.unit_scale() == pytest.approx(whole, rel=1e-12)


def test_the_scale_of_sparse_rows_makes_their_mean_square_length_one(
    array: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = np.arange(5, 45)
    expected = np.sqrt((np.linalg.norm(array[selected].astype(np.float64), axis=1) ** 2).mean())
    rows = SparseRows.of(array)
    assert rows.unit_scale(selected) == pytest.approx(1 / expected, rel=1e-12)
    assert rows.unit_scale() == rows.unit_scale(np.arange(N))
    whole = rows.unit_scale()
    monkeypatch.setattr(sparse_rows, "_BLOCK_ROWS", 8)
    assert rows.unit_scale() == pytest.approx(whole, rel=1e-12)


@every_kind
def test_the_scale_of_zeros_is_one(kind: type[Rows]) -> None:
    assert make(kind, np.zeros((3, 2), np.float32)).unit_scale() == 1.0


@every_kind
def test_a_fingerprint_tells_rows_apart(kind: type[Rows], array: np.ndarray) -> None:
    original = make(kind, array).fingerprint()
    assert make(kind, array.copy()).fingerprint() == original
    changed = array.copy()
    changed[0, 1] += 1.0
    moved = array.copy()
    moved[0] = np.roll(array[0], 1)
    for other in (changed, moved, array[::-1], array[:, :-1], 2 * array):
        assert make(kind, np.ascontiguousarray(other)).fingerprint() != original


@every_kind
def test_synthetic_rows_have_the_size_asked_for(kind: type[Rows]) -> None:
    rows = kind.synthetic(200, 30, 4.0, np.random.default_rng(0))
    assert type(rows) is kind
    assert rows.shape == (200, 30)
    assert np.isfinite(numbers_of(rows)).all()
    # Features drawn twice for a row are one value.
    assert rows.nonzeros == 30 if kind is DenseRows else 2.0 < rows.nonzeros <= 4.0
    assert len(kind.synthetic(1, 5, 2.0, np.random.default_rng(0))) == 64


@every_kind
def test_huge_synthetic_rows_are_cut_to_what_fits(
    kind: type[Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "_SYNTHETIC_FLOATS", 3000)
    monkeypatch.setattr(sparse_rows, "_SYNTHETIC_VALUES", 1000)
    monkeypatch.setattr(sparse_rows, "_SYNTHETIC_FEATURES", 30)
    rows = kind.synthetic(10**9, 30, 10.0, np.random.default_rng(0))
    assert rows.shape == (100, 30)
    if kind is SparseRows:
        assert kind.synthetic(100, 10**9, 2.0, np.random.default_rng(0)).n_features == 30


def test_synthetic_sparse_features_are_as_frequent_as_words() -> None:
    rows = SparseRows.synthetic(4000, 100, 8.0, np.random.default_rng(0))
    share = np.bincount(rows.indices, minlength=100) / len(rows.indices)
    # Feature f has P ∝ log(1 + 1/f), about 1/f: the first of 100 has 15%, less repetitions.
    assert 0.08 < share[0] < 0.16
    assert share[:10].sum() > 0.4
    assert np.all(rows.values >= 1.0)


def test_dense_rows_pass_to_kernels_without_a_copy_where_they_can(
    array: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", array)
    numbers = np.array([4, 9, 4])
    for features in (array, np.load(tmp_path / "x.npy", mmap_mode="r")):
        rows = DenseRows(features)
        assert rows.readable
        batch, places = rows.batch(numbers)
        assert np.shares_memory(batch, features)
        assert np.array_equal(batch[places], array[numbers])
    assert DenseRows(array).float32() is array
    for other in (array.astype(np.float64), np.asfortranarray(array), array[:, ::2]):
        rows = DenseRows(other)
        assert not rows.readable
        batch, places = rows.batch(numbers)
        assert batch.dtype == np.float32
        assert batch.flags.c_contiguous
        assert len(batch) == 3
        assert np.array_equal(batch[places], other[numbers].astype(np.float32))
    frozen = array.copy()
    frozen.flags.writeable = False
    assert DenseRows(frozen).float32().flags.writeable


def test_blocks_of_rows_cover_the_array_in_order(
    array: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "_BLOCK_BYTES", 4 * K * 8)
    blocks = list(row_blocks(array.astype(np.float64)))
    assert [start for start, _ in blocks] == list(range(0, N, 8))
    assert np.array_equal(np.concatenate([block for _, block in blocks]), array)
    assert all(block.dtype == np.float32 for _, block in blocks)


def test_as_rows_takes_arrays_matrices_and_rows(array: np.ndarray) -> None:
    rows = DenseRows(array)
    assert as_rows(rows) is rows
    assert as_rows(array).dense().array is array
    assert isinstance(as_rows(sparse.coo_matrix(array)), SparseRows)
    assert np.array_equal(numbers_of(as_rows(sparse.csc_matrix(array))), array)
    assert np.array_equal(numbers_of(as_rows(array.tolist())), array)
