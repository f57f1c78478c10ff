"""Fit how sure a model may be of a row, on held-out rows with one label each.

w and v maximize the log-likelihood of the labels under p' (`extremax.prediction.confidence`), with
a pull to zero, where p' is p. Where they gain less than ten numbers must by the Bayesian
information criterion (Schwarz 1978), p stays as it is. With a_y = max(0, log p_y − log t), the
slope of log p'_y along log β is β (a_y − Σ_c p'_c a_c), and that along δ is
p'_1 − [y is the best class].
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize

from extremax.kernels.cpu.threads import one_torch_thread
from extremax.model import Model
from extremax.prediction.blend import log_counts
from extremax.prediction.confidence import (
    LARGEST_SHARE,
    MOST,
    N_BEST,
    N_NUMBERS,
    Confidence,
    least_log_p,
    row_map,
    row_numbers,
)
from extremax.rows import Rows
from extremax.training.data import Examples

#: Rows that it takes at least.
FEWEST = 500
# Rows at most where every class is scored, times classes: some seconds of work.
_SCORES = 2**29
# How strongly w and v are pulled to zero, for numbers of unit variance.
_PULL = 50.0
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
    rows, labels = examples.rows[numbers], examples.labels[numbers]
    return confidence_of(blind, rows, labels, budget, examples.weights_of(numbers))


def confidence_of(
    model: Model, rows: Rows, labels: np.ndarray, budget: int, weights: np.ndarray | None = None
) -> Confidence | None:
    """From rows that training has not seen, and their classes; −1 for one the model does not
    have.

    weights:  of the rows, one on average; None for ones.
    """
    plain = replace(model, confidence=None, prior=None)
    ranking = plain.best(rows, N_BEST, budget)
    found = ranking.labels == torch.from_numpy(labels)[:, None]
    found &= ~ranking.log_probs.isneginf()
    log_count = log_counts(model.labels.counts)[ranking.labels[:, 0]]
    return fitted_to(ranking.log_probs, log_count, found, weights)


def fitted_to(
    best: torch.Tensor,
    log_count: torch.Tensor,
    found: torch.Tensor,
    weights: np.ndarray | None = None,
) -> Confidence | None:
    """The map from log p of the best classes of each row (n, j), in falling order, the log count of
    the first (n,), which of them is the label (n, j), and the weights of the rows (n,)."""
    row_weights = np.ones(len(best)) if weights is None else weights
    best, found = best[:, :N_BEST], found[:, :N_BEST]
    numbers = row_numbers(best, log_count).numpy()
    low, high = (_rounded(np.quantile(numbers, share, axis=0)) for share in _RANGE)
    inside = np.clip(numbers, low, high)
    # The penalty is for numbers around zero, of unit variance.
    center, scale = inside.mean(0), np.maximum(inside.std(0), 1e-6)
    features = np.column_stack([np.ones(len(inside)), (inside - center) / scale])
    above = (best.double() - least_log_p(best.double())).clamp(min=0.0).numpy()
    second = above[:, min(1, above.shape[1] - 1)]
    is_label, is_first = found.numpy(), found[:, 0].numpy()
    pull = _PULL / len(best)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        log_exponent, wanted = (features @ weights.reshape(2, -1).T).T
        mapped = row_map(best, torch.from_numpy(log_exponent), torch.from_numpy(wanted))
        beta, lowered = mapped.exponent[:, 0].numpy(), mapped.lowered[:, 0].numpy()
        log_n, p = mapped.log_n[:, 0].numpy(), mapped(best.double()).exp().numpy()
        gain = (beta[:, None] - 1.0) * above
        gain[:, 0] -= lowered
        value = (row_weights * (np.where(is_label, gain, 0.0).sum(1) - log_n)).mean()
        # Where δ is as large as the order of classes allows, the first moves with the second.
        is_free = lowered == wanted
        moved = above.copy()
        near = (1.0 - LARGEST_SHARE) * above[:, 0] + LARGEST_SHARE * second
        moved[:, 0] = np.where(is_free, above[:, 0], near)
        on_exponent = np.where(is_label, moved, 0.0).sum(1) - (p * moved).sum(1)
        on_exponent *= beta * (np.abs(log_exponent) < MOST)
        on_lowered = np.where(is_free, p[:, 0] - is_first, 0.0)
        slopes = np.stack([on_exponent, on_lowered]) * row_weights
        gradient = (slopes @ features / len(best)).ravel()
        return 0.5 * pull * np.square(weights).sum() - value, pull * weights - gradient

    start = np.zeros(2 * (1 + N_NUMBERS))
    with one_torch_thread():
        result = minimize(loss, start, jac=True, method="L-BFGS-B")
    if (loss(start)[0] - result.fun) * len(best) < 0.5 * len(start) * np.log(len(best)):
        return None
    w, v = (_unscaled(part, center, scale) for part in np.split(result.x, 2))
    return Confidence(w, v, tuple(low), tuple(high))


def _unscaled(weights: np.ndarray, center: np.ndarray, scale: np.ndarray) -> tuple[float, ...]:
    """Weights of numbers as they are, from those of numbers that are centered and scaled."""
    others = weights[1:] / scale
    return tuple(_rounded(np.append(weights[0] - (others * center).sum(), others)))


def _rounded(numbers: np.ndarray) -> list[float]:
    return [float(f"{number:.5g}") for number in numbers]
