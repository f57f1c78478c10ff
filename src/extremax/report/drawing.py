"""What all plots share: colors, matplotlib's settings, frames and lines, and saving to a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from extremax.disk import replacing
from extremax.errors import ArgumentError, ExtremaxError

#: The colors of Okabe & Ito (2008), distinguishable for color-blind readers and in grayscale, for
#: light pages, and lighter variants for dark ones. The last one is for reference lines.
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
*LINE_COLORS, REFERENCE_COLOR = (light for light, _ in COLORS.values())
INK, PALE = "#333333", "#dddddd"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "regular",
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
}
# Metadata fields with the date, left out so that the same plot gives the same bytes.
_DATES = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def load_matplotlib() -> Any:
    """Import matplotlib, or raise an error that names the extra to install."""
    try:
        import matplotlib
    except ImportError as error:
        message = "plots need matplotlib: pip install 'extremax[report]'"
        raise ExtremaxError(message) from error
    return matplotlib


def new_figure(width: float, height: float, **options: Any) -> Any:
    """Create a matplotlib figure: not by pyplot, which keeps figures and may need a display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=200, **options)


def frame(axes: Any, title: str, x_title: str, grid: str = "y") -> None:
    """Set the titles and the grid of a panel."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left")
    axes.set_xlabel(x_title)


def plot_line(axes: Any, x: Any, y: Any, color: str, **options: Any) -> Any:
    """Plot a line with a dot at every point, and return it."""
    defaults = {"linewidth": 1.4, "marker": "o", "markersize": 3, "markeredgewidth": 0}
    (line,) = axes.plot(x, y, color=color, **defaults | options)
    return line


def plot_ring(axes: Any, x: float, y: float, color: str) -> None:
    """Mark the point of a line whose head was kept."""
    axes.plot(
        x, y, linestyle="none", marker="o", markersize=7,
        markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.2,
    )  # fmt: skip


def percent_tick(value: float, _: Any) -> str:
    return f"{100 * value:g}%"


def render(figure: Any, suffix: str, salt: str = "extremax", **options: Any) -> bytes:
    """Return the content of a .png, .pdf or .svg file, without its date.

    salt:  what the ids in an SVG are made from.
    """
    out = io.BytesIO()
    with load_matplotlib().rc_context(STYLE | {"svg.hashsalt": salt}):
        figure.savefig(out, format=suffix[1:], metadata=_DATES[suffix], **options)
    return out.getvalue()


def check_picture(path: str | Path) -> None:
    """Raise an error now if a plot could not be saved to this file later."""
    load_matplotlib()
    path = Path(path)
    if path.suffix.lower() not in _DATES:
        raise ArgumentError(f"{path}: the file name of a plot must end in .png, .pdf or .svg")
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder, expected a file name")


def save_figure(figure: Any, path: str | Path) -> None:
    """Save a figure to a file that `check_picture` has accepted."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(render(figure, path.suffix.lower()))
