"""Charts of many runs: labels that do not overlap, colors that a page can change."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.text import Text

from extremax.report.charts import MAX_LABELED_LINES, Chart, Line, draw, spread, svg
from extremax.report.drawing import COLORS, render

CHART = Chart("seconds", "Accuracy", percent=True, reference=("prior", 0.05))


def lines(n: int) -> list[Line]:
    x = [1.0, 10.0, 60.0]
    return [
        Line(f"run <{i}> $a$", i, f"panel {i % 3}", f"kind {i // 3}", i // 3, x, [0.1, 0.2, y])
        for i, y in enumerate(np.linspace(0.3, 0.301, n).tolist())
    ]


@pytest.mark.parametrize("seed", range(20))
def test_spread_keeps_the_order_and_the_gap(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    positions = np.sort(rng.uniform(0, 100, n) if seed % 2 else rng.normal(95, 2, n)).tolist()
    result = spread(positions, 10.0, 100.0)
    assert all(b - a >= 10.0 - 1e-6 for a, b in pairwise(result))
    if len(positions) > 1 and min(np.diff(positions)) >= 10.0:
        assert result == pytest.approx(positions)


def test_labels_do_not_overlap():
    figure = draw(lines(MAX_LABELED_LINES), CHART)
    (axes,) = figure.axes
    names = [a.get_text() for a in axes.texts]
    assert sorted(names) == sorted([*(line.name for line in lines(MAX_LABELED_LINES)), "prior"])
    render(figure, ".png")
    # Extents of the text alone, without the connecting lines.
    boxes = [Text.get_window_extent(a) for a in axes.texts]
    size = figure.canvas.get_width_height()
    for i, box in enumerate(boxes):
        assert box.x1 <= size[0]
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])


def test_many_lines_are_split_into_panels_with_one_legend():
    figure = draw([*lines(12), Line("exact", 12, "", "", 0, [1.0, 60.0], [0.2, 0.4])], CHART)
    assert [axes.get_title("left") for axes in figure.axes] == ["panel 0", "panel 1", "panel 2"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "kind 0", "kind 1", "kind 2", "kind 3", "exact", "prior",
    ]  # fmt: skip
    # Four lines of the panel, the shared line, and the reference.
    assert all(len(axes.get_lines()) == 6 for axes in figure.axes)


def test_svg_has_css_colors_and_unique_ids():
    text = svg(draw(lines(3), CHART), "one")
    root = ElementTree.fromstring(text.replace("xlink:href", "href"))
    assert "width" not in root.attrib
    assert "viewBox" in root.attrib
    for light, _ in COLORS.values():
        assert light not in text
    for variable in ("--blue", "--vermillion", "--green", "--ink", "--pale"):
        assert f"var({variable})" in text
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("one-") for name in ids)
    references = re.findall(r"url\(#([^)]*)\)", text) + re.findall(r'href="#([^"]*)"', text)
    assert set(references) <= set(ids)
    assert "<image" not in text
    assert text == svg(draw(lines(3), CHART), "one")


def test_png_and_markers_for_few_points():
    chart = Chart("m", "Bias", log_y=True)
    figure = draw([Line("a", 0, "", "", 0, [5.0], [0.3])], chart)
    assert render(figure, ".png").startswith(b"\x89PNG")
    assert figure.axes[0].get_lines()[0].get_marker() == "o"
