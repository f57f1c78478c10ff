"""Plots of a diagnosis: the reliability diagram, and the bias by number of draws."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from extremax.diagnostics import Diagnosis, Reliability
from extremax.report import drawing

# Axes are logarithmic if the median confidence of the bins is below this.
_SMALL_CONFIDENCE = 0.05


def plot_diagnosis(diagnosis: Diagnosis, title: str, path: str | Path) -> None:
    """Plot a diagnosis to a file (.png, .pdf or .svg)."""
    drawing.check_picture(path)
    drawing.save_figure(draw(diagnosis, title), path)


def draw(diagnosis: Diagnosis, title: str) -> Any:
    """Return the plot of `plot_diagnosis` as a matplotlib figure, for changes before saving."""
    with drawing.load_matplotlib().rc_context(drawing.STYLE):
        figure = drawing.new_figure(7.2, 3.4, layout="constrained")
        panels = figure.subplots(1, 2 if diagnosis.bias else 1, squeeze=False)[0]
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
    axes.plot([lowest, 1], [lowest, 1], color=drawing.INK, linewidth=0.8, linestyle=(0, (4, 3)))
    for (name, curve), color in zip(curves.items(), cycle(drawing.LINE_COLORS)):
        shown = curve.accuracy > (0.0 if logarithmic else -1.0)
        drawing.plot_line(axes, curve.confidence[shown], curve.accuracy[shown], color, label=name)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    drawing.frame(axes, "Reliability", "confidence: probability of the best class", grid="both")
    axes.set_ylabel("accuracy")
    axes.legend(frameon=False, fontsize=8)


def _lowest(curve: Reliability) -> float:
    positive = np.concatenate([curve.confidence, curve.accuracy[curve.accuracy > 0]])
    return 0.8 * float(positive.min())


def _plot_bias(axes: Any, diagnosis: Diagnosis) -> None:
    """Plot the relative bias by number of draws, with two standard errors."""
    for (name, curve), color in zip(diagnosis.bias.items(), cycle(drawing.LINE_COLORS)):
        own = " (its own)" if name == diagnosis.own_noise else ""
        relative, error = curve.relative, 2.0 * curve.error / curve.gradient
        drawing.plot_line(axes, curve.m, relative, color, label=f"{name}{own}")
        low = np.maximum(relative - error, relative / 10.0)
        axes.fill_between(curve.m, low, relative + error, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    drawing.frame(axes, "Bias of sampled softmax's gradient", "draws m", grid="both")
    axes.set_ylabel("relative to the gradient")
    axes.legend(frameon=False, fontsize=8)
