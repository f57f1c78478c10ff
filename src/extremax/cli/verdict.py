"""What a person should do about a diagnosis: three lines, before the tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extremax.diagnostics import Diagnosis, Reliability
    from extremax.model import Model

# Smaller calibration errors than this, beyond what chance makes of them, are nothing to act on.
_NEGLIGIBLE = 0.02
# A bias of the gradient that is small, as a share of it; signals of noises that differ by as much.
_SMALL_BIAS, _BETTER = 0.1, 1.5


def verdict(diagnosis: Diagnosis, model: Model) -> list[str]:
    """Whether to trust the probabilities, where least, and whether to worry about the noise."""
    return [_probabilities(diagnosis, model), _classes(diagnosis), _noise(diagnosis, model)]


def _is_off(part: Reliability) -> bool:
    return part.above_chance > max(_NEGLIGIBLE, part.by_chance)


def _means(part: Reliability) -> tuple[float, float]:
    """Mean confidence and accuracy."""
    share = part.count / part.count.sum()
    return float(share @ part.confidence), float(share @ part.accuracy)


def _probabilities(diagnosis: Diagnosis, model: Model) -> str:
    part = diagnosis.reliability
    says, right = _means(part)
    if not _is_off(part):
        return f"probabilities: right; they say {says:.1%} on average, and {right:.1%} is correct"
    how = "too sure" if says > right else "not sure enough"
    how += f" ({says:.1%}, {right:.1%} correct)"
    if abs(says - right) < part.error / 2:
        how = f"off by {part.error:.1%}, in both directions"
    advice = "train with --calibrate" if model.confidence is None else "rows unlike training"
    return f"probabilities: {how}; {advice}"


def _classes(diagnosis: Diagnosis) -> str:
    off = [band for band in diagnosis.bands if _is_off(band.reliability)]
    if not off:
        return "classes: rare and frequent ones are equally right"
    worst = max(off, key=lambda band: band.reliability.above_chance)
    says, right = _means(worst.reliability)
    examples = (
        f"{worst.least:,} to {worst.most:,}" if worst.least < worst.most else f"{worst.most:,}"
    )
    return f"classes: worst with {examples} training examples ({says:.1%}, {right:.1%} correct)"


def _noise(diagnosis: Diagnosis, model: Model) -> str:
    own = diagnosis.own_noise
    if own is None:
        return "noise: none to worry about; training scored every class"
    if not model.objective.corrects_draws:
        # Negative sampling and its like: no bias, but a noise may teach little.
        best = max(diagnosis.signal, key=lambda name: diagnosis.signal[name].covered)
        if diagnosis.signal[best].covered > _BETTER * diagnosis.signal[own].covered:
            return f"noise: {best} would teach more than {own}; try --noise {best}"
        return f"noise: no need to worry; {own} teaches as much as the others below, or more"
    if not _is_off(diagnosis.reliability):
        return "noise: no need to worry; the bias below does not show in the probabilities"
    curve = diagnosis.bias[own]
    draws = curve.draws_for(_SMALL_BIAS * curve.gradient)
    enough = f"{math.ceil(draws):,}" if math.isfinite(draws) else f"more than {curve.m[-1]:,}"
    return f"noise: its bias may be a cause; {enough} draws would make it small (--n-negatives)"
