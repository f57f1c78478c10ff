"""Line charts of many runs: named at the ends of their lines, or in panels, one an objective.

A chart is drawn once, in the colours of a light page. On a page its colours become CSS variables,
so that a dark one can have its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from extremax.report.curves import _INK, _PALE, _STYLE, _matplotlib

#: Okabe & Ito (2008) for light pages, and lighter relatives for dark ones.
COLOURS = {
    "blue": ("#0072b2", "#56a8e0"),
    "vermillion": ("#d55e00", "#ff8b3d"),
    "green": ("#009e73", "#2fc79b"),
    "pink": ("#cc79a7", "#e59ac4"),
    "orange": ("#c98a00", "#f0b429"),
    "sky": ("#3fa0d0", "#9fdcf5"),
    "violet": ("#7a5cc7", "#b9a1ff"),
    "grey": ("#6e6e6e", "#a8a8a8"),
}
_LIGHT = [light for light, _ in COLOURS.values()]
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)))
# More lines than this cannot be named at their ends.
MOST_TOGETHER = 8
_WIDTH = 7.4
# Points between the names of two lines.
_APART = 12.5


@dataclass(frozen=True)
class Line:
    """One run in a chart. Where lines are split into panels, ``panel`` says which and ``kind``
    what it is called. The numbers give colours, the same in every chart."""

    name: str
    number: int
    panel: str
    kind: str
    kind_number: int
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """What is drawn around the lines.

    reference:  a name and a height, for a level to compare with.
    diagonal:   whether the line y = x is drawn.
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
    """The matplotlib figure."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        if len(lines) <= MOST_TOGETHER:
            figure = Figure(figsize=(_WIDTH, 3.3), dpi=200)
            # Room on the right for the names.
            axes = figure.add_axes((0.085, 0.15, 0.62, 0.76))
            _frame(axes, chart)
            styles = [_style(line.number) for line in lines]
            _plot(axes, lines, styles, chart)
            _limit(axes, chart)
            _name_ends(axes, lines, [colour for colour, _ in styles], chart)
        else:
            figure = _panels(Figure, lines, chart)
    return figure


def png(figure: Any) -> bytes:
    with _matplotlib().rc_context(_STYLE):
        out = io.BytesIO()
        figure.savefig(out, format="png", facecolor="white")
    return out.getvalue()


def svg(figure: Any, name: str) -> str:
    """For a page: an ``<svg>`` whose colours are CSS variables and whose ids are its own."""
    with _matplotlib().rc_context(_STYLE | {"svg.hashsalt": name}):
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for variable, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{variable})")
    text = text.replace(_INK.lower(), "var(--ink)").replace(_PALE.lower(), "var(--pale)")
    text = text.replace("#ffffff", "var(--paper)")
    # Ids of several drawings on one page must differ.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"|(<svg)', _flexible, text, count=1)


def _flexible(match: re.Match[str]) -> str:
    return match[1] or match[2]


def _style(number: int) -> tuple[str, Any]:
    # The last colour is the reference's.
    n = len(_LIGHT) - 1
    return _LIGHT[number % n], _DASHES[number // n % len(_DASHES)]


def _frame(axes: Any, chart: Chart) -> None:
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
    axes.grid(axis="y", color=_PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(chart.x_title)
    axes.set_title(chart.y_title, loc="left")


def _plot(axes: Any, lines: Sequence[Line], styles: Sequence[Any], chart: Chart) -> None:
    if chart.reference is not None:
        axes.axhline(chart.reference[1], color=_LIGHT[-1], linewidth=0.8, linestyle=_DASHES[2])
    if chart.diagonal:
        axes.axline((0, 0), slope=1, color=_LIGHT[-1], linewidth=0.8, linestyle=_DASHES[2])
    for line, (colour, dash) in zip(lines, styles, strict=True):
        few = chart.markers or len(line.x) < 4
        axes.plot(
            line.x, line.y, color=colour, linestyle=dash, linewidth=1.4,
            marker="o" if few else None, markersize=3, markeredgewidth=0,
        )  # fmt: skip


def _limit(axes: Any, chart: Chart, narrow: bool = False) -> None:
    if chart.limits is not None:
        axes.set_ylim(*chart.limits)
    if chart.log_x:
        low, high = axes.get_xlim()
        if high / low < 10:
            # One decade at least, so that the axis has ticks.
            middle = (high * low) ** 0.5
            axes.set_xlim(middle / 10**0.5, middle * 10**0.5)
    for axis, logarithmic in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        if logarithmic:
            _log_ticks(axis, narrow)
        elif narrow and axis is axes.xaxis:
            axis.get_major_locator().set_params(nbins=3)


def _log_ticks(axis: Any, narrow: bool) -> None:
    """Powers of ten, and where there are few of them some multiples, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    some = (1.0, 3.0) if narrow and high / low > 10 else (1.0, 2.0, 5.0)
    subs = (1.0,) if high / low > 300 else some
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _name_ends(axes: Any, lines: Sequence[Line], colours: Sequence[str], chart: Chart) -> None:
    """The name of each line to the right of the panel, at its height or as near as there is
    room, a thin line leading there."""
    low, high = axes.get_ylim()
    ends = [(line.name, line.x[-1], line.y[-1], c) for line, c in zip(lines, colours, strict=True)]
    if chart.reference is not None:
        ends.append((*_reference_end(axes, chart), _LIGHT[-1]))
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    to_points: Callable[[float], float] = lambda y: _share(axes, min(max(y, low), high)) * height  # noqa: E731
    ends.sort(key=lambda end: to_points(end[2]))
    for (name, x, y, colour), at in zip(
        ends, spread([to_points(end[2]) for end in ends], _APART, height), strict=True
    ):
        axes.annotate(
            name, (x, min(max(y, low), high)), xycoords="data",
            xytext=(1.03, at / height), textcoords="axes fraction",
            color=colour, va="center", fontsize=8.5, parse_math=False, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 1,
                        "shrinkB": 2, "relpos": (0, 0.5)},
        )  # fmt: skip


