"""What all plots share: colors, matplotlib's settings, and saving to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Okabe & Ito (2008): distinguishable for color-blind readers and in grayscale.
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, PALE = "#333333", "#DDDDDD"
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
    "svg.fonttype": "none",
    "svg.hashsalt": "extremax",
}
# Metadata fields with the date, left out so that the same plot gives the same bytes.
_DATES = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def load_matplotlib() -> Any:
    """Import matplotlib, or raise an error that names the extra to install."""
    try:
        import matplotlib
    except ImportError as error:
        from extremax.errors import ExtremaxError

        message = "plots need matplotlib: pip install 'extremax[report]'"
        raise ExtremaxError(message) from error
    return matplotlib


def check_picture(path: str | Path) -> None:
    """Raise an error now if a plot could not be saved to this file later."""
    load_matplotlib()
    path = Path(path)
    if path.suffix.lower() not in _DATES:
        raise ValueError(f"{path}: the file name of a plot must end in .png, .pdf or .svg")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file name")


def save_figure(figure: Any, path: str | Path) -> None:
    """Save a matplotlib figure as .png, .pdf or .svg, without its date."""
    from extremax.data.writers import replacing

    path = Path(path)
    check_picture(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    # Some settings, such as the salt of the ids in an SVG, take effect while saving.
    with load_matplotlib().rc_context(STYLE), replacing(path) as temporary:
        figure.savefig(temporary, format=suffix[1:], metadata=_DATES[suffix])
