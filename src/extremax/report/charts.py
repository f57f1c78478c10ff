"""Line charts of many runs: in one panel with labeled lines, or in one panel per objective.

A chart is drawn once, in the colors of a light page. On the page its colors become CSS variables,
so that a dark page can define its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extremax.report.drawing import INK, PALE, STYLE, load_matplotlib

#: The colors of Okabe & Ito (2008) for light pages, and lighter variants for dark ones.
COLORS = {
    "blue": ("#0072b2", "#56a8e0"),
    "vermillion": ("#d55e00", "#ff8b3d"),
    "green": ("#009e73", "#2fc79b"),
    "pink": ("#cc79a7", "#e59ac4"),
    "orange": ("#c98a00", "#f0b429"),
    "sky": ("#3fa0d0", "#9fdcf5"),
    "violet": ("#7a5cc7", "#b9a1ff"),
    "gray": ("#6e6e6e", "#a8a8a8"),
}
_LIGHT = [light for light, _ in COLORS.values()]
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
    """

    name: str
    number: int
    panel: str
    kind: str
    kind_number: int
    x: Sequence[float]
    y: Sequence[float]


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
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        if len(lines) <= MAX_LABELED_LINES:
            figure = Figure(figsize=(_WIDTH, 3.3), dpi=200)
            # Leave room on the right for the labels.
            axes = figure.add_axes((0.085, 0.15, 0.62, 0.76))
            _frame(axes, chart)
            styles = [_style(line.number) for line in lines]
            _plot(axes, lines, styles, chart)
            _limit(axes, chart)
            _label_lines(axes, lines, [color for color, _ in styles], chart)
        else:
            figure = _panels(Figure, lines, chart)
    return figure


def png(figure: Any) -> bytes:
    """Render a figure as PNG on a white background."""
    with load_matplotlib().rc_context(STYLE):
        out = io.BytesIO()
        figure.savefig(out, format="png", facecolor="white")
    return out.getvalue()


def svg(figure: Any, name: str) -> str:
    """Render a figure as an ``<svg>`` element with CSS variables as colors and unique ids."""
    with load_matplotlib().rc_context(STYLE | {"svg.hashsalt": name}):
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for variable, (light, _) in COLORS.items():
        text = text.replace(light, f"var(--{variable})")
    text = text.replace(INK.lower(), "var(--ink)").replace(PALE.lower(), "var(--pale)")
    text = text.replace("#ffffff", "var(--paper)")
    # Ids must be unique among all drawings of a page.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    # Without a fixed size the drawing adapts to the width of the page.
    return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)


def _style(number: int) -> tuple[str, Any]:
    """Return the color and dash pattern of a line."""
    # The last color is reserved for the reference line.
    n = len(_LIGHT) - 1
    return _LIGHT[number % n], _DASHES[number // n % len(_DASHES)]


def _frame(axes: Any, chart: Chart) -> None:
    """Set scales, ticks, grid and titles."""
    from matplotlib.ticker import MaxNLocator

    for axis, logarithmic in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        if logarithmic:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
        else:
            axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
    if chart.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    if chart.diagonal:
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(chart.x_title)
    axes.set_title(chart.y_title, loc="left")


def _plot(axes: Any, lines: Sequence[Line], styles: Sequence[Any], chart: Chart) -> None:
    if chart.reference is not None:
        axes.axhline(chart.reference[1], color=_LIGHT[-1], linewidth=0.8, linestyle=_DASHES[2])
    if chart.diagonal:
        axes.axline((0, 0), slope=1, color=_LIGHT[-1], linewidth=0.8, linestyle=_DASHES[2])
    for line, (color, dash) in zip(lines, styles, strict=True):
        marked = chart.markers or len(line.x) < 4
        axes.plot(
            line.x, line.y, color=color, linestyle=dash, linewidth=1.4,
            marker="o" if marked else None, markersize=3, markeredgewidth=0,
        )  # fmt: skip


def _limit(axes: Any, chart: Chart, narrow: bool = False) -> None:
    """Set the ranges of the axes and, which depend on them, the ticks of logarithmic ones."""
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
        elif narrow and axis is axes.xaxis:
            axis.get_major_locator().set_params(nbins=3)


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
        ends.append((name, axes.get_xlim()[1], level, _LIGHT[-1]))
    height = axes.get_window_extent().height * 72 / axes.figure.dpi

    def to_points(y: float) -> float:
        return _fraction(axes, min(max(y, low), high)) * height

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


def _fraction(axes: Any, y: float) -> float:
    """Return the height of a value as a fraction of the panel, from 0 to 1."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((1.0, y)))[1])


def spread(positions: Sequence[float], gap: float, height: float) -> list[float]:
    """Move ascending positions so that they are at least ``gap`` apart, as little as possible.

    The result lies within 0 and ``height`` if there is enough room.
    """
    groups = [[position] for position in positions]
    centers = list(positions)
    i = 0
    while i < len(groups) - 1:
        reach = gap * (len(groups[i]) + len(groups[i + 1])) / 2
        if centers[i + 1] - centers[i] >= reach - 1e-9:
            i += 1
            continue
        groups[i] += groups.pop(i + 1)
        centers.pop(i + 1)
        half = gap * (len(groups[i]) - 1) / 2
        middle = sum(groups[i]) / len(groups[i])
        centers[i] = min(max(middle, half), max(height - half, half))
        i = max(i - 1, 0)
    return [
        center + gap * (j - (len(group) - 1) / 2)
        for center, group in zip(centers, groups, strict=True)
        for j in range(len(group))
    ]


def _panels(figure_class: Any, lines: Sequence[Line], chart: Chart) -> Any:
    """Draw one panel per `Line.panel`, with one legend for the kinds above all of them."""
    shared = [line for line in lines if not line.kind]
    others = [line for line in lines if line.kind]
    kinds = [kind for _, kind in sorted({(line.kind_number, line.kind) for line in others})]
    panels: dict[str, list[Line]] = {}
    for line in others:
        panels.setdefault(line.panel, []).append(line)
    columns = min(len(panels), 4 if len(panels) in (4, 7, 8) else 3)
    n_rows = -(-len(panels) // columns)
    n_legend = -(-(len(kinds) + len(shared) + 1) // 6)
    legend = 0.16 + 0.19 * n_legend
    size = (_WIDTH, max(3.0, 2.05 * n_rows) + legend)
    figure = figure_class(figsize=size, dpi=200, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - legend / size[1]), wspace=0.04, hspace=0.08)
    grid = figure.subplots(n_rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Any] = {}
    for i, axes in enumerate(grid.flat):
        if i >= len(panels):
            axes.remove()
            continue
        name, members = list(panels.items())[i]
        _frame(axes, chart)
        is_lowest = i + columns >= len(panels)
        axes.set_title(name, loc="left", fontsize=9, parse_math=False)
        axes.set_xlabel("")
        axes.tick_params(labelbottom=is_lowest)
        styles = [_style(line.kind_number) for line in members]
        drawn = [*shared, *members]
        _plot(axes, drawn, [(INK, "-")] * len(shared) + styles, chart)
        curves = axes.get_lines()[-len(drawn) :]
        handles |= {
            line.kind or line.name: curve for line, curve in zip(drawn, curves, strict=True)
        }
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
