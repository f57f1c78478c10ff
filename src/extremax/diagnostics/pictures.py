"""A diagnosis drawn: the reliability diagram, and bias against samples."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from extremax.diagnostics.calibration import Reliability
from extremax.diagnostics.summary import Diagnosis
from extremax.report.curves import (
    _COLORS,
    _INK,
    _PALE,
    _STYLE,
    _matplotlib,
    _undated,
    check_picture,
)

# Confidences are small where half of the bins are below this.
_SMALL = 0.05


def picture(found: Diagnosis, title: str, path: str | Path) -> None:
    """Draw into a file (.png, .pdf, .svg)."""
    from extremax.files import whole

    path = Path(path)
    check_picture(path)
    figure = draw(found, title)
    with _matplotlib().rc_context(_STYLE), whole(path) as aside:
        figure.savefig(aside, format=path.suffix[1:].lower(), metadata=_undated(path))


def draw(found: Diagnosis, title: str) -> Any:
    """The matplotlib figure, for whoever wants to change it."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 3.4), dpi=200, layout="constrained")
        n_panels = 2 if found.bias else 1
        panels = figure.subplots(1, n_panels, squeeze=False)[0]
        _reliability(panels[0], found)
        if found.bias:
            _bias(panels[1], found)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    return figure


def _reliability(axes: Any, found: Diagnosis) -> None:
    """Scales are logarithmic where most confidences are small, as with very many classes; there
    a bin in which nothing was right has no point."""
    curves = {
        f"as it is, error {found.reliability.error:.3f}": found.reliability,
        f"T = {found.temperature:.2f}, error {found.tempered_reliability.error:.3f}": (
            found.tempered_reliability
        ),
    }
    small = float(np.median(found.reliability.confidence)) < _SMALL
    lowest = min(_lowest(curve) for curve in curves.values()) if small else 0.0
    axes.plot([lowest, 1], [lowest, 1], color=_INK, linewidth=0.8, linestyle=(0, (4, 3)))
    for (name, curve), color in zip(curves.items(), cycle(_COLORS)):
        some = curve.accuracy > (0.0 if small else -1.0)
        axes.plot(
            curve.confidence[some], curve.accuracy[some], label=name, color=color, linewidth=1.4,
            marker="o", markersize=3, markeredgewidth=0, solid_capstyle="round",
        )  # fmt: skip
    if small:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_title("How often it is right", loc="left")
    axes.set_xlabel("confidence: probability of the best class")
    axes.set_ylabel("accuracy")
    _plain(axes)


def _lowest(curve: Reliability) -> float:
    found = np.concatenate([curve.confidence, curve.accuracy[curve.accuracy > 0]])
    return 0.8 * float(found.min())


def _bias(axes: Any, found: Diagnosis) -> None:
    for (name, curve), color in zip(found.bias.items(), cycle(_COLORS)):
        own = " (its own)" if name == found.own_noise else ""
        relative, error = curve.relative, 2.0 * curve.error / curve.gradient
        axes.plot(
            curve.m, relative, label=f"{name}{own}", color=color, linewidth=1.4,
            marker="o", markersize=3, markeredgewidth=0, solid_capstyle="round",
        )  # fmt: skip
        low = np.maximum(relative - error, relative / 10.0)
        axes.fill_between(curve.m, low, relative + error, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("Bias of sampled softmax's gradient", loc="left")
    axes.set_xlabel("samples m")
    axes.set_ylabel("share of the gradient")
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=_PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8)
