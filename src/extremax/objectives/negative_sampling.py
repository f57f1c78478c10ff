"""Negative sampling, with the bias of its noise removed at prediction.

Bamler & Mandt 2020, Eq. 6, for m negatives:

    −log σ(ξ_y) + λ(ξ_y + log q_y)² − (1/m) Σ [log σ(−ξ_y') − λ(ξ_y' + log q_y')²],  y' ~ q(·|x).

With free scores the optimum is e^ξ = p_D(y|x)/q(y|x) (Eq. 11), hence logits ξ + log q (Eq. 5).
"""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from extremax.objectives.base import Objective


class NegativeSampling(Objective):
    """A draw that happens to be the true class stays in.

    The optimum above holds for negatives drawn from all of q. Dropping hits would teach the
    model e^ξ = p_D/(q(1 − p_D)), wrong exactly where the model is right.
    """

    probabilities = "bias-corrected"
    adds_log_q = True

    def __init__(self, regularization: float = 1e-5) -> None:
        self.regularization = regularization

    def loss(self, scores: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        signed = torch.cat([-scores[:, :1], scores[:, 1:]], 1)
        each = softplus(signed)
        if self.regularization:
            each = each + self.regularization * (scores + log_q) ** 2
        return each[:, 0] + each[:, 1:].mean(1)

    def gradient(self, scores: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        gradient = torch.sigmoid(scores)
        gradient[:, 0] -= 1.0
        if self.regularization:
            gradient += 2.0 * self.regularization * (scores + log_q)
        gradient[:, 1:] /= scores.shape[1] - 1
        return gradient
