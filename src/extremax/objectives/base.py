"""The contract of a training objective over the scores of a few classes.

An objective sees the scores of the true class and of the drawn ones, their log q, and nothing
else, so it needs no kernel of its own: the step scores the pairs, asks for the gradient on those
scores, and spreads it over the touched rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from extremax.checks import is_number


class Pairs(NamedTuple):
    """A batch as an objective sees it: n examples, the true class and m drawn ones for each.

    scores, log_q: (n, 1 + m), column 0 the true class.
    hits:          (n, m), whether the draw happens to be the true class.
    local:         (n, `Objective.local_size`), what the objective keeps for each example.
    """

    scores: Tensor
    log_q: Tensor
    hits: Tensor
    local: Tensor


class Objective(BaseEstimator, ABC):
    """``regularization`` is λ of λ(logit_y² + (1/m) Σ logit_y'²), for every objective alike."""

    #: What the probabilities of a model trained this way are: "exact" where softmax of ξ is the
    #: distribution of the data at the optimum of free scores, "bias-corrected" where softmax of
    #: ξ + log q is, or "approximate: " and what they are.
    probabilities: str
    #: Whether the logits at prediction are ξ + log q (bias removal) rather than ξ.
    adds_log_q: bool = False
    #: Whether it draws classes from a noise rather than scoring all of them.
    samples: bool = True
    #: Numbers kept for each training example (variational parameters).
    local_size: int = 0

    regularization: float

    def __setattr__(self, name: str, value: Any) -> None:
        # An objective has no `fit` that could look at its parameters before they are used.
        if name == "regularization" and not (is_number(value) and value >= 0):
            raise ValueError(f"regularization must be a number >= 0, got {value!r}")
        super().__setattr__(name, value)

    def __init_subclass__(cls) -> None:
        # `logistic` speaks for the formulas it stands beside: who changes one inherits none.
        formulas = {"surrogate", "surrogate_gradient", "loss", "gradient", "logits", "logits_slope"}
        if formulas & vars(cls).keys() and "logistic" not in vars(cls):
            # mypy cannot know that a method is put back to the one it overrides.
            cls.logistic = Objective.logistic  # type: ignore[method-assign]

    @abstractmethod
    def surrogate(self, pairs: Pairs) -> Tensor:
        """The loss of each example without its penalty, (n,). Not a likelihood."""

    @abstractmethod
    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        """∂ Σ surrogate / ∂ scores, (n, 1 + m)."""

    def loss(self, pairs: Pairs) -> Tensor:
        """The loss of each example, (n,). Not a likelihood."""
        loss = self.surrogate(pairs)
        if self.regularization:
            squares = self.logits(pairs.scores, pairs.log_q).square()
            loss = loss + self.regularization * (squares[:, 0] + squares[:, 1:].mean(1))
        return loss

    def gradient(self, pairs: Pairs) -> Tensor:
        """∂ Σ loss / ∂ scores, (n, 1 + m)."""
        gradient = self.surrogate_gradient(pairs)
        if self.regularization:
            logits = self.logits(pairs.scores, pairs.log_q)
            penalty = 2.0 * self.regularization * logits * self.logits_slope(pairs.scores)
            penalty[:, 1:] /= pairs.hits.shape[1]
            gradient += penalty
        return gradient

    def logits(self, scores: Tensor, log_q: Tensor) -> Tensor:
        """Trained scores to softmax logits; log_q broadcasts."""
        return scores + log_q if self.adds_log_q else scores

    def logits_slope(self, scores: Tensor) -> Tensor | float:
        """∂ logits / ∂ scores."""
        return 1.0

    def log_normalise(self, logits: Tensor) -> Tensor:
        """Logits of every class (n, C) to log-probabilities, in place."""
        return logits.sub_(logits.logsumexp(1, keepdim=True))

    def logistic(self, m: int) -> tuple[float, float, float] | None:
        """(a, b, share) if the surrogate is Σ_j s_j softplus(∓t_j), t = ξ + a log q + b, s_0 = 1
        and s_j = share for drawn classes: then many steps run in one kernel, `kernels.cpu.steps`.
        """
        return None

    def visit(self, pairs: Pairs, epoch: int, uniform: Tensor) -> Tensor:
        """``local`` after this visit of the examples, before their gradient is taken.

        uniform: (n, local_size) random numbers in (0, 1) for objectives that sample.
        """
        return pairs.local

    def local_start(self, n: int) -> Tensor:
        """``local`` of n examples before their first visit."""
        return torch.zeros((n, self.local_size))

    def start_objective(self) -> Objective:
        """The objective by which the head's start is scaled: this one, if it is a plain
        function of the scores."""
        return self

    def start_scores(self, log_frequency: Tensor) -> Tensor:
        """Scores of a model that knows no more than how frequent each class is, (C,)."""
        # Where log q is added at prediction, frequencies are the noise's business.
        return torch.zeros_like(log_frequency) if self.adds_log_q else log_frequency

    def settings(self) -> dict[str, Any]:
        """Constructor arguments, for JSON."""
        return self.get_params(deep=False)


def importance(pairs: Pairs) -> Tensor:
    """log weights that make Σ_j w_j f(y'_j) an unbiased estimate of Σ_{y' ≠ y} f(y'): 1/(m q),
    and nothing for draws of y itself."""
    log_weight = -pairs.log_q[:, 1:] - math.log(pairs.hits.shape[1])
    return log_weight.masked_fill(pairs.hits, -torch.inf)


def shares(logits: Tensor) -> Tensor:
    """softmax over the few columns of each row, five times as fast as torch's."""
    weights = torch.exp(logits - logits.amax(1, keepdim=True))
    return weights / weights.sum(1, keepdim=True)
