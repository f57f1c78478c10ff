"""Augment & reduce, softmax form: a bound with one variational parameter per example.

Ruiz, Titsias, Dieng & Blei, "Augment and reduce: stochastic inference for large categorical
distributions", ICML 2018. With y = argmax(ξ + ε), ε Gumbel, and e = η − 1 > 0 for each example,

    log p(y|x) ≥ 1 − log(1 + e) − (1 + S)/(1 + e),   S = Σ_{y' ≠ y} e^{ξ_y' − ξ_y},

tight at e = S. After each step e moves toward an unbiased estimate of S. Were it moved before, by
the draws that the gradient is taken over, the two would be correlated: with one draw out of 8
classes, the distribution learned in 10 epochs was 0.02 nats off, and is 0.0004 off this way. For
other distributions of ε see `augment_reduce_noise`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extremax.objectives.base import Objective, Pairs, log_importance
from extremax.objectives.one_vs_each import OneVsEach

# Largest log-weight of a draw in the gradient, which keeps float32 from overflowing. Training stays
# below it: see `AugmentReduce.current_per_example`.
_MAX_LOG_WEIGHT = 80.0


class AugmentReduce(Objective):
    """Draws of the true class are dropped, because S sums over the other classes.

    The loss takes log e. What is kept per example is log(e e^{ξ_y}), an estimate of the log-sum
    over the other classes, to which the changes of ξ_y since the last visit do not matter. Updates
    use ρ = (1 + epoch)^−0.9, so the first one replaces the start.
    """

    probabilities = "exact"
    per_example_size = 1

    def surrogate(self, pairs: Pairs) -> Tensor:
        log_eta = softplus(pairs.per_example[:, 0])
        return log_eta - 1.0 + torch.exp(-log_eta) + _log_weights(pairs).exp().sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        log_weights = _log_weights(pairs)
        drawn = log_weights.exp().masked_fill_(log_weights >= _MAX_LOG_WEIGHT, 0.0)
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)

    def current_per_example(self, pairs: Pairs) -> Tensor:
        # S is at least each of its terms. So no weight exceeds that of one-vs-each, however small
        # the estimate is.
        margins = (pairs.scores[:, 1:] - pairs.scores[:, :1]).masked_fill(pairs.hits, -torch.inf)
        log_e = pairs.per_example - pairs.scores[:, :1]
        return torch.maximum(log_e, margins.amax(1, keepdim=True)).clamp(min=-_MAX_LOG_WEIGHT)

    def update_per_example(self, pairs: Pairs, epoch: int, uniform: Tensor) -> Tensor:
        log_sum = _log_terms(pairs).logsumexp(1, keepdim=True)
        rate = torch.tensor(update_rate(epoch), dtype=log_sum.dtype)
        log_e = pairs.per_example - pairs.scores[:, :1]
        updated = torch.logaddexp(log_e + torch.log1p(-rate), log_sum + rate.log())
        return updated.clamp(min=-_MAX_LOG_WEIGHT) + pairs.scores[:, :1]

    def start_objective(self) -> Objective:
        return OneVsEach(self.regularization)


def update_rate(epoch: int) -> float:
    """Step size ρ = (1 + epoch)^−0.9 of the per-example updates."""
    return float((1 + epoch) ** -0.9)


def _log_terms(pairs: Pairs) -> Tensor:
    """Log of each draw's term in the estimate of S: e^{ξ_y' − ξ_y}/(m q)."""
    return log_importance(pairs) + pairs.scores[:, 1:] - pairs.scores[:, :1]


def _log_weights(pairs: Pairs) -> Tensor:
    """Log of each draw's weight in the gradient: e^{ξ_y' − ξ_y}/(m q (1 + e))."""
    return (_log_terms(pairs) - softplus(pairs.per_example)).clamp(max=_MAX_LOG_WEIGHT)
