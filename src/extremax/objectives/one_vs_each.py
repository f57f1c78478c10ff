"""One-vs-each: a lower bound of the softmax by a product over pairs of classes.

Titsias, "One-vs-each approximation to softmax for scalable estimation of probabilities", 2016:

    log p(y|x) ≥ Σ_{y' ≠ y} log σ(ξ_y − ξ_y'),

the sum estimated without bias from draws: each weighs 1/(m q). For uniform q that is C/m, and
with the draws of y, which weigh nothing, as much as (C − 1)/m for draws among the others. With
free scores the optimum has e^ξ ∝ p_D. Weights, and with them gradients, have no bound where q
does not: this is for noises that give every class its chance.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extremax.objectives.base import Objective, Pairs, importance


class OneVsEach(Objective):
    """Draws of the true class are dropped: the sum is over the others."""

    probabilities = "exact"

    def __init__(self, regularization: float = 0.0) -> None:
        self.regularization = regularization

    def surrogate(self, pairs: Pairs) -> Tensor:
        behind = pairs.scores[:, 1:] - pairs.scores[:, :1]
        return (importance(pairs).exp() * softplus(behind)).sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        behind = pairs.scores[:, 1:] - pairs.scores[:, :1]
        drawn = importance(pairs).exp() * torch.sigmoid(behind)
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)
