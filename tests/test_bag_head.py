"""The bag and its head against autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.bag_head import _FEATURE_START, _RATE, BagHead
from extremax.features.rows import SparseRows

N, F, C, D = 9, 14, 6, 5


@pytest.fixture
def rows() -> SparseRows:
    return SparseRows.of(sparse.random(N, F, 0.3, "csr", np.float32, 4))


def _head(seed: int = 0) -> BagHead:
    head = BagHead(C, F, D, accumulator_start=0.5, scale=1.7, seed=seed)
    rng = torch.Generator().manual_seed(3)
    head.weight.copy_(torch.randn((C, D), generator=rng))
    head.bias.copy_(torch.randn(C, generator=rng))
    return head


def _tables(head: BagHead) -> list[torch.Tensor]:
    """Vectors of features, weights and biases of classes, in float64."""
    found = head.features.weight, head.weight, head.bias
    return [t.double().clone().requires_grad_() for t in found]


def _scores(rows: SparseRows, e: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = torch.from_numpy(rows.matrix.toarray()).double()
    return 1.7 * math.sqrt(D) * (x @ e) @ w.T + b


def test_scores_are_those_of_the_formula(rows: SparseRows) -> None:
    head = _head()
    expected = _scores(rows, *_tables(head)).detach()
    torch.testing.assert_close(head.scores_all(rows).double(), expected, atol=1e-4, rtol=1e-5)
    classes = torch.randint(0, C, (N, 4), generator=torch.Generator().manual_seed(1))
    pairs = head.scores(head.inputs(rows), np.arange(N), classes)
    torch.testing.assert_close(pairs.double(), expected.gather(1, classes), atol=1e-4, rtol=1e-5)


def test_a_step_is_adagrad_on_every_table(rows: SparseRows) -> None:
    head, rate = _head(), 0.2
    generator = torch.Generator().manual_seed(1)
    classes = torch.randint(0, C, (N, 4), generator=generator)
    gradient = torch.randn((N, 4), generator=generator)
    tables = _tables(head)
    surrogate = (_scores(rows, *tables).gather(1, classes) * gradient).sum()
    slopes = torch.autograd.grad(surrogate, tables)
    head.step(head.inputs(rows), np.arange(N), classes, gradient, rate)
    # Weights of classes see features scaled by √D, and their rate is divided by it.
    rates = [rate * _RATE, rate * _RATE / math.sqrt(D), rate * _RATE / math.sqrt(D)]
    after = head.features.weight, head.weight, head.bias
    starts = [0.5 * _FEATURE_START, 0.5, 0.5]
    for old, slope, new, step, start in zip(tables, slopes, after, rates, starts, strict=True):
        expected = old.detach() - step * slope / (start + slope.square()).sqrt()
        torch.testing.assert_close(new.double(), expected, atol=1e-5, rtol=1e-5)


def test_state_and_growth() -> None:
    head, other = _head(), _head(seed=1)
    assert not torch.equal(head.features.weight, other.features.weight)
    other.load_state(head.state())
    assert all(torch.equal(a, other.state()[k]) for k, a in head.state().items())
    old = head.weight.clone()
    head.grow(C + 2)
    assert head.n_classes == C + 2
    assert torch.equal(head.weight[:C], old)
    assert not head.weight[C:].any()
