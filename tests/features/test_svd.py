"""Truncated SVD of sparse rows against numpy's dense SVD."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import extremax.features.svd
from extremax.features.svd import SparseSVD, csr_product
from extremax.kernels.cpu.threads import limit


def low_rank(n: int = 300, width: int = 80, rank: int = 6, seed: int = 0) -> sparse.csr_matrix:
    """Sparse rows near a low-dimensional subspace; each singular value is half the previous."""
    rng = np.random.default_rng(seed)
    left = rng.standard_normal((n, rank)) * 0.5 ** np.arange(rank)
    dense = left @ rng.standard_normal((rank, width))
    noise = 1e-3 * rng.standard_normal((n, width))
    return sparse.csr_matrix(((dense + noise) * (rng.random(width) < 0.7)).astype(np.float32))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 9), st.integers(0, 10**6))
def test_product_agrees_with_numpy(n: int, width: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = sparse.random(n, width, 0.3, format="csr", dtype=np.float32, random_state=rng)
    dense = rng.standard_normal((width, columns), dtype=np.float32)
    product = csr_product(rows, dense)
    assert product.dtype == np.float32
    np.testing.assert_allclose(product, rows.toarray() @ dense, rtol=1e-5, atol=1e-5)


def test_product_over_many_chunks_and_of_float64_rows() -> None:
    rng = np.random.default_rng(0)
    rows = sparse.random(5000, 50, 0.1, format="csr", random_state=rng)
    dense = rng.standard_normal((50, 4), dtype=np.float32)
    with limit(3):
        product = csr_product(rows, dense)
    np.testing.assert_allclose(product, rows @ dense, rtol=1e-5, atol=1e-5)


def test_rows_with_repeated_and_no_entries() -> None:
    data, indices, indptr = [1.0, 2.0, 4.0], [1, 1, 0], [0, 2, 2, 3]
    rows = sparse.csr_matrix((data, indices, indptr), shape=(3, 2), dtype=np.float32)
    product = csr_product(rows, np.array([[1.0], [10.0]], np.float32))
    assert product.tolist() == [[30.0], [0.0], [4.0]]


@pytest.mark.parametrize("k", [1, 4])
def test_the_top_singular_vectors_are_found(k: int) -> None:
    rows = low_rank()
    svd = SparseSVD(k).fit(rows)
    v = svd.components_.double().numpy()
    np.testing.assert_allclose(v.T @ v, np.eye(k), atol=1e-5)
    _, values, vt = np.linalg.svd(rows.toarray().astype(np.float64))
    # The singular values are distinct, so each vector is determined up to its sign.
    np.testing.assert_allclose(np.abs((vt[:k] * v.T).sum(1)), 1.0, atol=1e-4)
    lengths = np.linalg.norm(svd.transform(rows), axis=0)
    np.testing.assert_allclose(lengths, values[:k], rtol=1e-4)


def test_transform_preserves_inner_products_of_low_rank_rows() -> None:
    rows = low_rank(rank=4)
    z = SparseSVD(5).fit(rows).transform(rows)
    assert z.shape == (300, 5)
    assert z.dtype == np.float32
    dense = rows.toarray()
    np.testing.assert_allclose(z @ z.T, dense @ dense.T, rtol=0, atol=0.02)


def test_the_rank_is_at_most_the_size_of_the_data() -> None:
    assert SparseSVD(50).fit(low_rank(n=20)).components_.shape == (80, 20)
    assert SparseSVD(50).fit(low_rank(width=9)).components_.shape == (9, 9)


def test_empty_rows_give_zeros() -> None:
    rows = sparse.csr_matrix((30, 12), dtype=np.float32)
    assert (SparseSVD(3).fit(rows).transform(rows) == 0.0).all()


def test_max_rows_reads_evenly_spaced_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = low_rank()
    strided = SparseSVD(3, max_rows=100).fit(rows).components_
    torch.testing.assert_close(strided, SparseSVD(3).fit(rows[::3]).components_)
    monkeypatch.setattr(extremax.features.svd, "_BLOCK_ROWS", 17)
    blocks = SparseSVD(3, max_rows=100).fit(rows).components_
    overlap = (strided * blocks).sum(0).abs()
    torch.testing.assert_close(overlap, torch.ones(3), rtol=0, atol=1e-4)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    rows = sparse.random(3000, 200, 0.05, format="csr", dtype=np.float32, random_state=0)
    results = []
    for n_threads in (1, 2, 3):
        with limit(n_threads):
            results.append(SparseSVD(30).fit(rows, seed=3).components_)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
