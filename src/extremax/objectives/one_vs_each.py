"""One-vs-each: a lower bound of the softmax, a product over pairs of classes.

Titsias, "One-vs-each approximation to softmax for scalable estimation of probabilities", 2016:

    log p(y|x) ≥ Σ_{y' ≠ y} log σ(ξ_y − ξ_y').

Draws weighted by 1/(m q) estimate the sum without bias; for uniform q the weight is C/m. With free
scores the optimum has e^ξ ∝ p_D. The weights, and with them the gradients, are unbounded unless q
is bounded below: use a noise that gives every class a fair probability.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extremax.objectives.base import Objective, Pairs, log_importance


class OneVsEach(Objective):
    """Draws of the true class are dropped, because the sum is over the other classes."""

    probabilities = "exact"

    def surrogate(self, pairs: Pairs) -> Tensor:
        gaps = pairs.scores[:, 1:] - pairs.scores[:, :1]
        return (log_importance(pairs).exp() * softplus(gaps)).sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        gaps = pairs.scores[:, 1:] - pairs.scores[:, :1]
        drawn = log_importance(pairs).exp() * torch.sigmoid(gaps)
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)
