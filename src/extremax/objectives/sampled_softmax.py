"""Sampled softmax: cross-entropy over the true class and draws with corrected logits.

Blanc & Rendle, "Adaptive sampled softmax with kernel based sampling", ICML 2018: with logits o
and negatives drawn with replacement from q over the other classes,

    loss = −o_y + log(e^{o_y} + Σ_j e^{o'_j}),   o'_j = o_j − log(m q_j).

The expected gradient equals that of exact softmax iff q ∝ e^o; otherwise its bias falls with m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.objectives.base import Objective, Pairs, narrow_softmax
from extremax.objectives.one_vs_each import OneVsEach


class SampledSoftmax(Objective):
    """Draws of the true class are dropped: it is already in the sum, uncorrected.

    The remaining draws come from q over the other classes, so m counts those draws and q is divided
    by 1 − q_y; otherwise the expected gradient would not be exact where q is the softmax itself.
    An example whose draws are all the true class has a gradient of zero.

    absolute:  train and predict with |ξ| as logits. Use it with noises that are even in ξ (the
               quadratic and quartic kernels), which cannot distinguish ξ from −ξ.
    """

    probabilities = "approximate: exact as n_negatives grows or as the noise nears the model"
    corrects_draws = True

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
        return self if self.absolute else OneVsEach(self.regularization)

    def start_scores(self, log_frequency: Tensor) -> Tensor:
        # |ξ| must increase with the frequency.
        return log_frequency - log_frequency.min() if self.absolute else log_frequency

    def _corrected_logits(self, pairs: Pairs) -> Tensor:
        logits = self.link(pairs.scores)
        n_others = (~pairs.hits).sum(1, keepdim=True).clamp(min=1)
        # log(1 − q_y). If q is concentrated on the true class, no other class is drawn, and log q_y
        # may be rounded to zero or above.
        log_others = torch.log(-torch.expm1(pairs.log_q[:, :1].clamp(max=-1e-12)))
        correction = torch.log(n_others.to(logits.dtype)) + pairs.log_q[:, 1:] - log_others
        drawn = (logits[:, 1:] - correction).masked_fill(pairs.hits, -torch.inf)
        return torch.cat([logits[:, :1], drawn], 1)
