"""The contract of a training objective over the scores of a few classes.

``scores`` and ``log_q`` are (n, 1 + m): column 0 is the true class, the others were drawn from
the noise. An objective sees nothing else, so it needs no kernel of its own: the step scores the
pairs, asks for the gradient on those scores, and spreads it over the touched rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from sklearn.base import BaseEstimator


class Objective(BaseEstimator, ABC):
    #: What the probabilities of a model trained this way are.
    probabilities: str
    #: Whether the logits at prediction are ξ + log q (bias removal) rather than ξ.
    adds_log_q: bool

    @abstractmethod
    def loss(self, scores: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        """The surrogate loss of each example, (n,). Not a likelihood."""

    @abstractmethod
    def gradient(self, scores: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        """∂ Σ loss / ∂ scores, (n, 1 + m)."""

    def logits(self, scores: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        """Trained scores to softmax logits; log_q broadcasts."""
        return scores + log_q if self.adds_log_q else scores

    def settings(self) -> dict[str, Any]:
        """Constructor arguments, for JSON."""
        return self.get_params(deep=False)
