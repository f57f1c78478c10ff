"""Penalized softmax on little data: solved, not trained.

    min over W, b of  −Σ_i ω_i log softmax(W x_i + b)_{y_i} + ‖W‖²/2C

is convex. Where a pass over every row and class takes milliseconds, L-BFGS (Liu & Nocedal, "On the
limited memory BFGS method for large scale optimization", 1989) finds the optimum in some dozens of
them. C is what held-out rows prefer, or those of five folds where none are held out: from strong
penalties to weak ones, each solved from the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import minimize

from extremax.heads import Head
from extremax.kernels.cpu.threads import limit
from extremax.rows import Rows, Sizes, SparseRows
from extremax.training.data import Examples

# Weights, and products of a pass over the rows, at most.
_MOST_WEIGHTS, _MOST_PRODUCTS = 4_000_000, 150_000_000
# C where rows have a mean square length of one.
_STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
# Passes at most to compare strengths, and for the chosen one.
_TRIAL_PASSES, _PASSES = 40, 150
_FOLDS = 5
# Pairs of vectors that L-BFGS keeps: a few of them save memory.
_MEMORY = 6


def suits(sizes: Sizes) -> bool:
    """Whether a problem of this size is solved within seconds."""
    weights = (sizes.features + 1) * sizes.classes
    products = sizes.rows * sizes.nonzeros * sizes.classes
    return weights <= _MOST_WEIGHTS and products <= _MOST_PRODUCTS


class Trial(NamedTuple):
    """A strength C, the penalized loss of training rows per row, and figures of held-out ones."""

    strength: float
    loss: float
    log_likelihood: float
    accuracy: float

    @property
    def is_known(self) -> bool:
        """Whether any rows were held out."""
        return np.isfinite(self.log_likelihood)


class Problem:
    """Examples whose rows are scaled to a mean square length of one, without empty columns."""

    def __init__(self, examples: Examples, n_classes: int) -> None:
        x = _matrix(examples.rows)
        self.columns = np.arange(x.shape[1])
        if sparse.issparse(x):
            self.columns = np.unique(x.indices)
            x = sparse.csr_matrix(x[:, self.columns])
        squares = float(np.square(x.data if sparse.issparse(x) else x, dtype=np.float64).sum())
        self.scale = float(np.sqrt(x.shape[0] / squares)) if squares > 0 else 1.0
        self.x, self.labels, self.n_classes = x * np.float32(self.scale), examples.labels, n_classes
        weights = np.ones(len(examples)) if examples.weights is None else examples.weights
        self.weights = weights.astype(np.float64)

    def choose_strength(self, train: np.ndarray, held_out: np.ndarray) -> Iterator[Trial]:
        """Strengths in turn, until two of them have been no better than the best before."""
        folds = [(train, held_out)] if len(held_out) else list(_folds(self.labels, train))
        solved: list[np.ndarray | None] = [None] * len(folds)
        best, n_worse = -np.inf, 0
        if not folds:  # Every class has a single example.
            yield Trial(1.0, self.solve(train, 1.0, None)[1], -np.inf, 0.0)
            return
        for strength in _STRENGTHS:
            found = []
            for i, (some, others) in enumerate(folds):
                at, loss = self.solve(some, strength, solved[i], _TRIAL_PASSES)
                found.append((loss, *self.held_out(at, others)))
                solved[i] = at
            loss, log_likelihood, accuracy = np.mean(found, axis=0).tolist()
            yield Trial(strength, loss, log_likelihood, accuracy)
            n_worse = 0 if log_likelihood > best else n_worse + 1
            best = max(best, log_likelihood)
            if n_worse == 2:
                return

    def solve(
        self, numbers: np.ndarray, strength: float, start: np.ndarray | None, passes: int = _PASSES
    ) -> tuple[np.ndarray, float]:
        """W and b of some examples, as one vector, and the loss per example.

        start:  a solution for another strength.
        """
        x, labels, weights = self.x[numbers], self.labels[numbers], self.weights[numbers]
        n, n_features = x.shape
        total = weights.sum()
        size = n_features * self.n_classes
        if start is None:
            counts = np.bincount(labels, weights, self.n_classes)
            start = np.zeros(size + self.n_classes)
            start[size:] = np.log(np.maximum(counts, 0.5) / total)
        penalty = 1.0 / (strength * total)
        transposed = sparse.csr_matrix(x.T) if sparse.issparse(x) else np.ascontiguousarray(x.T)
        rows = np.arange(n)

        def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
            w = at[:size].reshape(n_features, self.n_classes)
            scores = torch.from_numpy(_product(x, w.astype(np.float32)))
            scores += torch.from_numpy(at[size:].astype(np.float32))
            log_p = scores.log_softmax(1)
            value = -float(weights @ log_p.numpy()[rows, labels].astype(np.float64)) / total
            gradient = log_p.exp_().numpy()
            gradient[rows, labels] -= 1.0
            gradient *= (weights / total).astype(np.float32)[:, None]
            slope = np.empty_like(at)
            slope[:size] = _product(transposed, gradient).ravel()
            slope[:size] += penalty * at[:size]
            slope[size:] = gradient.sum(0)
            return value + 0.5 * penalty * float(at[:size] @ at[:size]), slope

        options = {"maxiter": passes, "maxcor": _MEMORY, "ftol": 1e-7, "gtol": 1e-6}
        # The order in which torch adds depends on its number of threads.
        with limit(1):
            found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        return found.x, float(found.fun)

    def held_out(self, solved: np.ndarray, numbers: np.ndarray) -> tuple[float, float]:
        """Mean log-likelihood and accuracy of some examples, by their weights."""
        size = len(self.columns) * self.n_classes
        w = solved[:size].reshape(-1, self.n_classes).astype(np.float32)
        with limit(1):
            scores = torch.from_numpy(_product(self.x[numbers], w)).double()
            log_p = (scores + torch.from_numpy(solved[size:])).log_softmax(1)
        labels, weights = torch.from_numpy(self.labels[numbers]), self.weights[numbers]
        found = log_p.gather(1, labels[:, None])[:, 0].numpy()
        correct = (log_p.argmax(1) == labels).numpy()
        return float(np.average(found, weights=weights)), float(
            np.average(correct, weights=weights)
        )

    def write(self, solved: np.ndarray, head: Head) -> None:
        """Give a head these weights."""
        size = len(self.columns) * self.n_classes
        weight = (solved[:size] * self.scale).reshape(-1, self.n_classes)
        head.set_weights(self.columns, weight.astype(np.float32), solved[size:].astype(np.float32))


def _matrix(rows: Rows) -> Any:
    """The rows as an array or, where they are sparse, as a matrix of scipy."""
    return rows.matrix if isinstance(rows, SparseRows) else rows.dense().float32()


def _product(x: Any, w: np.ndarray) -> np.ndarray:
    """x @ w in float32; torch's product of arrays takes the threads it is given."""
    if sparse.issparse(x):
        return x @ w
    return (torch.from_numpy(np.ascontiguousarray(x)) @ torch.from_numpy(w)).numpy()


def _folds(labels: np.ndarray, train: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(training, held-out) examples of five folds; the examples of a class are in different ones.
    A held-out example of a class that training lacks is left out."""
    order = train[np.argsort(labels[train], kind="stable")]
    fold = np.empty(len(order), np.int64)
    fold[np.argsort(labels[order], kind="stable")] = np.arange(len(order)) % _FOLDS
    for number in range(_FOLDS):
        some, others = order[fold != number], order[fold == number]
        others = others[np.isin(labels[others], labels[some])]
        if len(others):
            yield some, others
