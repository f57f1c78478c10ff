"""Plots of a diagnosis: the reliability diagram, and the bias by number of samples."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from extremax.diagnostics import Diagnosis, Reliability
from extremax.report.drawing import (
    INK,
    LINE_COLORS,
    PALE,
    STYLE,
    check_picture,
    load_matplotlib,
    save_figure,
)

# Axes are logarithmic if the median confidence of the bins is below this.
_SMALL_CONFIDENCE = 0.05


def plot_diagnosis(diagnosis: Diagnosis, title: str, path: str | Path) -> None:
    """Plot a diagnosis to a file (.png, .pdf or .svg)."""
    check_picture(path)
    save_figure(draw(diagnosis, title), path)


def draw(diagnosis: Diagnosis, title: str) -> Any:
    """Return the plot of `plot_diagnosis` as a matplotlib figure, for changes before saving."""
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4), dpi=200, layout="constrained")
        n_panels = 2 if diagnosis.bias else 1
        panels = figure.subplots(1, n_panels, squeeze=False)[0]
        _plot_reliability(panels[0], diagnosis)
        if diagnosis.bias:
            _plot_bias(panels[1], diagnosis)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    return figure


def _plot_reliability(axes: Any, diagnosis: Diagnosis) -> None:
    """Plot accuracy by confidence.

    Axes are logarithmic if most confidences are small, as with very many classes. A bin without a
    correct row then has no point.
    """
    plain, tempered = diagnosis.reliability, diagnosis.tempered_reliability
    curves = {
        f"as it is, error {plain.error:.3f}": plain,
        f"T = {diagnosis.temperature:.2f}, error {tempered.error:.3f}": tempered,
    }
    logarithmic = float(np.median(plain.confidence)) < _SMALL_CONFIDENCE
    lowest = min(_lowest(curve) for curve in curves.values()) if logarithmic else 0.0
    axes.plot([lowest, 1], [lowest, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    for (name, curve), color in zip(curves.items(), cycle(LINE_COLORS)):
        shown = curve.accuracy > (0.0 if logarithmic else -1.0)
        _plot_line(axes, curve.confidence[shown], curve.accuracy[shown], name, color)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_title("Reliability", loc="left")
    axes.set_xlabel("confidence: probability of the best class")
    axes.set_ylabel("accuracy")
    _finish(axes)


def _lowest(curve: Reliability) -> float:
    positive = np.concatenate([curve.confidence, curve.accuracy[curve.accuracy > 0]])
    return 0.8 * float(positive.min())


def _plot_bias(axes: Any, diagnosis: Diagnosis) -> None:
    """Plot the relative bias by number of samples, with two standard errors."""
    for (name, curve), color in zip(diagnosis.bias.items(), cycle(LINE_COLORS)):
        own = " (its own)" if name == diagnosis.own_noise else ""
        relative, error = curve.relative, 2.0 * curve.error / curve.gradient
        _plot_line(axes, curve.m, relative, f"{name}{own}", color)
        low = np.maximum(relative - error, relative / 10.0)
        axes.fill_between(curve.m, low, relative + error, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("Bias of sampled softmax's gradient", loc="left")
    axes.set_xlabel("samples m")
    axes.set_ylabel("relative to the gradient")
    _finish(axes)


def _plot_line(axes: Any, x: Any, y: Any, label: str, color: str) -> None:
    axes.plot(
        x, y, label=label, color=color, linewidth=1.4,
        marker="o", markersize=3, markeredgewidth=0, solid_capstyle="round",
    )  # fmt: skip


def _finish(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8)
