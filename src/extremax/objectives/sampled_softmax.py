"""Sampled softmax: cross-entropy over the true class and draws with corrected logits.

Blanc & Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018: with logits o
and negatives drawn with replacement from q over the other classes,

    loss = −o_y + log(e^{o_y} + Σ_j e^{o'_j}),   o'_j = o_j − log(m q_j).

The expected gradient equals that of exact softmax iff q ∝ e^o over the other classes; otherwise
its bias falls with m. Were the draws from all of q and those of y dropped, an example whose draws
are all y would teach nothing, and with q ∝ e^o the optimum would be p_k ∝ p_D(k)(1 − p_k^m).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from extremax.objectives.base import Objective, Pairs, narrow_softmax
from extremax.objectives.one_vs_each import OneVsEach


class SampledSoftmax(Objective):
    """Draws come from q over the other classes, so that ξ' = ξ − log(m q/(1 − q_y)).

    Where a batch shares draws from all of q, those of the true class are dropped, because it is
    already in the sum, and m counts the others. An example whose draws are all the true class then
    has a gradient of zero. The probabilities become exact as the draws grow in number, or as the
    noise nears the model.

    absolute:  train and predict with |ξ| as logits. Use it with noises that are even in ξ (the
               quadratic and quartic kernels), which cannot distinguish ξ from −ξ.
    """

    probabilities = "approximate: softmax over all classes, learned from draws of them"
    corrects_draws = True
    draws_others = True
    reads_true_log_q = False

    def __init__(self, absolute: bool = False, regularization: float = 0.0) -> None:
        self.absolute = absolute
        self.regularization = regularization

    def surrogate(self, pairs: Pairs) -> Tensor:
        corrected = self._corrected_logits(pairs)
        return corrected.logsumexp(1) - corrected[:, 0]

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        gradient = narrow_softmax(self._corrected_logits(pairs))
        gradient[:, 0] -= 1.0
        return gradient * self.logits_slope(pairs.scores)

    def loss_and_gradient(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        if not self.is_softmax_of_draws:
            return super().loss_and_gradient(pairs)
        corrected = self._corrected_logits(pairs)
        log_sum = corrected.logsumexp(1)
        loss = log_sum - corrected[:, 0]
        gradient = corrected.sub_(log_sum[:, None]).exp_()
        gradient[:, 0] -= 1.0
        return loss, gradient

    @property
    def is_softmax_of_draws(self) -> bool:
        return not self.regularization and not self.absolute

    @property
    def scores_are_logits(self) -> bool:
        return not self.absolute

    def link(self, scores: Tensor) -> Tensor:
        return scores.abs() if self.absolute else scores

    def logits_slope(self, scores: Tensor) -> Tensor | float:
        if not self.absolute:
            return 1.0
        # The slope at zero is 1: with a slope of 0, a class that starts there would never learn.
        return torch.where(scores < 0, -1.0, 1.0).to(scores.dtype)

    def start_objective(self) -> Objective:
        # With few draws this objective is biased and would scale the start too small or too large.
        # Scores of the start are above `least_score`, where |ξ| is ξ, but for unlikely classes.
        return OneVsEach(self.regularization)

    @property
    def least_score(self) -> float:  # type: ignore[override]
        return 0.0 if self.absolute else -math.inf

    def start_scores(self, log_frequency: Tensor) -> Tensor:
        # |ξ| must increase with the frequency.
        return log_frequency - log_frequency.min() if self.absolute else log_frequency

    def _corrected_logits(self, pairs: Pairs) -> Tensor:
        logits = self.link(pairs.scores)
        n_others = (~pairs.hits).sum(1, keepdim=True).clamp(min=1)
        correction = torch.log(n_others.to(logits.dtype)) + pairs.log_q[:, 1:]
        drawn = (logits[:, 1:] - correction).masked_fill(pairs.hits, -torch.inf)
        return torch.cat([logits[:, :1], drawn], 1)
