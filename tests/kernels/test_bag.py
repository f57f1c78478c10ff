"""The bag's kernels against plain torch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from extremax.kernels.cpu import bag
from extremax.kernels.cpu.sparse import add_product
from extremax.rows import SparseRows


def _rows(n: int, n_features: int, seed: int) -> SparseRows:
    """Random rows, some of them empty."""
    return SparseRows.of(sparse.random(n, n_features, 0.2, "csr", np.float32, seed))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 12), st.integers(1, 30), st.integers(1, 9), st.integers(0, 10**6))
def test_sums_are_products_with_the_vectors(n: int, n_features: int, width: int, seed: int) -> None:
    rows = _rows(n, n_features, seed)
    # A row of a head's table has the accumulators behind the vector.
    table = np.random.default_rng(seed).standard_normal((n_features, 2 * width)).astype(np.float32)
    out = np.ones((n, width), np.float32)
    add_product(0, n, *rows.arrays, table, out)
    np.testing.assert_allclose(out, 1 + rows.matrix @ table[:, :width], atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 9), st.integers(0, 10**6))
def test_pull_is_the_gradient_of_the_scores(n: int, m: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((5, 2 * width)).astype(np.float32)
    classes, gradient = rng.integers(0, 5, (n, m)), rng.standard_normal((n, m)).astype(np.float32)
    out = np.empty((n, width), np.float32)
    bag.pull(0, n, table, classes, gradient, np.float32(1.3), out)
    u = torch.zeros((n, width), dtype=torch.float64, requires_grad=True)
    weight = torch.from_numpy(table[:, :width]).double()
    scores = 1.3 * (weight[torch.from_numpy(classes)] * u[:, None]).sum(2)
    (expected,) = torch.autograd.grad((scores * torch.from_numpy(gradient)).sum(), u)
    np.testing.assert_allclose(out, expected.numpy(), atol=1e-4)