def _reference_end(axes: Any, chart: Chart) -> tuple[str, float, float]:
    assert chart.reference is not None
    return chart.reference[0], axes.get_xlim()[1], chart.reference[1]


def _share(axes: Any, y: float) -> float:
    """How far up the panel a value is, from 0 to 1."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((1.0, y)))[1])


def spread(wanted: Sequence[float], apart: float, height: float) -> list[float]:
    """Positions in ascending order, at least ``apart`` from each other and within the height
    where that is possible, each near the one wanted."""
    groups = [[position] for position in wanted]
    centres = list(wanted)
    i = 0
    while i < len(groups) - 1:
        reach = apart * (len(groups[i]) + len(groups[i + 1])) / 2
        if centres[i + 1] - centres[i] >= reach - 1e-9:
            i += 1
            continue
        groups[i] += groups.pop(i + 1)
        centres.pop(i + 1)
        half = apart * (len(groups[i]) - 1) / 2
        middle = sum(groups[i]) / len(groups[i])
        centres[i] = min(max(middle, half), max(height - half, half))
        i = max(i - 1, 0)
    return [
        centre + apart * (j - (len(group) - 1) / 2)
        for centre, group in zip(centres, groups, strict=True)
        for j in range(len(group))
    ]


def _panels(figure_class: Any, lines: Sequence[Line], chart: Chart) -> Any:
    """A panel an objective, the noises in the same colours everywhere, named once above; a line
    of no kind is in every panel."""
    everywhere = [line for line in lines if not line.kind]
    rest = [line for line in lines if line.kind]
    kinds = [kind for _, kind in sorted({(line.kind_number, line.kind) for line in rest})]
    panels: dict[str, list[Line]] = {}
    for line in rest:
        panels.setdefault(line.panel, []).append(line)
    columns = min(len(panels), 4 if len(panels) in (4, 7, 8) else 3)
    n_rows = -(-len(panels) // columns)
    n_legend = -(-(len(kinds) + len(everywhere) + 1) // 6)
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
        below = i + columns >= len(panels)
        axes.set_title(name, loc="left", fontsize=9, parse_math=False)
        axes.set_xlabel("")
        axes.tick_params(labelbottom=below)
        styles = [_style(line.kind_number) for line in members]
        drawn = [*everywhere, *members]
        _plot(axes, drawn, [(_INK, "-")] * len(everywhere) + styles, chart)
        curves = axes.get_lines()[-len(drawn) :]
        handles |= {
            line.kind or line.name: curve for line, curve in zip(drawn, curves, strict=True)
        }
        if chart.reference is not None:
            handles[chart.reference[0]] = axes.get_lines()[0]
    _limit(grid[0, 0], chart, narrow=columns > 1)
    figure.supxlabel(chart.x_title, fontsize=9)
    figure.supylabel(chart.y_title, fontsize=9)
    order = [*kinds, *(line.name for line in everywhere)]
    order += [chart.reference[0]] if chart.reference else []
    figure.legend(
        [handles[name] for name in order], order, loc="upper left", bbox_to_anchor=(0.0, 1.0),
        ncols=min(6, len(order)), frameon=False, fontsize=8.5, handlelength=1.8,
        columnspacing=1.4, borderaxespad=0.1,
    )  # fmt: skip
    return figure
