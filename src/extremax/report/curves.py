"""Learning curves: held-out log-likelihood and accuracy against seconds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

# Okabe & Ito (2008): told apart by the colour-blind and in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Ticks at round numbers.
_STEPS = (1, 2, 2.5, 5, 10)
_INK, _PALE = "#333333", "#DDDDDD"
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlesize": 10,
    "axes.titleweight": "regular",
    "axes.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "extremax",
}

History = Sequence[Mapping[str, Any]]


def learning_curves(runs: Mapping[str, History], path: str | Path) -> None:
    """Draw one or several named runs into a file (.png, .pdf, .svg).

    A run is the ``history_`` of a classifier: records with ``seconds``, ``log_likelihood`` and
    ``accuracy``. A ring marks the epoch whose head was kept, the one of the best likelihood.
    """
    from extremax.files import whole

    path = Path(path)
    check_picture(path)
    figure = draw(runs)
    # Some of the style, such as the salt of an SVG's names, matters when the file is written.
    with _matplotlib().rc_context(_STYLE), whole(path) as aside:
        figure.savefig(aside, format=path.suffix[1:].lower(), metadata=_undated(path))


def check_picture(path: str | Path) -> None:
    """Fail now if a picture could not be drawn into this file later."""
    _matplotlib()
    path = Path(path)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{path}: a picture is a .png, .pdf or .svg")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file")


def draw(runs: Mapping[str, History]) -> Any:
    """The matplotlib figure, for whoever wants to change it."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    measured = {name: _measured(name, history) for name, history in runs.items()}
    if not measured:
        raise ValueError("no runs to draw")
    with matplotlib.rc_context(_STYLE):
        # Not pyplot, which keeps figures and asks for a screen.
        figure = Figure(figsize=(7.2, 3.0), dpi=200, layout="constrained")
        left, right = figure.subplots(1, 2)
        histories = list(measured.values())
        lines = _panel(left, histories, "log_likelihood", "Held-out log-likelihood (nats)")
        _panel(right, histories, "accuracy", "Held-out accuracy")
        right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        if len(histories) == 1:
            # The figures of several would lie on each other.
            _value_kept(left, _kept(histories[0]), "log_likelihood", "{:.3f}")
            _value_kept(right, _kept(histories[0]), "accuracy", "{:.1%}")
        _name_runs(figure, lines, list(measured))
    return figure


def _panel(axes: Any, histories: list[History], key: str, title: str) -> list[Any]:
    """One figure of every run; returns the lines."""
    from matplotlib.ticker import MaxNLocator

    colours = cycle(_COLOURS)
    lines = [_line(axes, records, key, next(colours)) for records in histories]
    axes.set_title(title, loc="left")
    axes.set_xlabel("seconds of training")
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    return lines


def _line(axes: Any, records: History, key: str, colour: str) -> Any:
    seconds = [record["seconds"] for record in records]
    values = [record[key] for record in records]
    (line,) = axes.plot(
        seconds, values, color=colour, linewidth=1.4,
        marker="o", markersize=3, markeredgewidth=0, solid_capstyle="round",
    )  # fmt: skip
    kept = _kept(records)
    axes.plot(
        kept["seconds"], kept[key], linestyle="none", marker="o", markersize=7,
        markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.2,
    )  # fmt: skip
    return line


def _kept(records: History) -> Mapping[str, Any]:
    """The record of the epoch whose head the classifier keeps."""
    return max(records, key=lambda record: record["log_likelihood"])


def _value_kept(axes: Any, kept: Mapping[str, Any], key: str, form: str) -> None:
    axes.annotate(
        form.format(kept[key]).replace("-", "−"), (kept["seconds"], kept[key]),
        xytext=(4, -9), textcoords="offset points", ha="right", va="top",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _name_runs(figure: Any, lines: list[Any], names: list[str]) -> None:
    """One run is a title; several are a legend above both panels."""
    if len(names) == 1:
        figure.suptitle(names[0], x=0.01, ha="left", fontsize=11, parse_math=False)
        return
    legend = figure.legend(
        lines, names, loc="outside upper left", ncols=min(4, len(names)), frameon=False,
        handlelength=1.6, columnspacing=1.6,
    )  # fmt: skip
    for text in legend.get_texts():
        # A $ in a name is no formula.
        text.set_parse_math(False)


def _measured(name: str, history: History) -> History:
    found = [record for record in history if "log_likelihood" in record]
    if not found:
        raise ValueError(
            f"run {name!r} has no held-out figures: it needs a validation_fraction > 0 and "
            "at least 50 rows to hold out"
        )
    return found


def _undated(path: Path) -> dict[str, Any]:
    """No date in the file, so that the same run gives the same bytes."""
    fields = {".pdf": "CreationDate", ".svg": "Date"}
    return {fields[path.suffix.lower()]: None} if path.suffix.lower() in fields else {}


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        from extremax.errors import ExtremaxError

        raise ExtremaxError("a picture needs matplotlib: pip install 'extremax[report]'") from error
    return matplotlib
