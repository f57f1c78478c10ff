"""Are the probabilities honest? Confidence against accuracy.

Rows are sorted by the probability of their best class and cut into bins of equal size; a
calibrated model is right in a bin as often as it says. The expected calibration error is the mean
distance of the two (Guo et al. 2017, there with bins of equal width, most of them empty when
classes are many). With few rows it is above zero even for honest numbers: `Reliability.by_chance`
says how much of it that alone would make.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from extremax.prediction.blocks import Scorer, blocks, taken


@dataclass(frozen=True)
class Reliability:
    """A bin a number: mean confidence, accuracy and rows, from the least confident to the most.

    error:      expected calibration error, Σ (rows/all) |accuracy − confidence|.
    by_chance:  what it would be on average if every confidence were the chance of being right.
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
            f"confidence and correct are one number a row each, got {confidence.shape} "
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


@dataclass(frozen=True)
class Outcomes:
    """Of each row: the best class's probability, whether it was right, log p of the true class."""

    confidence: np.ndarray
    correct: np.ndarray
    log_prob: np.ndarray

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def log_likelihood(self) -> float:
        """Mean over rows of classes the model knows."""
        known = np.isfinite(self.log_prob)
        return float(self.log_prob[known].mean()) if known.any() else -math.inf


def outcomes(
    scorer: Scorer,
    features: np.ndarray,
    labels: np.ndarray,
    budget: int = 2**28,
    temperature: float = 1.0,
) -> Outcomes:
    """What the model says on rows and whether it is right, with its logits divided by T.

    Rows of classes the model has not (label −1) are wrong and have log p −inf.
    """
    labels = np.asarray(labels, np.int64)
    best, own = np.empty(len(labels)), np.full(len(labels), -np.inf)
    correct = np.zeros(len(labels), bool)
    for rows in blocks(features, scorer.bytes_a_row() + 8 * scorer.head.n_classes, budget):
        logits = scorer.logits(taken(features, rows))
        log_p = scorer.objective.log_normalise(logits / temperature)
        top = log_p.max(1)
        truth = torch.from_numpy(labels[rows])
        best[rows] = top.values.double().exp().numpy()
        correct[rows] = (top.indices == truth).numpy()
        found = log_p.gather(1, truth.clamp(min=0)[:, None])[:, 0]
        own[rows] = found.masked_fill(truth < 0, -torch.inf).double().numpy()
    return Outcomes(np.minimum(best, 1.0), correct, own)
