"""Exact softmax regression by gradient descent, the reference for every sampled objective."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from extremax.errors import ArgumentError, DivergedError, MemoryBudgetError
from extremax.softmax import softmax, weight_gradient

# A step holds about five arrays of this size at once (scores, p, y as int64, p − y).
MAX_SCORE_BYTES = 2**28


def fit_exact(
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    learning_rate: float,
    n_epochs: int,
    batch_size: int | None = None,
    l2: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Fit the maximum-entropy model p = softmax(W x + b); return W, (C, K), and b, (C,).

    Minimizes (1/N) Σ −log p_y + (l2/2)‖W‖² from W = 0, b = 0 by W ← W − α ∂J/∂W (Tian 2016,
    eq. 2; Waite 2020, section 3). The biases are not penalized.

    Meant for small problems: plain, exact and slow. Every step scores every class. If the scores
    of a batch, (batch, C), would take more than ``MAX_SCORE_BYTES`` (256 MiB), the function raises
    ``MemoryBudgetError``.

    batch_size:  examples per step; with None, an epoch is one step on all examples.
    seed:        fixes the order of the examples in each epoch.
    """
    _check(features, labels, n_classes, batch_size)
    weights = features.new_zeros(n_classes, features.shape[1])
    biases = features.new_zeros(n_classes)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(1, n_epochs + 1):
        for rows in _batches(len(features), batch_size, generator):
            x, y = features[rows], one_hot(labels[rows], n_classes)
            p = softmax(x @ weights.T + biases)
            # The mean, so that a good learning rate does not depend on the size of a batch.
            weights -= learning_rate * (weight_gradient(x, p, y) / len(x) + l2 * weights)
            biases -= learning_rate * (p - y).mean(dim=0)
        if not (weights.isfinite().all() and biases.isfinite().all()):
            raise DivergedError(
                f"weights are not finite after epoch {epoch}; check that features are finite "
                f"and lower learning_rate ({learning_rate}) or l2 ({l2})"
            )
    return weights, biases


def _batches(
    n_examples: int, batch_size: int | None, generator: torch.Generator
) -> Iterator[slice | Tensor]:
    """Rows of each step of one epoch."""
    if batch_size is None:
        yield slice(None)
    else:
        yield from torch.randperm(n_examples, generator=generator).split(batch_size)


def _check(features: Tensor, labels: Tensor, n_classes: int, batch_size: int | None) -> None:
    if features.ndim != 2 or not len(features):
        raise ArgumentError(f"features have shape {tuple(features.shape)}; expected (N ≥ 1, K)")
    if labels.shape != features.shape[:1]:
        raise ArgumentError(
            f"labels have shape {tuple(labels.shape)}; expected ({len(features)},), one label per "
            "row of features"
        )
    if labels.min() < 0 or labels.max() >= n_classes:
        raise ArgumentError(
            f"labels lie in {int(labels.min())}..{int(labels.max())}; "
            f"expected 0..{n_classes - 1} for {n_classes} classes"
        )
    if batch_size is not None and batch_size < 1:
        raise ArgumentError(
            f"batch_size is {batch_size}; expected at least 1, or None for all rows"
        )
    batch = min(batch_size or len(features), len(features))
    size = batch * n_classes * features.element_size()
    if size > MAX_SCORE_BYTES:
        raise MemoryBudgetError(
            f"scores of {batch} examples by {n_classes} classes take {size} bytes, more than the "
            f"{MAX_SCORE_BYTES} bytes that fit_exact allows; use a smaller batch_size or a sampled "
            "objective"
        )
