"""Line charts of many runs: in one panel with labeled lines, or in one panel per objective.

A chart is drawn once, in the colors of a light page. On the page its colors become CSS variables,
so that a dark page can define its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.isotonic import isotonic_regression

from extremax.report import drawing

_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)))
#: More lines than this cannot be labeled in one panel.
MAX_LABELED_LINES = 8
_WIDTH = 7.4
# Vertical distance between two labels, in points.
_LABEL_GAP = 12.5


@dataclass(frozen=True)
class Line:
    """One run in a chart.

    name:         label of the line if there is only one panel.
    number:       selects the color, the same in every chart.
    panel, kind:  title of the panel and label of the line if there are several panels. A line
                  with an empty kind appears in every panel.
    kind_number:  selects the color if there are several panels.
    has_ring:     mark the first point.
    """

    name: str
    number: int
    panel: str
    kind: str
    kind_number: int
    x: Sequence[float]
    y: Sequence[float]
    has_ring: bool = False


@dataclass(frozen=True)
class Chart:
    """Axes and reference lines of a chart.

    percent:    show y as percentages.
    reference:  name and height of a horizontal reference line.
    diagonal:   draw the line y = x.
    limits:     range of y.
    markers:    mark every point.
    """

    x_title: str
    y_title: str
    log_x: bool = True
    log_y: bool = False
    percent: bool = False
    reference: tuple[str, float] | None = None
    diagonal: bool = False
    limits: tuple[float, float] | None = None
    markers: bool = False


def draw(lines: Sequence[Line], chart: Chart) -> Any:
    """Draw a chart and return the matplotlib figure."""
    with drawing.load_matplotlib().rc_context(drawing.STYLE):
        if len(lines) > MAX_LABELED_LINES:
            return _panels(lines, chart)
        figure = drawing.new_figure(_WIDTH, 3.3)
        # Leave room on the right for the labels.
        axes = figure.add_axes((0.085, 0.15, 0.62, 0.76))
        _frame(axes, chart)
        styles = [_style(line.number) for line in lines]
        _plot(axes, lines, styles, chart)
        _limit(axes, chart)
        _label_lines(axes, lines, [color for color, _ in styles], chart)
    return figure


def svg(figure: Any, name: str) -> str:
    """Render a figure as an ``<svg>`` element with CSS variables as colors and unique ids."""
    text = drawing.render(figure, ".svg", salt=name, transparent=True).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for variable, (light, _) in drawing.COLORS.items():
        text = text.replace(light, f"var(--{variable})")
    for color, variable in ((drawing.INK, "ink"), (drawing.PALE, "pale"), ("#ffffff", "paper")):
        text = text.replace(color, f"var(--{variable})")
    # Ids must be unique among all drawings of a page.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    # Without a fixed size the drawing adapts to the width of the page.
    return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)


def _style(number: int) -> tuple[str, Any]:
    """Return the color and dash pattern of a line."""
    n = len(drawing.LINE_COLORS)
    return drawing.LINE_COLORS[number % n], _DASHES[number // n % len(_DASHES)]


def _frame(axes: Any, chart: Chart) -> None:
    """Set scales, grid and titles."""
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    if chart.percent:
        axes.yaxis.set_major_formatter(drawing.percent_tick)
    if chart.diagonal:
        axes.xaxis.set_major_formatter(drawing.percent_tick)
    drawing.frame(axes, chart.y_title, chart.x_title)


def _plot(axes: Any, lines: Sequence[Line], styles: Sequence[Any], chart: Chart) -> list[Any]:
    """Plot reference lines and lines, and return the latter."""
    dotted = {"color": drawing.REFERENCE_COLOR, "linewidth": 0.8, "linestyle": _DASHES[2]}
    if chart.reference is not None:
        axes.axhline(chart.reference[1], **dotted)
    if chart.diagonal:
        axes.axline((0, 0), slope=1, **dotted)
    curves = []
    for line, (color, dash) in zip(lines, styles, strict=True):
        marker = "o" if chart.markers or len(line.x) < 4 else None
        curves.append(drawing.plot_line(axes, line.x, line.y, color, linestyle=dash, marker=marker))
        if line.has_ring:
            drawing.plot_ring(axes, line.x[0], line.y[0], color)
    return curves


def _limit(axes: Any, chart: Chart, narrow: bool = False) -> None:
    """Set the ranges of the axes and the ticks, which depend on them."""
    from matplotlib.ticker import MaxNLocator

    if chart.limits is not None:
        axes.set_ylim(*chart.limits)
    if chart.log_x:
        low, high = axes.get_xlim()
        if high / low < 10:
            # Show at least one decade, so that the axis has ticks.
            middle = (high * low) ** 0.5
            axes.set_xlim(middle / 10**0.5, middle * 10**0.5)
    for axis, logarithmic in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        if logarithmic:
            _log_ticks(axis, narrow)
        else:
            n_steps = 3 if narrow and axis is axes.xaxis else 5
            axis.set_major_locator(MaxNLocator(n_steps, steps=(1, 2, 2.5, 5, 10)))


def _log_ticks(axis: Any, narrow: bool) -> None:
    """Place ticks at powers of ten, and on short axes at some multiples, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    multiples = (1.0, 3.0) if narrow and high / low > 10 else (1.0, 2.0, 5.0)
    subs = (1.0,) if high / low > 300 else multiples
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _label_lines(axes: Any, lines: Sequence[Line], colors: Sequence[str], chart: Chart) -> None:
    """Write the name of each line to the right of the panel, as close to its end as there is
    room, connected to it by a thin line."""
    low, high = axes.get_ylim()
    ends = [(line.name, line.x[-1], line.y[-1], c) for line, c in zip(lines, colors, strict=True)]
    if chart.reference is not None:
        name, level = chart.reference
        ends.append((name, axes.get_xlim()[1], level, drawing.REFERENCE_COLOR))
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    to_fraction = axes.transData - axes.transAxes

    def to_points(y: float) -> float:
        return float(to_fraction.transform((1.0, min(max(y, low), high)))[1] * height)

    ends.sort(key=lambda end: to_points(end[2]))
    heights = spread([to_points(end[2]) for end in ends], _LABEL_GAP, height)
    for (name, x, y, color), label_height in zip(ends, heights, strict=True):
        axes.annotate(
            name, (x, min(max(y, low), high)), xycoords="data",
            xytext=(1.03, label_height / height), textcoords="axes fraction",
            color=color, va="center", fontsize=8.5, parse_math=False, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "shrinkA": 1,
                        "shrinkB": 2, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread(positions: Sequence[float], gap: float, height: float) -> list[float]:
    """Move ascending positions so that they are at least ``gap`` apart, as little as possible.

    The result lies within 0 and ``height`` if there is enough room.
    """
    # Without the gaps, the positions only have to be ascending.
    offsets = gap * np.arange(len(positions))
    room = max(0.0, height - gap * (len(positions) - 1))
    ascending = isotonic_regression(np.array(positions) - offsets, y_min=0.0, y_max=room)
    return (ascending + offsets).tolist()


def _panels(lines: Sequence[Line], chart: Chart) -> Any:
    """Draw one panel per `Line.panel`, with one legend for the kinds above all of them."""
    shared = [line for line in lines if not line.kind]
    panels: dict[str, list[Line]] = {line.panel: [] for line in lines if line.kind}
    for line in lines:
        if line.kind:
            panels[line.panel].append(line)
    kinds = [k for _, k in sorted({(line.kind_number, line.kind) for line in lines if line.kind})]
    columns = min(len(panels), 4 if len(panels) in (4, 7, 8) else 3)
    n_rows = -(-len(panels) // columns)
    n_legend = -(-(len(kinds) + len(shared) + 1) // 6)
    legend = 0.16 + 0.19 * n_legend
    height = max(3.0, 2.05 * n_rows) + legend
    figure = drawing.new_figure(_WIDTH, height, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - legend / height), wspace=0.04, hspace=0.08)
    grid = figure.subplots(n_rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Any] = {}
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for i, (name, members) in enumerate(panels.items()):
        axes = grid.flat[i]
        _frame(axes, chart)
        axes.set_title(name, loc="left", fontsize=9, parse_math=False)
        axes.set_xlabel("")
        axes.tick_params(labelbottom=i + columns >= len(panels))
        drawn = [*shared, *members]
        styles = [(drawing.INK, "-")] * len(shared) + [_style(line.kind_number) for line in members]
        curves = _plot(axes, drawn, styles, chart)
        handles |= {line.kind or line.name: c for line, c in zip(drawn, curves, strict=True)}
        if chart.reference is not None:
            handles[chart.reference[0]] = axes.get_lines()[0]
    _limit(grid[0, 0], chart, narrow=columns > 1)
    figure.supxlabel(chart.x_title, fontsize=9)
    figure.supylabel(chart.y_title, fontsize=9)
    order = [*kinds, *(line.name for line in shared)]
    order += [chart.reference[0]] if chart.reference else []
    figure.legend(
        [handles[name] for name in order], order, loc="upper left", bbox_to_anchor=(0.0, 1.0),
        ncols=min(6, len(order)), frameon=False, fontsize=8.5, handlelength=1.8,
        columnspacing=1.4, borderaxespad=0.1,
    )  # fmt: skip
    return figure
