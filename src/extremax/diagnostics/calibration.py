"""Are the probabilities honest? Confidence against accuracy.

Rows are sorted by the probability of their best class and cut into bins of equal size; in each bin
a calibrated model is right as often as it says. The expected calibration error is the mean distance
of the two (Guo et al. 2017, there with bins of equal width, most of which are empty when there are
many classes). With few rows it is above zero even for honest probabilities:
`Reliability.by_chance` says by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reliability:
    """Mean confidence, accuracy and number of rows per bin, from the least confident to the most.

    error:      expected calibration error, Σ (rows/all) |accuracy − confidence|.
    by_chance:  its mean if every confidence were the probability of being right.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    error: float
    by_chance: float


def reliability(confidence: np.ndarray, correct: np.ndarray, n_bins: int = 15) -> Reliability:
    """Reliability of the best class's probabilities (n,), given whether each was right (n,)."""
    confidence = np.asarray(confidence, np.float64)
    correct = np.asarray(correct, np.float64)
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(confidence):
        raise ValueError(
            f"confidence and correct need one number per row each, got {confidence.shape} "
            f"and {correct.shape}"
        )
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    order = np.argsort(confidence, kind="stable")
    bins = np.array_split(order, min(n_bins, len(order)))
    count = np.array([len(rows) for rows in bins])
    mean = np.array([confidence[rows].mean() for rows in bins])
    right = np.array([correct[rows].mean() for rows in bins])
    share = count / len(order)
    spread = np.array([math.sqrt((confidence * (1.0 - confidence))[rows].sum()) for rows in bins])
    # The mean of |a normal variable| is √(2/π) of its standard deviation.
    chance = math.sqrt(2.0 / math.pi) * float((share * spread / count).sum())
    return Reliability(mean, right, count, float((share * np.abs(right - mean)).sum()), chance)
