"""What a person should do about a diagnosis: three lines, before the tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.diagnostics import Diagnosis, Reliability
    from extremax.rows import Rows

# Smaller calibration errors than this, beyond what chance makes of them, are nothing to act on.
_NEGLIGIBLE = 0.01
# A bias of the gradient that is small, as a share of it; signals of noises that differ by as much.
_SMALL_BIAS, _BETTER = 0.1, 1.5


def verdict(
    diagnosis: Diagnosis, calibrated: bool, corrects_draws: bool, n_draws: int
) -> list[str]:
    """Whether to trust the probabilities, where least, and whether to worry about the noise.

    calibrated:      see `is_calibrated`.
    corrects_draws:  see `Objective`.
    n_draws:         classes that training draws.
    """
    noise = _noise(diagnosis, corrects_draws, n_draws)
    return [_probabilities(diagnosis, calibrated), _classes(diagnosis), noise]


def is_calibrated(classifier: ExtremeClassifier) -> bool:
    """Whether held-out rows said how sure to be: if asked, and always where experts are blended."""
    from extremax.prediction.blend import is_product

    model = classifier.model_
    blended = is_product(model.objective, model.noise) or bool(model.experts)
    return blended or classifier.calibrate


def draws_of(classifier: ExtremeClassifier, rows: Rows) -> int:
    """Classes that training draws, for rows of this kind."""
    from extremax.preparation import choose_for, settings_for
    from extremax.rows import Sizes

    labels = classifier.model_.labels
    sizes = Sizes(labels.n_rows, rows.n_features, len(labels), rows.nonzeros)
    choice = choose_for(classifier, type(rows), sizes)
    return settings_for(classifier, choice, sizes.rows).n_negatives


def _is_off(part: Reliability) -> bool:
    return part.above_chance > max(_NEGLIGIBLE, part.by_chance)


def _means(part: Reliability) -> tuple[float, float]:
    """Mean confidence and accuracy."""
    share = part.count / part.count.sum()
    return float(share @ part.confidence), float(share @ part.accuracy)


def _probabilities(diagnosis: Diagnosis, calibrated: bool) -> str:
    part = diagnosis.reliability
    says, right = _means(part)
    if not _is_off(part):
        return f"probabilities: right; they say {says:.1%} on average, and {right:.1%} is correct"
    how = "too sure" if says > right else "too unsure"
    how += f" ({says:.1%}, {right:.1%} correct)"
    if abs(says - right) < part.error / 2:
        how = f"off by {part.error:.1%}, in both directions"
    advice = "recalibrate() on such rows" if calibrated else "train with --calibrate"
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


def _noise(diagnosis: Diagnosis, corrects_draws: bool, n_draws: int) -> str:
    own = diagnosis.own_noise
    if own is None:
        return "noise: none to worry about; training scored every class"
    if not corrects_draws:
        # Negative sampling and its like: no bias, but a noise may teach little.
        best = max(diagnosis.signal, key=lambda name: diagnosis.signal[name].covered)
        if diagnosis.signal[best].covered > _BETTER * diagnosis.signal[own].covered:
            return f"noise: {best} would teach more than {own}; try --noise {best}"
        return f"noise: no need to worry; {own} teaches as much as the others below, or more"
    if not _is_off(diagnosis.reliability):
        return "noise: no need to worry; the bias below does not show in the probabilities"
    curve = diagnosis.bias[own]
    draws = curve.draws_for(_SMALL_BIAS * curve.gradient)
    if draws <= n_draws:
        return f"noise: no need to worry; with {n_draws:,} draws the bias below is small"
    enough = f"{math.ceil(draws):,}" if math.isfinite(draws) else f"more than {curve.m[-1]:,}"
    return f"noise: its bias may be a cause; {enough} draws would make it small (--n-negatives)"
