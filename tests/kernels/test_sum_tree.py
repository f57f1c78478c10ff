"""The tree of class sums: its shape, its sums, and their update by several tasks."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.kernels.cpu import sum_tree_update
from extremax.kernels.cpu.sum_tree import ClassTable, SumTree, shape, waves


def random_tree(n_fitted: int, n_classes: int, most: int, width: int = 3) -> SumTree:
    child, first, stop = shape(n_fitted, n_classes, most)
    z = np.random.default_rng(n_classes).standard_normal((len(child), width))
    return SumTree(child, first, stop, z, most)


def random_head(n_classes: int, n_features: int) -> ClassTable:
    rng = np.random.default_rng(n_features)
    weight = rng.standard_normal((n_classes, n_features)).astype(np.float32)
    return ClassTable(weight, n_features, rng.standard_normal(n_classes).astype(np.float32), 1.0)


@pytest.mark.parametrize("most", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("n_classes", [1, 2, 3, 8, 9, 100, 1025])
def test_leaves_hold_all_classes_evenly(n_classes: int, most: int) -> None:
    child, first, stop = shape(n_classes, n_classes, most)
    sizes = stop - first
    inner = np.flatnonzero(child >= 0)
    left, right = child[inner], child[inner] + 1
    assert sizes[0] == n_classes
    assert np.array_equal(first[left], first[inner])
    assert np.array_equal(stop[left], first[right])
    assert np.array_equal(stop[right], stop[inner])
    assert np.abs(sizes[left] - sizes[right]).max(initial=0) <= 1
    leaves = sizes[child < 0]
    assert leaves.max() <= most
    assert n_classes <= most or leaves.min() >= (most + 1) // 2
    # Every node but the root is the child of one before it.
    assert np.array_equal(np.sort(np.append(left, right)), np.arange(1, len(child)))
    assert np.all(left > inner)


@pytest.mark.parametrize("n_classes", [11, 13, 40, 200])
def test_late_classes_are_a_tree_beside_the_others(n_classes: int) -> None:
    child, first, stop = shape(10, n_classes, 4)
    assert (stop[child[0]], first[child[0] + 1]) == (10, 10)
    alone = shape(10, 10, 4)
    beside = np.flatnonzero(stop <= 10)
    assert np.array_equal(first[beside], alone[1])
    assert np.array_equal(stop[beside], alone[2])
    assert (stop - first)[child < 0].max() <= 4


@pytest.mark.parametrize(
    ("n_fitted", "n_classes"), [(1, 1), (2, 2), (50, 50), (30, 77), (999, 999)]
)
def test_relations_are_those_of_the_children(n_fitted: int, n_classes: int) -> None:
    tree = random_tree(n_fitted, n_classes, 4)
    parent, leaves = sum_tree_update.relations(tree.child)
    assert parent[0] == -1
    for node in range(1, len(parent)):
        assert node - tree.child[parent[node]] in (0, 1)
    assert np.all(tree.child[leaves] == -1)
    assert np.array_equal(tree.first[leaves], np.sort(tree.first[tree.child < 0]))


@pytest.mark.parametrize(
    ("n_fitted", "n_classes"), [(1, 1), (3, 3), (50, 50), (30, 77), (999, 999)]
)
@pytest.mark.parametrize("n_tasks", [1, 2, 3, 7])
def test_climbing_brings_every_sum_up_to_date(n_fitted: int, n_classes: int, n_tasks: int) -> None:
    tree = random_tree(n_fitted, n_classes, 4)
    parent, leaves = sum_tree_update.relations(tree.child)
    rng = np.random.default_rng(n_tasks)
    touched = leaves
    for _ in range(20):
        n_here = min(n_tasks, len(touched))
        inside = np.sort(rng.choice(np.arange(1, len(touched)), n_here - 1, replace=False))
        bounds = np.concatenate([[0], inside, [len(touched)]])
        tree.z[touched] = rng.standard_normal((len(touched), 3))
        sum_tree_update.climb(0, n_here, bounds, touched, parent, tree)
        sum_tree_update.meet(bounds, touched, parent, tree)
        inner = tree.child >= 0
        children = tree.child[inner]
        assert np.array_equal(tree.z[inner], tree.z[children] + tree.z[children + 1])
        some = rng.choice(len(leaves), rng.integers(1, len(leaves) + 1), replace=False)
        touched = leaves[np.sort(some)]


@pytest.mark.parametrize("n_features", [1, 4, 6, 17])
def test_leaves_sum_the_products_of_their_classes(n_features: int) -> None:
    head, d = random_head(37, n_features), n_features + 1
    # Three classes that the head does not have.
    tree = random_tree(40, 40, 20, d * (d + 1) // 2)
    _, leaves = sum_tree_update.relations(tree.child)
    sum_tree_update.products(0, len(leaves), leaves, tree, head)
    rows = np.column_stack([head.table, head.bias]).astype(np.float64)
    for leaf in leaves:
        own = rows[tree.first[leaf] : tree.stop[leaf]]
        expected = (own.T @ own)[np.tril_indices(d)]
        np.testing.assert_allclose(tree.z[leaf], expected, rtol=1e-12, atol=1e-12)


def test_waves_are_the_features_of_unit_vectors() -> None:
    rng = np.random.default_rng(0)
    frequencies = rng.standard_normal((50, 4))
    for v in (rng.standard_normal(4), 1e30 * rng.standard_normal(4), np.zeros(4)):
        out = np.empty(100)
        waves(frequencies, v, out)
        unit = v / np.linalg.norm(v) if v.any() else v
        angles = frequencies @ unit
        expected = np.append(np.cos(angles), np.sin(angles)) / np.sqrt(50)
        np.testing.assert_allclose(out, expected, atol=1e-13)
        assert np.isclose(out @ out, 1.0)
