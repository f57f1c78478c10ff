"""Negative sampling, with the bias of the noise removed at prediction.

Bamler & Mandt 2020, Eq. 6, for m negatives:

    −log σ(ξ_y) + λ(ξ_y + log q_y)² − (1/m) Σ [log σ(−ξ_y') − λ(ξ_y' + log q_y')²],  y' ~ q(·|x).

With free scores the optimum is e^ξ = p_D(y|x)/q(y|x) (Eq. 11), hence the logits ξ + log q (Eq. 5).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extremax.objectives.base import Objective, Pairs


class NegativeSampling(Objective):
    """A draw that happens to be the true class stays in.

    The optimum above holds for negatives drawn from all of q. Without the hits it would be
    e^ξ = p_D/(q(1 − p_D)), wrong most where the model is most certain.
    """

    probabilities = "bias-corrected"
    adds_log_q = True

    def __init__(self, regularization: float = 1e-5) -> None:
        self.regularization = regularization

    def surrogate(self, pairs: Pairs) -> Tensor:
        # softplus(−ξ) = softplus(ξ) − ξ: one call on a contiguous array is much faster than two.
        terms = softplus(pairs.scores)
        return terms[:, 0] - pairs.scores[:, 0] + terms[:, 1:].mean(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        gradient = torch.sigmoid(pairs.scores)
        gradient[:, 0] -= 1.0
        gradient[:, 1:] /= pairs.hits.shape[1]
        return gradient

    def logistic(self, m: int) -> tuple[float, float, float]:
        return 0.0, 0.0, 1.0 / m
