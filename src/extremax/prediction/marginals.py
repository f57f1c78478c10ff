"""From shares to marginal probabilities, where rows have several labels.

A model that learns from (row, label) pairs is normalized over the classes: its p(y|x) = η_y/Σ_c η_c
is the share of label y among the labels of a row, and η_y = P(y is a label of x) is the marginal
probability (Menon et al., "Multilabel reductions: what is my loss optimizing?", 2019). Shares sum
to one; marginals sum to the expected number of labels.

    logit η_y = w₀ + w₁ log p_y + w₂ log S + w₃ log 1/(1 − S) + w₄ log f_y,   w₁ > 0,

S the share of the 20 best classes of the row together, f_y the share of training rows with label y:
Platt scaling (1999) that also asks how sure the model is of the row, and how frequent the class is.
Labels of one frequency keep their order. `extremax.training.marginals` fits w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.tensors import LARGEST

#: The best classes of a row that are asked for their shares; a search finds more in any case.
N_BEST = 20
#: The least w₁.
LEAST_SLOPE = 0.05
N_WEIGHTS = 5
# log p of a class that has none, and the least share of the classes that are not among the best.
_LEAST, _LEAST_LEFT = -100.0, 1e-4


@dataclass(frozen=True)
class Marginals:
    """w, and what it holds for.

    frequencies:  least and largest log f that w was fitted to, which others are taken for.
    others:       labels that a row has per unit of share outside its best classes.
    """

    weights: tuple[float, ...]
    frequencies: tuple[float, ...]
    others: float

    @classmethod
    def start(cls, labels_per_row: float) -> Marginals:
        """Without held-out rows: every row is taken to have as many labels as the mean row, so that
        the odds of η are p times their number."""
        weights = (math.log(labels_per_row), 1.0, *(0.0,) * (N_WEIGHTS - 2))
        return cls(weights, (0.0, 0.0), labels_per_row)

    def settings(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    @classmethod
    def restore(
        cls, weights: Sequence[float], frequencies: Sequence[float], others: float
    ) -> Marginals:
        """From a manifest, checked."""
        numbers = np.array([*weights, *frequencies, others], float)
        fine = (len(weights), len(frequencies)) == (N_WEIGHTS, 2)
        fine = fine and bool((np.abs(numbers) <= LARGEST).all()) and others >= 0.0
        if not (fine and weights[1] >= LEAST_SLOPE and frequencies[0] <= frequencies[1]):
            raise ArgumentError("its map to marginal probabilities is damaged")
        return cls(tuple(weights), tuple(frequencies), others)

    def of(
        self, log_probs: torch.Tensor, log_frequency: torch.Tensor, best: torch.Tensor
    ) -> torch.Tensor:
        """η of classes with these log shares and log frequencies, (n, j); 0 for log p = −∞.

        best:  log shares of the best `N_BEST` classes of each row.
        """
        weights = torch.tensor(self.weights, dtype=torch.float64)
        found = features(log_probs, log_frequency.clamp(*self.frequencies), best)
        logits = torch.einsum("njf,f->nj", found, weights)
        return logits.sigmoid().masked_fill_(log_probs.isneginf(), 0.0)

    def expected(self, best: torch.Tensor, log_frequency: torch.Tensor) -> torch.Tensor:
        """Σ_y η_y, the expected number of labels of each row, (n,), from its best classes."""
        return self.of(best, log_frequency, best).sum(1) + self.others * share_left(best)


def share_left(best: torch.Tensor) -> torch.Tensor:
    """1 − S, (n,), in float64."""
    return (1.0 - best[:, :N_BEST].double().exp().sum(1)).clamp(min=0.0)


def features(
    log_probs: torch.Tensor, log_frequency: torch.Tensor, best: torch.Tensor
) -> torch.Tensor:
    """1, log p, log S, log 1/(1 − S) and log f of each class, (n, j, 5), in float64."""
    left = share_left(best).clamp(min=_LEAST_LEFT)[:, None].expand(log_probs.shape)
    log_p = log_probs.double().clamp(min=_LEAST)
    parts = [torch.ones_like(log_p), log_p, torch.log1p(-left).clamp(min=_LEAST), -left.log()]
    return torch.stack([*parts, log_frequency.double()], 2)


def log_frequency(counts: np.ndarray, n_rows: float) -> torch.Tensor:
    """log f of each class, which counts as having one row more than it has."""
    return torch.from_numpy(np.log1p(counts) - math.log(max(n_rows, 1)))
