"""Memory and work of fits, in numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.noise import BigramNoise, MixtureNoise, QuadraticNoise, SparseTreeNoise, TreeNoise
from extremax.rows import Sizes


def test_a_tree_keeps_its_nodes_twice_and_saves_them_once() -> None:
    sizes = Sizes(rows=10_000, features=100, classes=1_000, nonzeros=100.0)
    needs = TreeNoise(16).needs(sizes, n_threads=1)
    nodes = 4 * 17 * 1_000
    assert needs.kept - needs.saved == nodes
    assert needs.saved == nodes + 32 * 1_000
    assert TreeNoise(16).context_bytes(sizes) == 4 * 16 * 10_000
    # There are no more components than features.
    few = Sizes(10_000, 3, 1_000, 3.0)
    assert TreeNoise(16).needs(few, 1) == TreeNoise(3).needs(few, 1)


def test_the_work_of_a_tree_is_examples_times_levels() -> None:
    # Ten levels; penalties are tried on 400 nodes at most, so on fewer rows deep in the tree.
    one = TreeNoise().fit_work(Sizes(1_000, 8, 2, 8.0), 1)
    assert one == 2.5 * 1_000
    assert 10 * 1_000 < TreeNoise().fit_work(Sizes(1_000, 8, 1_024, 8.0), 1) < 10 * one


@pytest.mark.parametrize(("rows", "fitted"), [(1_000_000, 1_000_000), (8_000_000, 2**21)])
def test_the_root_of_a_sparse_tree_has_one_number_per_row_and_child(rows: int, fitted: int) -> None:
    # 256 classes are the children of one node; a fit takes at most two million rows.
    needs = SparseTreeNoise().needs(Sizes(rows, 100, 256, 1.0), n_threads=1)
    assert needs.kept + needs.passing == pytest.approx(4 * fitted * 256, rel=0.3)


def test_a_sparse_tree_keeps_one_weight_per_value_and_level() -> None:
    needs = SparseTreeNoise().needs(Sizes(100_000, 50_000, 5_000, 10.0), n_threads=2)
    weights = 2 * 100_000 * 10
    assert needs.kept == 12 * weights + 40 * 5_000
    assert needs.saved == 5.5 * weights + 13 * 5_000
    # But no more than there are children and features.
    assert SparseTreeNoise().needs(Sizes(10**6, 3, 5_000, 3.0), 1).kept < 12 * 3 * 5_200 + 10**6


def test_more_threads_fit_more_nodes_of_a_sparse_tree_at_once() -> None:
    sizes = Sizes(1_000_000, 10_000, 5_000, 10.0)
    one, two, four = (SparseTreeNoise().needs(sizes, n).passing for n in (1, 2, 4))
    assert one < two < four


def test_the_work_of_a_sparse_tree_is_its_critical_path() -> None:
    def work(classes: int, lambda_: float | str, n_threads: int) -> float:
        return SparseTreeNoise(lambda_).fit_work(Sizes(1_000, 50, classes, 5.0), n_threads)

    # One level of 256 children; two of 16 and 32.
    assert work(256, 1.0, 1) == 1_000 * 256
    assert work(512, 1.0, 1) == 1_000 * (16 + 32)
    # Three penalties are tried besides.
    assert work(256, "auto", 1) == 4 * 1_000 * 256
    # One thread fits the root, however many there are.
    assert work(256, 1.0, 4) == 1_000 * 256


def test_parts_of_a_mixture_are_kept_together_and_fitted_in_turn() -> None:
    sizes = Sizes(10_000, 20, 1_000, 20.0)
    parts = [TreeNoise(), BigramNoise()]
    mixed, alone = MixtureNoise(parts).needs(sizes, 1), [part.needs(sizes, 1) for part in parts]
    assert mixed.kept == sum(needs.kept for needs in alone)
    assert mixed.saved == sum(needs.saved for needs in alone)
    assert mixed.passing == max(needs.passing for needs in alone)
    assert MixtureNoise(parts).context_bytes(sizes) == (4 * 16 + 8) * 10_000


@pytest.mark.parametrize("n_classes", [3, 100, 1_000, 5_000])
def test_a_tree_of_sums_is_as_large_as_planned(n_classes: int) -> None:
    from extremax.heads import LinearHead

    noise = QuadraticNoise().fit(np.zeros((1, 10)), np.zeros(1, int), n_classes)
    noise.attach(LinearHead(n_classes, 10).vectors)
    noise.log_prob_all(noise.context(np.zeros((1, 10))))
    planned = noise.needs(Sizes(1, 10, n_classes, 10.0), 1).kept
    assert planned == noise.sums_.tree.z.nbytes
