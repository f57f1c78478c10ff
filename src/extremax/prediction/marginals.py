"""From shares to marginal probabilities, where rows have several labels.

A model that learns from (row, label) pairs is normalized over the classes: its p(y|x) = η_y/Σ_c η_c
is the share of label y among the labels of a row, and η_y = P(y is a label of x) is the marginal
probability (Menon et al., "Multilabel reductions: what is my loss optimizing?", 2019).
Shares sum to one; marginals sum to the expected number of labels.

    logit η_y = w₀ + w₁ log p_y + w₂ log p_1 + w₃ log Σ_{j≤20} p_j,   w₁ > 0,

p_1 ≥ p_2 ≥ … the shares of the row: Platt scaling (1999) with two numbers about the row, which say
how many labels compete. Labels of a row keep their order. `extremax.training.marginals` fits w.
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
# log p of a class that has none.
_LEAST = -100.0


@dataclass(frozen=True)
class Marginals:
    """w, and the labels that a row has per unit of share outside its best classes."""

    weights: tuple[float, ...]
    others: float

    @classmethod
    def start(cls, labels_per_row: float) -> Marginals:
        """Without held-out rows: every row is taken to have as many labels as the mean row, so that
        the odds of η are p times their number."""
        return cls((math.log(labels_per_row), 1.0, 0.0, 0.0), labels_per_row)

    def settings(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    @classmethod
    def restore(cls, weights: Sequence[float], others: float) -> Marginals:
        """From a manifest, checked."""
        numbers = np.array([*weights, others], float)
        fine = len(weights) == 4 and (np.abs(numbers) <= LARGEST).all()
        if not (fine and weights[1] >= LEAST_SLOPE and others >= 0.0):
            raise ArgumentError("its map to marginal probabilities is damaged")
        return cls(tuple(weights), others)

    def of(self, log_probs: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """η of classes whose log shares are log_probs (n, j), 0 for −∞.

        best:  log shares of the best `N_BEST` classes of each row, best first.
        """
        weights = torch.tensor(self.weights, dtype=torch.float64)
        logits = torch.einsum("njf,f->nj", features(log_probs, best), weights)
        return logits.sigmoid().masked_fill_(log_probs.isneginf(), 0.0)

    def expected(self, best: torch.Tensor) -> torch.Tensor:
        """Σ_y η_y, the expected number of labels of each row, (n,)."""
        found = self.of(best, best).sum(1)
        left = (1.0 - best.double().exp().sum(1)).clamp(min=0.0)
        return found + self.others * left


def features(log_probs: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """1, log p_y, log p_1 and log Σ p of each class, (n, j, 4), in float64."""
    best = best[:, :N_BEST].double().clamp(min=_LEAST)
    row = torch.stack([best[:, 0], best.logsumexp(1).clamp(max=0.0)], 1)
    log_p = log_probs.double().clamp(min=_LEAST)[..., None]
    return torch.cat([torch.ones_like(log_p), log_p, row[:, None].expand(*log_probs.shape, 2)], 2)
