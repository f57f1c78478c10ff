"""Learning curves: held-out log-likelihood and accuracy against seconds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from extremax.errors import ArgumentError
from extremax.report import drawing

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
    drawing.check_picture(path)
    drawing.save_figure(draw(runs), path)


def draw(runs: Mapping[str, History]) -> Any:
    """Return the plot of `learning_curves` as a matplotlib figure, for changes before saving."""
    evaluated = {name: _evaluated(name, history) for name, history in runs.items()}
    if not evaluated:
        raise ArgumentError("runs is empty: there is nothing to plot")
    with drawing.load_matplotlib().rc_context(drawing.STYLE):
        figure = drawing.new_figure(7.2, 3.0, layout="constrained")
        left, right = figure.subplots(1, 2)
        histories = list(evaluated.values())
        lines = _panel(
            left, histories, "log_likelihood", "Held-out log-likelihood (nats)", "{:.3f}"
        )
        _panel(right, histories, "accuracy", "Held-out accuracy", "{:.1%}")
        right.yaxis.set_major_formatter(drawing.percent_tick)
        _name_runs(figure, lines, list(evaluated))
    return figure


def _panel(axes: Any, histories: list[History], key: str, title: str, form: str) -> list[Any]:
    """Plot one quantity of every run, and return the lines."""
    from matplotlib.ticker import MaxNLocator

    lines = []
    for records, color in zip(histories, cycle(drawing.LINE_COLORS)):
        seconds = [record["seconds"] for record in records]
        values = [record[key] for record in records]
        lines.append(drawing.plot_line(axes, seconds, values, color, solid_capstyle="round"))
        # The classifier keeps the head of the epoch with the best log-likelihood.
        kept = max(records, key=lambda record: record["log_likelihood"])
        drawing.plot_ring(axes, kept["seconds"], kept[key], color)
    if len(histories) == 1:
        # With several runs the numbers would overlap.
        axes.annotate(
            form.format(kept[key]).replace("-", "−"), (kept["seconds"], kept[key]),
            xytext=(4, -9), textcoords="offset points", ha="right", va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    drawing.frame(axes, title, "seconds of training")
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    return lines


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
        raise ArgumentError(
            f"run {name!r} has no held-out evaluations to plot; train it with "
            "validation_fraction > 0 and enough rows to hold out 50"
        )
    return records
