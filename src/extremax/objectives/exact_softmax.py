"""Exact softmax on the head: every class, every step. The yardstick.

Loss −log p_y = log Σ e^ξ − ξ_y, gradient on scores p − y (see `extremax.softmax`). It draws
nothing: the head makes its step over blocks of classes (`LinearHead.exact_step`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.objectives.base import Objective, Pairs, shares
from extremax.objectives.one_vs_each import OneVsEach


class ExactSoftmax(Objective):
    """Draws of the true class are dropped: it is in the sum already.

    ``Pairs`` that hold every class once beside the true one give the loss of `exact_step`.
    """

    probabilities = "exact"
    samples = False

    def __init__(self, regularization: float = 0.0) -> None:
        self.regularization = regularization

    def surrogate(self, pairs: Pairs) -> Tensor:
        return _without_hits(pairs).logsumexp(1) - pairs.scores[:, 0]

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        gradient = shares(_without_hits(pairs))
        gradient[:, 0] -= 1.0
        return gradient

    def start_objective(self) -> Objective:
        # The start is scaled on a sample of classes, which does not bias this one.
        return OneVsEach(self.regularization)


def _without_hits(pairs: Pairs) -> Tensor:
    drawn = pairs.scores[:, 1:].masked_fill(pairs.hits, -torch.inf)
    return torch.cat([pairs.scores[:, :1], drawn], 1)
