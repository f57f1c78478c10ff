"""Noise-contrastive estimation: tell the true class from m draws of the noise.

    −log σ(ξ_y − log m q_y) − Σ_j log σ(−(ξ_y'_j − log m q_y'_j)),  y' ~ q(·|x).

With free scores the optimum is e^ξ = p_D(y|x): scores are log-probabilities that normalise
themselves (Gutmann & Hyvärinen 2010; Mnih & Teh 2012). With uniform q and m = C, m q = 1 and
this is negative sampling with a sum over its draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extremax.objectives.base import Objective, Pairs


class NCE(Objective):
    """A draw that happens to be the true class stays in: the noise of the theory is all of q."""

    probabilities = "exact"

    def __init__(self, regularization: float = 0.0) -> None:
        self.regularization = regularization

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
    """ξ − log m q: the log-odds that a class is the true one and not one of m draws."""
    return pairs.scores - pairs.log_q - math.log(pairs.hits.shape[1])
