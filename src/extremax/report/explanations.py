"""A picture of an explanation: bars for what speaks for a label, and for what speaks against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from extremax.report import drawing

if TYPE_CHECKING:  # It imports numpy, and the command line imports this package.
    from extremax.prediction.explanation import Explanation


def draw_explanation(explanation: Explanation, path: str | Path, n_parts: int = 12) -> None:
    """Draw the strongest parts to a file (.png, .pdf or .svg)."""
    drawing.check_picture(path)
    parts, values = explanation.parts[:n_parts], explanation.contributions[:n_parts]
    with drawing.load_matplotlib().rc_context(drawing.STYLE):
        figure = drawing.new_figure(5.4, 1.0 + 0.24 * max(1, len(parts)), layout="constrained")
        axes = figure.subplots()
        speaks_for, speaks_against = drawing.LINE_COLORS[:2]
        colors = [speaks_for if value >= 0 else speaks_against for value in values]
        axes.barh(range(len(parts)), values, color=colors, height=0.7)
        axes.set_yticks(range(len(parts)), [f"{part!s:.40}" for part in parts])
        axes.invert_yaxis()
        axes.axvline(0.0, color=drawing.INK, linewidth=0.8)
        title = f"{explanation.label!s:.50}: log p = {explanation.log_prob:.2f}"
        drawing.frame(axes, title.replace("-", "−"), "added to log p (nats)", grid="x")
    drawing.save_figure(figure, path)
