"""Fit how sure a model may be of a row, on held-out rows with one label each.

w maximizes the log-likelihood of the labels under p' (`extremax.prediction.confidence`), plus that
of whether the best class is the label, which is how calibration is judged; a small penalty keeps it
near zero, where p' is p. With a_y = max(0, log p_y − log t), the slope of log p'_y along log β is
β (a_y − Σ_c p'_c a_c).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize

from extremax.model import Model
from extremax.prediction.blend import log_counts
from extremax.prediction.confidence import (
    MOST,
    N_BEST,
    N_NUMBERS,
    Confidence,
    row_map,
    row_numbers,
)
from extremax.rows import Rows
from extremax.training.data import Examples

#: Rows that it takes at least.
FEWEST = 500
# Rows at most where every class is scored, times classes: some seconds of work.
_SCORES = 2**28
# How strongly w is pulled to zero, for numbers of unit variance: a few rows cannot move it far.
_PULL = 200.0
# The largest probability whose odds count.
_SURE = 1.0 - 1e-7
# Quantiles of the numbers of rows that limit them.
_RANGE = 0.005, 0.995


def fit_confidence(
    model: Model, examples: Examples, train: np.ndarray, held_out: np.ndarray, budget: int
) -> Confidence | None:
    """From held-out examples; None where there are too few, or rows have several labels."""
    if model.marginals is not None or len(held_out) < FEWEST or model.n_classes < 2:
        return None
    most = len(held_out) if model.prefers_search else _SCORES // model.n_classes
    numbers = np.sort(held_out[: max(FEWEST, most)])
    # Counts of all examples would know the labels of these rows.
    counts = np.bincount(examples.labels[train], minlength=model.n_classes)
    blind = replace(model, labels=model.labels.with_counts(counts))
    return confidence_of(blind, examples.rows[numbers], examples.labels[numbers], budget)


def confidence_of(model: Model, rows: Rows, labels: np.ndarray, budget: int) -> Confidence:
    """From rows that training has not seen, and their classes; −1 for one the model does not
    have."""
    plain = replace(model, confidence=None, prior=None)
    ranking = plain.best(rows, N_BEST, budget)
    found = ranking.labels == torch.from_numpy(labels)[:, None]
    found &= ~ranking.log_probs.isneginf()
    log_count = log_counts(model.labels.counts)[ranking.labels[:, 0]]
    return fitted_to(ranking.log_probs, log_count, found)


def fitted_to(best: torch.Tensor, log_count: torch.Tensor, found: torch.Tensor) -> Confidence:
    """The map from log p of the best classes of each row (n, j), in falling order, the log count of
    the first (n,), and which of them is the label (n, j)."""
    best, found = best[:, :N_BEST], found[:, :N_BEST]
    numbers = row_numbers(best, log_count).numpy()
    low, high = (_rounded(np.quantile(numbers, share, axis=0)) for share in _RANGE)
    inside = np.clip(numbers, low, high)
    # The penalty is for numbers around zero, of unit variance.
    center, scale = inside.mean(0), np.maximum(inside.std(0), 1e-6)
    features = np.column_stack([np.ones(len(inside)), (inside - center) / scale])
    above = best.double().numpy()
    above = above - row_map(best, torch.zeros(len(best))).log_t.numpy()
    above = np.maximum(above, 0.0)
    of_label, is_first = np.where(found.numpy(), above, 0.0).sum(1), found[:, 0].numpy()

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        log_exponent = features @ weights
        mapped = row_map(best, torch.from_numpy(log_exponent))
        beta, log_n = mapped.exponent[:, 0].numpy(), mapped.log_n[:, 0].numpy()
        p = mapped(best.double()).exp().numpy()
        odds = p[:, 0].clip(max=_SURE) / (1.0 - p[:, 0].clip(max=_SURE))
        value = ((beta - 1.0) * of_label - log_n).mean()
        value += np.where(is_first, np.log(p[:, 0]), -np.log1p(odds)).mean()
        mean = (p * above).sum(1)
        slope = of_label - mean + np.where(is_first, 1.0, -odds) * (above[:, 0] - mean)
        slope *= beta * (np.abs(log_exponent) < MOST)
        gradient = (features * slope[:, None]).mean(0)
        pull = _PULL / len(best)
        return 0.5 * pull * np.square(weights).sum() - value, pull * weights - gradient

    found_weights = minimize(loss, np.zeros(1 + N_NUMBERS), jac=True, method="BFGS").x
    weights = found_weights[1:] / scale
    first = found_weights[0] - (weights * center).sum()
    return Confidence(tuple(_rounded(np.append(first, weights))), tuple(low), tuple(high))


def _rounded(numbers: np.ndarray) -> list[float]:
    return [float(f"{number:.5g}") for number in numbers]
