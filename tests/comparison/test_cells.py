"""Cells: how they are written, and which combinations are left out."""

from __future__ import annotations

import re

import pytest

from extremax.comparison import Cell, choose
from extremax.comparison.cells import make, names
from extremax.noise import NOISES, make_noise, noise_name
from extremax.objectives import OBJECTIVES


def test_a_list_keeps_its_order():
    cells, left_out = choose("nce×uniform, sampled softmax : frequency @ 64,exact", 7)
    assert cells == [
        Cell("nce", "uniform", 7),
        Cell("sampled_softmax", "frequency", 64),
        Cell("exact", None, 7),
    ]
    assert left_out == []
    assert [c.name for c in cells] == ["nce × uniform", "sampled softmax × frequency", "exact"]


def test_no_default_cell_is_left_out():
    cells, left_out = choose("default", 5)
    assert cells[0] == Cell("negative_sampling", "tree", 5)
    assert Cell("exact", None, 5) in cells
    assert left_out == []


def test_all_is_the_whole_grid_without_incompatible_cells():
    cells, left_out = choose("all", 5)
    noises = set(NOISES) - {"sparse_tree"}
    n_sampling = sum(objective.samples for objective in OBJECTIVES.values())
    n_others = len(OBJECTIVES) - n_sampling
    assert len(cells) + len(left_out) == n_sampling * len(noises) + n_others
    assert {c.objective for c in cells} == {*OBJECTIVES, "sampled_softmax(absolute=True)"}
    following = {name for name in noises if NOISES[name]().follows_head}
    incompatible = {f"negative sampling × {name.replace('_', ' ')}" for name in following}
    assert {cell.name for cell in left_out} == incompatible
    assert all("changes as the head trains" in cell.reason for cell in left_out)


def test_the_sparse_tree_is_compared_only_if_named():
    assert "sparse_tree" not in {cell.noise for cell in choose("all", 5)[0]}
    assert choose("nce×sparse_tree", 5)[0] == [Cell("nce", "sparse_tree", 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nosuch×tree", "unknown objective 'nosuch'; choose one of negative_sampling"),
        ("nce×nosuch", "unknown noise 'nosuch'; choose one of tree"),
        ("nce", "nce needs a noise, for example nce×frequency"),
        ("exact×tree", "exact draws no classes; write 'exact' instead of 'exact×tree'"),
        ("nce×uniform@0", "must have a number of at least 1 after @"),
        ("nce×uniform×tree", "is not of the form objective×noise"),
        (" , ", "nothing to compare"),
        ("nce(power=1)×tree", "cells: NCE has no parameter 'power' = 1; it has, .* regularization"),
        ("nce×tree(leaves=1)", "cells: TreeNoise has no parameter 'leaves' = 1; it has, .* rounds"),
        ("nce×tree(n_components=0)", "cells: n_components must be an integer >= 1"),
        ("nce×tree(n_components=1", "cells: noise must be a name or a name with parameters"),
        ("negative_sampling×softmax", "nothing to compare; negative sampling × softmax"),
    ],
)
def test_invalid_cells_are_rejected_with_the_reason(text, message):
    with pytest.raises(ValueError, match=message):
        choose(text, 5)


def test_names_include_m_for_cells_that_differ_only_in_it():
    cells, _ = choose("nce×uniform@5, nce×uniform@50, nce×tree", 5)
    assert list(names(cells).values()) == [
        "nce × uniform, m = 5",
        "nce × uniform, m = 50",
        "nce × tree",
    ]
    assert len({c.slug for c in cells}) == 3


def test_cells_take_parameters_of_objective_and_noise():
    mixture = "mixture(parts=(tree(n_components=4), frequency(power=0.75)), weights=(0.9, 0.1))"
    cells, _ = choose(f"nce(regularization=0.01) : {mixture} @ 7, nce×frequency( power = 1 )", 5)
    assert cells[0] == Cell("nce(regularization=0.01)", mixture, 7)
    assert cells[1].name == "nce × frequency(power=1)"
    assert len({cell.slug for cell in cells}) == 2
    assert all(re.fullmatch(r"[\w.=-]+", cell.slug) for cell in cells)
    # What a cell says holds against what all cells share.
    objective, noise = make(cells[0], 0.5, tree_components=8)
    assert (objective.regularization, noise.weights) == (0.01, (0.9, 0.1))
    tree, frequency = (make_noise(part) for part in noise.parts)
    assert (tree.n_components, frequency.power) == (4, 0.75)
    assert make(cells[1], 0.5)[0].regularization == 0.5


def test_cells_of_equal_parameters_are_one():
    assert len(choose("nce×frequency(power=0.5), nce:frequency( power=.5 )", 5)[0]) == 1


def test_even_kernels_get_absolute_logits_unless_the_cell_says_otherwise():
    cells, _ = choose(
        "sampled_softmax×quadratic, sampled_softmax×quartic, sampled_softmax×fourier, "
        "sampled_softmax(absolute=False)×quadratic",
        5,
    )
    assert [make(cell)[0].absolute for cell in cells] == [True, True, False, False]
    assert cells[0].name == "sampled softmax(absolute=True) × quadratic"


def test_make_creates_objective_and_noise():
    objective, noise = make(Cell("sampled_softmax", "mixture", 5), 0.01, tree_components=4)
    assert objective.regularization == 0.01
    assert [noise_name(part) for part in noise.parts] == ["tree", "frequency"]
    assert noise.parts[0].n_components == 4
    assert make(Cell("nce", "tree", 5), tree_components=4)[1].n_components == 4
