"""Fit the map from shares to marginal probabilities on held-out rows with all their labels.

w maximizes the log-likelihood of which of the best classes of each row are its labels (`extremax.
prediction.marginals`), by Newton's method. The shares are those that predictions give.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from extremax.evaluation import hits
from extremax.labels import LabelLists
from extremax.model import Model
from extremax.prediction.marginals import LEAST_SLOPE, N_BEST, Marginals, features
from extremax.training.data import Examples

# Rows at most where every class is scored: some seconds of work.
_SCORES, _FEWEST = 2**28, 500
# How strongly w is pulled to where it starts: a few held-out rows cannot move it far.
_PULL = 10.0
# Newton's method stops when a step gains less than `_ENOUGH` per row.
_STEPS, _ENOUGH = 50, 1e-9


def fit_marginals(
    model: Model, examples: Examples, train: np.ndarray, held_out: np.ndarray, budget: int
) -> Marginals | None:
    """From held-out examples, whose rows must be held out with all their labels; None where rows
    have one label each, whose share is its probability."""
    if model.marginals is None or examples.owner is None or not len(held_out):
        return model.marginals
    numbers = np.sort(_of_few_rows(model, examples.owner, held_out))
    # The examples of a row follow each other.
    first = np.unique(examples.owner[numbers], return_index=True)[1]
    truth = LabelLists(examples.labels[numbers], np.append(first, len(numbers)))
    # Counts of all examples would know the labels of these rows.
    counts = np.bincount(examples.labels[train], minlength=model.n_classes)
    blind = replace(model, labels=model.labels.with_counts(counts))
    ranking = blind.best(examples.rows[numbers[first]], N_BEST, budget)
    found = hits(ranking.labels.numpy(), truth)
    weights = _weights(ranking.log_probs, found, np.array(model.marginals.weights))
    missed = len(numbers) - found.sum()
    left = float((1.0 - ranking.log_probs.double().exp().sum(1)).clamp(min=0.0).sum())
    # As if there were one more row, all of whose labels are others.
    others = (missed + model.marginals.others) / (left + 1.0)
    return Marginals(tuple(float(f"{w:.4g}") for w in weights), float(f"{others:.4g}"))


def _of_few_rows(model: Model, owner: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Held-out examples of as many rows as can be predicted in a while."""
    if model.prefers_search:
        return held_out
    most = max(_FEWEST, _SCORES // model.n_classes)
    rows, first = np.unique(owner[held_out], return_index=True)
    chosen = rows[np.argsort(first)[:most]]
    return held_out[np.isin(owner[held_out], chosen)]


def _weights(log_probs: torch.Tensor, found: np.ndarray, start: np.ndarray) -> np.ndarray:
    """w that maximizes  Σ log P(found | w) − (pull/2)‖w − start‖²."""
    used = ~log_probs.isneginf().numpy()
    f, labels = features(log_probs, log_probs).numpy()[used], found[used].astype(float)

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
    return w
