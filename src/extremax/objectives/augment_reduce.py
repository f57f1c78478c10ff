"""Augment & reduce, the softmax form: a bound with one variational number an example.

Ruiz, Titsias, Dieng & Blei, "Augment and reduce: stochastic inference for large categorical
distributions", ICML 2018. With y = argmax(ξ + ε), ε Gumbel, and e = η − 1 > 0 for each example,

    log p(y|x) ≥ 1 − log(1 + e) − (1 + S)/(1 + e),   S = Σ_{y' ≠ y} e^{ξ_y' − ξ_y},

tight at e = S. A visit moves e towards an unbiased estimate of S; `augment_reduce_noise` holds
the forms for other ε.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extremax.objectives.base import Objective, Pairs, importance
from extremax.objectives.one_vs_each import OneVsEach

# A draw's log weight in the gradient stops here. After a visit weights are at most 1/ρ: training
# never gets near, and nothing overflows in single precision.
_LARGEST = 80.0


class AugmentReduce(Objective):
    """Draws of the true class are dropped: the sum is over the others.

    Kept for each example is log e; ρ = (1 + epoch)^−0.9, so the first visit takes e = S.
    """

    probabilities = "exact"
    local_size = 1

    def __init__(self, regularization: float = 0.0) -> None:
        self.regularization = regularization

    def surrogate(self, pairs: Pairs) -> Tensor:
        log_eta = softplus(pairs.local[:, 0])
        return log_eta - 1.0 + torch.exp(-log_eta) + _log_weights(pairs).exp().sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        log_weights = _log_weights(pairs)
        drawn = log_weights.exp().masked_fill_(log_weights >= _LARGEST, 0.0)
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)

    def visit(self, pairs: Pairs, epoch: int, uniform: Tensor) -> Tensor:
        log_sum = _log_terms(pairs).logsumexp(1, keepdim=True)
        rate = torch.tensor(visit_rate(epoch), dtype=log_sum.dtype)
        moved = torch.logaddexp(pairs.local + torch.log1p(-rate), log_sum + rate.log())
        return moved.clamp(min=-_LARGEST)

    def start_objective(self) -> Objective:
        return OneVsEach(self.regularization)


def visit_rate(epoch: int) -> float:
    """ρ = (1 + epoch)^−0.9: how far a visit moves what is kept for an example."""
    return float((1 + epoch) ** -0.9)


def _log_terms(pairs: Pairs) -> Tensor:
    """log of each draw's part in the estimate of S: e^{ξ_y' − ξ_y}/(m q)."""
    return importance(pairs) + pairs.scores[:, 1:] - pairs.scores[:, :1]


def _log_weights(pairs: Pairs) -> Tensor:
    """log of each draw's weight in the gradient: e^{ξ_y' − ξ_y}/(m q (1 + e))."""
    return (_log_terms(pairs) - softplus(pairs.local)).clamp(max=_LARGEST)
