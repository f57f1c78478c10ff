"""What is true of the bag head only; the contract of heads has the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.heads import BagHead, HeadOptions
from extremax.random import Stream
from extremax.rows import SparseRows

N, F, C, D = 30, 14, 6, 5
OPTIONS = HeadOptions(bag_size=D, dropout=0.4, seed=1)


@pytest.fixture
def rows() -> SparseRows:
    return SparseRows.of(sparse.random(N, F, 0.5, "csr", np.float32, 4))


def test_the_seed_decides_where_feature_vectors_start() -> None:
    first, again, other = (BagHead(C, F, OPTIONS._replace(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first.features.weight, again.features.weight)
    assert not torch.equal(first.features.weight, other.features.weight)
    # Sums of unit features have a mean square of about 1/D per dimension.
    many = BagHead(C, 4000, OPTIONS).features.weight
    assert float(many.square().mean()) == pytest.approx(1 / D, rel=0.05)


def test_a_new_head_scores_zero_and_can_learn(rows: SparseRows) -> None:
    head = BagHead(C, F, OPTIONS)
    assert not head.scores_all(rows).any()
    truth = torch.arange(N) % C
    losses = [head.exact_step(head.inputs(rows), truth, None, 0.0, 1.0) for _ in range(30)]
    assert losses[0] == pytest.approx(N * np.log(C), rel=1e-5)
    assert losses[-1] < 0.7 * losses[0]


def test_dropout_acts_where_random_numbers_are_given(rows: SparseRows) -> None:
    head = BagHead(C, F, OPTIONS)
    plain = head.inputs(rows)
    assert plain.rows is rows
    stream = Stream.of(0, rows=np.arange(N))
    dropped = head.inputs(rows, dropout=stream)
    np.testing.assert_array_equal(dropped.rows.values, rows.with_dropout(0.4, stream).values)
    np.testing.assert_array_equal(dropped.u, head.bags(dropped.rows))
    assert not np.array_equal(dropped.u, plain.u)
    # A row loses the same values in any batch.
    numbers = np.array([7, 2])
    few = head.inputs(rows, numbers, Stream(stream.key, numbers))
    np.testing.assert_array_equal(few.u, dropped.u[numbers])
    without = BagHead(C, F, OPTIONS._replace(dropout=0.0))
    np.testing.assert_array_equal(without.inputs(rows, dropout=stream).u, plain.u)


def test_features_that_no_row_of_a_step_has_stay(rows: SparseRows) -> None:
    head = BagHead(C, F, OPTIONS)
    head.classes.weight.normal_(generator=torch.Generator().manual_seed(0))
    before = head.features.weight.clone()
    batch = rows[:1]
    head.step(head.inputs(batch), torch.tensor([[0, 3]]), torch.tensor([[-0.5, 0.5]]), 0.2)
    touched = np.zeros(F, bool)
    touched[batch.indices] = True
    changed = (head.features.weight != before).any(1).numpy()
    np.testing.assert_array_equal(changed, touched)
