"""Noise-contrastive estimation: distinguish the true class from m draws of the noise.

    −log σ(ξ_y − log m q_y) − Σ_j log σ(−(ξ_y'_j − log m q_y'_j)),  y' ~ q(·|x).

With free scores the optimum is e^ξ = p_D(y|x): the scores are normalized log-probabilities
(Gutmann & Hyvärinen 2010; Mnih & Teh 2012). With uniform q and m = C, m q = 1 and the loss is that
of negative sampling with a sum over the draws in place of the mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extremax.objectives.base import Objective, Pairs


class NCE(Objective):
    """A draw that happens to be the true class stays in: the theory assumes draws from all of q."""

    probabilities = "exact"

    def surrogate(self, pairs: Pairs) -> Tensor:
        contrast = _contrast(pairs)
        return softplus(contrast).sum(1) - contrast[:, 0]

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        gradient = torch.sigmoid(_contrast(pairs))
        gradient[:, 0] -= 1.0
        return gradient

    def logistic(self, m: int) -> tuple[float, float, float]:
        return -1.0, -math.log(m), 1.0


def _contrast(pairs: Pairs) -> Tensor:
    """ξ − log m q: the log-odds of the true class against one of m draws."""
    return pairs.scores - pairs.log_q - math.log(pairs.hits.shape[1])
