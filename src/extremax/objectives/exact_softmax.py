"""Exact softmax on the head: every step scores every class. The reference for the other objectives.

Loss −log p_y = log Σ e^ξ − ξ_y, gradient on the scores p − y (see `extremax.softmax`). Nothing is
drawn: the head steps over blocks of classes (`Head.exact_step`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.objectives.base import Objective, Pairs, narrow_softmax
from extremax.objectives.one_vs_each import OneVsEach


class ExactSoftmax(Objective):
    """Draws of the true class are dropped: it is already in the sum.

    For `Pairs` that hold every class once next to the true class, the loss equals that of
    `Head.exact_step`.
    """

    probabilities = "exact"
    samples = False

    def surrogate(self, pairs: Pairs) -> Tensor:
        return _mask_hits(pairs).logsumexp(1) - pairs.scores[:, 0]

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        gradient = narrow_softmax(_mask_hits(pairs))
        gradient[:, 0] -= 1.0
        return gradient

    def start_objective(self) -> Objective:
        # The start is scaled on sampled classes, for which one-vs-each is unbiased.
        return OneVsEach(self.regularization)


def _mask_hits(pairs: Pairs) -> Tensor:
    """Scores with −inf for draws of the true class."""
    drawn = pairs.scores[:, 1:].masked_fill(pairs.hits, -torch.inf)
    return torch.cat([pairs.scores[:, :1], drawn], 1)
