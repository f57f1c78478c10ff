"""Walks through trees with random nodes: four computations of the same probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.kernels.cpu.threads import limit
from extremax.kernels.cpu.tree import all_splits
from extremax.noise import TreeNoise
from extremax.random import Stream
from tests import reference

Make = Callable[..., TreeNoise]
SIZES = [1, 2, 3, 5, 64, 100, 1000]
close = {"rtol": 1e-5, "atol": 2e-5}


def contexts(n: int, k: int = 5, size: float = 1.0) -> torch.Tensor:
    return size * torch.randn((n, k), generator=torch.Generator().manual_seed(11))


def every_class(n: int, tree: TreeNoise) -> torch.Tensor:
    return torch.arange(tree.n_classes_).expand(n, -1)


@pytest.mark.parametrize("n_classes", SIZES)
def test_all_computations_of_log_q_agree(random_tree: Make, n_classes: int) -> None:
    tree, z = random_tree(n_classes), contexts(7)
    truth = reference.tree_log_prob_all(tree.nodes_, tree.order_, z)
    assert truth.shape == (7, n_classes)
    one_by_one = tree.log_prob(z, every_class(7, tree))
    torch.testing.assert_close(tree.log_prob_all(z).double(), truth, **close)
    torch.testing.assert_close(one_by_one.double(), truth, **close)
    draw = tree.sample(z, 20, Stream.of(1, rows=np.arange(7)))
    torch.testing.assert_close(draw.log_q.double(), truth.gather(1, draw.labels), **close)


@pytest.mark.parametrize("n_classes", SIZES)
def test_probabilities_sum_to_one(random_tree: Make, n_classes: int) -> None:
    tree, z = random_tree(n_classes), contexts(7)
    ones = torch.ones(7, dtype=torch.float64)
    for log_q in (tree.log_prob_all(z), tree.log_prob(z, every_class(7, tree))):
        torch.testing.assert_close(log_q.double().exp().sum(1), ones, rtol=0, atol=5e-5)


@pytest.mark.parametrize("n_classes", [1, 2, 3, 100])
def test_draws_are_those_of_the_reference(random_tree: Make, n_classes: int) -> None:
    tree, z, stream = random_tree(n_classes), contexts(40), Stream.of(2, rows=np.arange(100, 140))
    uniform = torch.from_numpy(stream.uniform(64 * 3)).reshape(40, 3, 64)
    expected = reference.tree_sample(tree.nodes_, tree.order_, z, uniform)
    assert torch.equal(tree.sample(z, 3, stream).labels, expected)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 5), (16, 1), (7, 16), (40, 3)])
def test_walks_that_descend_together_are_independent(random_tree: Make, n: int, m: int) -> None:
    tree, z, rows = random_tree(70_000), contexts(n), np.arange(n)
    draw = tree.sample(z, m, Stream.of(4, rows=rows))
    for i in range(n):
        alone = tree.sample(z[i : i + 1], m, Stream.of(4, rows=rows[i : i + 1]))
        assert torch.equal(alone.labels[0], draw.labels[i])
        assert torch.equal(alone.log_q[0], draw.log_q[i])
    # More nodes than a cache holds: the walk to a given class asks for them ahead.
    torch.testing.assert_close(tree.log_prob(z, draw.labels), draw.log_q, **close)


@pytest.mark.parametrize("size", [30.0, 1e3, 1e5])
def test_far_out_examples_have_finite_log_q(random_tree: Make, size: float) -> None:
    # Probabilities here are as small as e^-100000, far below what a float can hold.
    tree, z = random_tree(64), contexts(9, size=size)
    truth = reference.tree_log_prob_all(tree.nodes_, tree.order_, z)
    far = {"rtol": 1e-5, "atol": 1e-5 * size}
    torch.testing.assert_close(tree.log_prob(z, every_class(9, tree)).double(), truth, **far)
    torch.testing.assert_close(tree.log_prob_all(z).double(), truth, **far)
    assert tree.sample(z, 4, Stream.of(0, rows=np.arange(9))).log_q.isfinite().all()


def test_walks_do_not_depend_on_the_number_of_threads(random_tree: Make) -> None:
    tree, z, rows = random_tree(300), contexts(3000), np.arange(3000)
    results = []
    for n_threads in (1, 2, 3):
        with limit(n_threads):
            draw = tree.sample(z, 3, Stream.of(5, rows=rows))
            results.append((*draw, tree.log_prob(z, draw.labels)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("n_classes", [0, *SIZES])
def test_nodes_split_evenly_and_each_has_a_row_of_its_own(n_classes: int) -> None:
    splits, depth = all_splits(n_classes)
    # Row 0 is nobody's; each of the others belongs to one node.
    assert sorted(splits[:, 1]) == list(range(1, n_classes))
    lo, mid, hi = splits.T
    assert np.isin((hi - mid) - (mid - lo), [0, 1]).all()
    assert (np.diff(depth) >= 0).all()
    if n_classes > 1:
        assert depth[-1] + 1 == math.ceil(math.log2(n_classes))


@pytest.mark.parametrize(("n_classes", "late"), [(1, 1), (3, 5), (100, 20), (100, 1)])
def test_late_classes_are_added_beside_the_tree(
    random_tree: Make, n_classes: int, late: int
) -> None:
    tree, z = random_tree(n_classes), contexts(6)
    before = tree.log_prob_all(z)
    tree.extend(n_classes + late)
    log_q = tree.log_prob_all(z)
    assert log_q.shape == (6, n_classes + late)
    ones = torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(log_q.double().exp().sum(1), ones, rtol=0, atol=5e-5)
    # What the tree knows of its own classes is untouched but for their common share.
    share = math.log(n_classes / (n_classes + late))
    torch.testing.assert_close(log_q[:, :n_classes], before + share, **close)
    torch.testing.assert_close(tree.log_prob(z, every_class(6, tree)), log_q, **close)


def test_late_classes_are_drawn_as_often_as_they_should(random_tree: Make) -> None:
    tree, z = random_tree(30), contexts(1).expand(5000, -1).contiguous()
    tree.extend(40)
    draw = tree.sample(z, 4, Stream.of(3, rows=np.arange(5000)))
    truth = tree.log_prob_all(z[:1]).expand(5000, -1)
    torch.testing.assert_close(draw.log_q, truth.gather(1, draw.labels), **close)
    n_late = int((draw.labels >= 30).sum())
    assert stats.binomtest(n_late, 20_000, 0.25).pvalue > 1e-4
    assert len(draw.labels.unique()) == 40
    # Being late or not is decided apart from the walk: each draw by itself, at the root.
    late = draw.labels >= 30
    right = ~late & (tree.position_[draw.labels.clamp(max=29)] >= 15)
    root = torch.sigmoid(z[0] @ tree.nodes_[15, :-1] + tree.nodes_[15, -1])
    assert 0.1 < root < 0.9
    expected = 5000 * np.array([0.25, 0.75 * root, 0.75 * (1 - root)])
    for j in range(4):
        n_late, n_right = int(late[:, j].sum()), int(right[:, j].sum())
        observed = [n_late, n_right, 5000 - n_late - n_right]
        assert stats.chisquare(observed, expected * 5000 / expected.sum()).pvalue > 1e-4
