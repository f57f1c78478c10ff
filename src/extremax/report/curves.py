"""Learning curves: held-out log-likelihood and accuracy against seconds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from extremax.report.drawing import (
    LINE_COLORS,
    PALE,
    STYLE,
    check_picture,
    load_matplotlib,
    save_figure,
)

# Multiples of powers of ten at which ticks may be placed.
_STEPS = (1, 2, 2.5, 5, 10)

History = Sequence[Mapping[str, Any]]


def learning_curves(runs: Mapping[str, History], path: str | Path) -> None:
    """Plot one or several runs to a file (.png, .pdf or .svg).

    Args:
        runs: The ``history_`` of a classifier per name: records with ``seconds``,
            ``log_likelihood`` and ``accuracy``.
        path: The file to write.

    A ring marks the epoch whose head was kept, the one with the best log-likelihood.
    """
    check_picture(path)
    save_figure(draw(runs), path)


def draw(runs: Mapping[str, History]) -> Any:
    """Return the plot of `learning_curves` as a matplotlib figure, for changes before saving."""
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    evaluated = {name: _evaluated(name, history) for name, history in runs.items()}
    if not evaluated:
        raise ValueError("runs is empty: there is nothing to plot")
    with matplotlib.rc_context(STYLE):
        # Not pyplot, which keeps figures in memory and may need a display.
        figure = Figure(figsize=(7.2, 3.0), dpi=200, layout="constrained")
        left, right = figure.subplots(1, 2)
        histories = list(evaluated.values())
        lines = _panel(left, histories, "log_likelihood", "Held-out log-likelihood (nats)")
        _panel(right, histories, "accuracy", "Held-out accuracy")
        right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        if len(histories) == 1:
            # With several runs the numbers would overlap.
            _annotate(left, _kept(histories[0]), "log_likelihood", "{:.3f}")
            _annotate(right, _kept(histories[0]), "accuracy", "{:.1%}")
        _name_runs(figure, lines, list(evaluated))
    return figure


def _panel(axes: Any, histories: list[History], key: str, title: str) -> list[Any]:
    """Plot one quantity of every run, and return the lines."""
    from matplotlib.ticker import MaxNLocator

    colors = cycle(LINE_COLORS)
    lines = [_line(axes, records, key, next(colors)) for records in histories]
    axes.set_title(title, loc="left")
    axes.set_xlabel("seconds of training")
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    return lines


def _line(axes: Any, records: History, key: str, color: str) -> Any:
    seconds = [record["seconds"] for record in records]
    values = [record[key] for record in records]
    (line,) = axes.plot(
        seconds, values, color=color, linewidth=1.4,
        marker="o", markersize=3, markeredgewidth=0, solid_capstyle="round",
    )  # fmt: skip
    kept = _kept(records)
    axes.plot(
        kept["seconds"], kept[key], linestyle="none", marker="o", markersize=7,
        markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.2,
    )  # fmt: skip
    return line


def _kept(records: History) -> Mapping[str, Any]:
    """Return the record of the epoch whose head the classifier keeps."""
    return max(records, key=lambda record: record["log_likelihood"])


def _annotate(axes: Any, kept: Mapping[str, Any], key: str, form: str) -> None:
    """Write the value of the epoch that was kept next to its point."""
    axes.annotate(
        form.format(kept[key]).replace("-", "−"), (kept["seconds"], kept[key]),
        xytext=(4, -9), textcoords="offset points", ha="right", va="top",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _name_runs(figure: Any, lines: list[Any], names: list[str]) -> None:
    """Show the name of a single run as the title, and several names as a legend."""
    if len(names) == 1:
        figure.suptitle(names[0], x=0.01, ha="left", fontsize=11, parse_math=False)
        return
    legend = figure.legend(
        lines, names, loc="outside upper left", ncols=min(4, len(names)), frameon=False,
        handlelength=1.6, columnspacing=1.6,
    )  # fmt: skip
    for text in legend.get_texts():
        # Show a $ in a name as it is, not as a formula.
        text.set_parse_math(False)


def _evaluated(name: str, history: History) -> History:
    """Return the records with a held-out evaluation."""
    records = [record for record in history if "log_likelihood" in record]
    if not records:
        raise ValueError(
            f"run {name!r} has no held-out evaluations to plot; train it with "
            "validation_fraction > 0 and enough rows to hold out 50"
        )
    return records
