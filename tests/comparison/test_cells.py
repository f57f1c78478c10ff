"""Cells: how they are written, which cannot be."""

from __future__ import annotations

import pytest

from extremax.comparison import Cell, choose
from extremax.comparison.cells import make, names
from extremax.noise import NOISES
from extremax.objectives import OBJECTIVES


def test_a_list_is_read_in_its_order():
    cells, left_out = choose("nce×uniform, sampled softmax : frequency @ 64,exact", 7)
    assert cells == [
        Cell("nce", "uniform", 7),
        Cell("sampled_softmax", "frequency", 64),
        Cell("exact", None, 7),
    ]
    assert left_out == []
    assert [c.name for c in cells] == ["nce × uniform", "sampled softmax × frequency", "exact"]


def test_the_default_is_there_and_can_be():
    cells, left_out = choose("default", 5)
    assert cells[0] == Cell("negative_sampling", "tree", 5)
    assert Cell("exact", None, 5) in cells
    assert left_out == []


def test_all_is_the_whole_grid_less_what_cannot_be():
    cells, left_out = choose("all", 5)
    sampling = [name for name, made in OBJECTIVES.items() if made.samples]
    assert len(cells) + len(left_out) == len(sampling) * len(NOISES) + len(OBJECTIVES) - len(
        sampling
    )
    assert {c.objective for c in cells} == set(OBJECTIVES)
    following = {name for name, made in NOISES.items() if made().follows_head}
    bad = {f"negative sampling × {name.replace('_', ' ')}" for name in following}
    assert {cell.name for cell in left_out} == bad
    assert all("changes as the head trains" in cell.reason for cell in left_out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nosuch×tree", "an objective is one of negative_sampling"),
        ("nce×nosuch", "a noise is one of tree"),
        ("nce", "nce needs a noise, as in nce×frequency"),
        ("exact×tree", "exact draws no classes; name it alone"),
        ("nce×uniform@0", "a number of draws, at least 1"),
        ("nce×uniform×tree", "does not read as"),
        (" , ", "leaves nothing to compare"),
        ("negative_sampling×softmax", "leaves nothing to compare: negative sampling × softmax"),
    ],
)
def test_what_does_not_read_is_refused_with_the_reason(text, message):
    with pytest.raises(ValueError, match=message):
        choose(text, 5)


def test_draws_are_said_where_cells_differ_in_them_alone():
    cells, _ = choose("nce×uniform@5, nce×uniform@50, nce×tree", 5)
    assert list(names(cells).values()) == [
        "nce × uniform, m = 5",
        "nce × uniform, m = 50",
        "nce × tree",
    ]
    assert len({c.slug for c in cells}) == 3


def test_a_cell_makes_its_parts():
    objective, noise = make(Cell("sampled_softmax", "mixture", 5), 0.01, tree_components=4)
    assert objective.regularization == 0.01
    assert noise.parts[0] == {"noise": "tree", "n_components": 4}
    assert make(Cell("nce", "tree", 5), tree_components=4)[1].n_components == 4
