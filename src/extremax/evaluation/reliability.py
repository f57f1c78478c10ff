"""Calibration: confidence compared with accuracy.

Rows are sorted by the probability of their most probable class and split into bins of equal size.
In each bin the accuracy of a calibrated model equals its mean confidence. The expected calibration
error is the mean absolute difference of the two (Guo et al. 2017, there with bins of equal width,
most of which are empty when there are many classes). With few rows the error is above zero even for
calibrated probabilities; `Reliability.by_chance` says by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from extremax.errors import ArgumentError

#: Bins, unless another number is asked for.
N_BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Mean confidence, accuracy and number of rows per bin, from least to most confident.

    error:      expected calibration error, Σ_bins (rows/all) |accuracy − confidence|.
    by_chance:  mean of ``error`` if every confidence were the probability of being correct.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    error: float
    by_chance: float

    @property
    def above_chance(self) -> float:
        """``error`` less ``by_chance``: about zero, on either side of it, if calibrated."""
        return self.error - self.by_chance


@dataclass(frozen=True)
class FrequencyBand:
    """Reliability of the rows whose predicted class has so many training examples.

    least, most:  training examples of the rarest and the most frequent predicted class.
    """

    least: int
    most: int
    reliability: Reliability


def reliability(confidence: np.ndarray, correct: np.ndarray, n_bins: int = N_BINS) -> Reliability:
    """Compare the probability of each row's most probable class (n,) with whether it is correct
    (n,)."""
    confidence = np.asarray(confidence, np.float64)
    correct = np.asarray(correct, np.float64)
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(confidence):
        raise ArgumentError(
            "confidence and correct must have one number per row each, got shapes "
            f"{confidence.shape} and {correct.shape}"
        )
    if n_bins < 1:
        raise ArgumentError(f"n_bins must be at least 1, got {n_bins}")
    order = np.argsort(confidence, kind="stable")
    bins = np.array_split(order, min(n_bins, len(order)))
    terms = confidence, correct, confidence * (1.0 - confidence)
    sums = (np.array([term[rows].sum() for rows in bins]) for term in terms)
    return reliability_of(np.array([len(rows) for rows in bins]), *sums)


def reliability_of(
    count: np.ndarray, confidence: np.ndarray, correct: np.ndarray, variance: np.ndarray
) -> Reliability:
    """From sums over the rows of each bin: of 1, of c, of what is correct, and of c (1 − c)."""
    used = count > 0
    count, confidence, correct = count[used].astype(np.int64), confidence[used], correct[used]
    n = max(int(count.sum()), 1)
    # The mean of |a normal variable| is √(2/π) of its standard deviation.
    chance = math.sqrt(2.0 / math.pi) * float(np.sqrt(variance[used]).sum()) / n
    error = float(np.abs(correct - confidence).sum()) / n
    return Reliability(confidence / count, correct / count, count, error, chance)


def reliability_by_frequency(
    confidence: np.ndarray, correct: np.ndarray, frequency: np.ndarray, n_bins: int = N_BINS
) -> list[FrequencyBand]:
    """`reliability` for rows of rare to frequent predictions, cut at the quartiles.

    frequency:  (n,) training examples of each row's most probable class.

    Rows of equal frequency stay together, so that there may be fewer than four bands.
    """
    confidence, correct, frequency = map(np.asarray, (confidence, correct, frequency))
    if frequency.shape != confidence.shape or not len(frequency):
        raise ArgumentError(
            "frequency and confidence must have one number per row each, got shapes "
            f"{frequency.shape} and {confidence.shape}"
        )
    quartiles = np.quantile(frequency, (0.25, 0.5, 0.75), method="lower")
    band = np.searchsorted(quartiles, frequency)
    bands = []
    for number in np.unique(band):
        rows = band == number
        least, most = int(frequency[rows].min()), int(frequency[rows].max())
        part = reliability(confidence[rows], correct[rows], n_bins)
        bands.append(FrequencyBand(least, most, part))
    return bands
