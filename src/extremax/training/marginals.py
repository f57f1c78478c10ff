"""Fit the map from shares to marginal probabilities on held-out rows with all their labels.

w maximizes the log-likelihood of which of the best classes of each row are its labels (`extremax.
prediction.marginals`), by Newton's method. The shares are those that predictions give.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from extremax.evaluation import hits
from extremax.labels import LabelLists
from extremax.model import Model
from extremax.prediction.marginals import (
    LEAST_SLOPE,
    N_BEST,
    Marginals,
    features,
    log_frequency,
    share_left,
)
from extremax.rows import Rows
from extremax.training.data import Examples

# Rows at most where every class is scored: some seconds of work.
_SCORES, _FEWEST = 2**28, 500
# How strongly w is pulled to where it starts: a few held-out rows cannot move it far.
_PULL = 10.0
# Newton's method stops when a step gains less than `_ENOUGH` per class.
_STEPS, _ENOUGH = 50, 1e-9
# Quantiles of log f among candidates that limit it.
_FREQUENCIES = 0.01, 0.99


def fit_marginals(
    model: Model, examples: Examples, train: np.ndarray, held_out: np.ndarray, budget: int
) -> Marginals | None:
    """From held-out examples, whose rows must be held out with all their labels; None where rows
    have one label each, whose share is its probability."""
    if model.marginals is None or examples.owner is None or not len(held_out):
        return model.marginals
    most = len(held_out) if model.prefers_search else max(_FEWEST, _SCORES // model.n_classes)
    rows, truth = examples.grouped(examples.of_few_rows(held_out, most))
    # Counts of all examples would know the labels of these rows.
    counts = np.bincount(examples.labels[train], minlength=model.n_classes)
    blind = replace(model, labels=model.labels.with_counts(counts))
    n_rows = model.labels.n_rows * len(train) / len(examples)
    # Held-out rows have fewer labels than others, because a class must not lose its only example.
    return marginals_of(blind, rows, truth, model.marginals.others, n_rows, budget)


def marginals_of(
    model: Model, rows: Rows, truth: LabelLists, n_labels: float, n_rows: float, budget: int
) -> Marginals:
    """From rows that training has not seen, and all their classes.

    n_labels:  labels of a row, on average.
    n_rows:    training rows that the counts of the model are from.
    """
    assert model.marginals is not None
    ranking = model.best(rows, N_BEST, budget)
    log_f = log_frequency(model.labels.counts, n_rows)[ranking.labels]
    found, used = hits(ranking.labels.numpy(), truth), ~ranking.log_probs.isneginf()
    # What the rarest and the most frequent candidates say of others is not much.
    low, high = np.quantile(log_f[used].numpy(), _FREQUENCIES)
    f = features(ranking.log_probs, log_f.clamp(low, high), ranking.log_probs)
    weights = fit_weights(f[used].numpy(), found[used.numpy()], np.array(model.marginals.weights))
    missed = max(0.0, len(found) * n_labels - found.sum())
    left = float(share_left(ranking.log_probs).sum())
    # As if there were one more row, all of whose labels are others.
    others = (missed + n_labels) / (left + 1.0)
    return Marginals(_rounded(*weights), _rounded(low, high), *_rounded(others))


def fit_weights(f: np.ndarray, found: np.ndarray, start: np.ndarray) -> np.ndarray:
    """w that maximizes  Σ log P(found | w) − (pull/2)‖w − start‖², from features f (n, 5) of
    classes and whether each is a label of its row (n,)."""
    labels = found.astype(float)
    # Around its mean, log f does not need the pull's leave to move w₀.
    center = f[:, 4].mean()
    f = np.concatenate([f[:, :4], f[:, 4:] - center], 1)

    def at(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The value, its gradient, and minus its Hessian."""
        # einsum and not BLAS, which adds in an order that depends on its number of threads.
        z = np.einsum("nf,f->n", f, w)
        p = 0.5 * (1.0 + np.tanh(0.5 * z))
        value = float((labels * z - np.logaddexp(0.0, z)).sum())
        value -= 0.5 * _PULL * float(np.square(w - start).sum())
        gradient = np.einsum("nf,n->f", f, labels - p) - _PULL * (w - start)
        curvature = np.einsum("nf,n,ng->fg", f, p * (1.0 - p), f) + _PULL * np.eye(len(w))
        return value, gradient, curvature

    w = start
    value, gradient, curvature = at(w)
    for _ in range(_STEPS):
        step, size = np.linalg.solve(curvature, gradient), 1.0
        while True:
            proposal = w + size * step
            proposal[1] = max(proposal[1], LEAST_SLOPE)
            result = at(proposal)
            if result[0] >= value or size < 1e-3:
                break
            size /= 2.0
        gain = result[0] - value
        if gain > 0.0:
            w, (value, gradient, curvature) = proposal, result
        if gain < _ENOUGH * len(found):
            break
    return np.append(w[0] - w[4] * center, w[1:])


def _rounded(*numbers: float) -> tuple[float, ...]:
    return tuple(float(f"{number:.4g}") for number in numbers)
