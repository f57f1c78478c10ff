"""The contract of a training objective.

An objective sees the scores and log q of the true class and of the drawn classes, and nothing
else, so no objective needs a kernel of its own: a training step scores the pairs, asks the
objective for the gradient on those scores, and updates the rows of the classes involved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from extremax.checks import is_number
from extremax.errors import ArgumentError
from extremax.softmax import log_complement

# What shortcuts summarize.
_FORMULAS = {
    "surrogate", "surrogate_gradient", "loss", "gradient", "link", "logits", "logits_slope",
}  # fmt: skip
# What a subclass computes in one go from these formulas.
_SHORTCUTS = "logistic", "is_softmax_of_draws", "loss_and_gradient"


class Pairs(NamedTuple):
    """A batch of n examples as an objective sees it: the true class and m drawn classes each.

    scores:       (n, 1 + m), the true class in column 0.
    log_q:        (n, 1 + m), log-probabilities of the same classes under the noise. Where
                  `Objective.draws_others`, log_q[:, 1:] is that of the draws given that they are
                  not the true class, log q(y') − log(1 − q_y) (`given_others`); log_q[:, 0] is
                  log q_y in any case, or NaN in training unless `Objective.reads_true_log_q`.
    hits:         (n, m), whether the drawn class is the true class. Where `Objective.draws_others`,
                  training draws none; draws from all of q, as a batch may share them, have some.
    per_example:  (n, `Objective.per_example_size`), variational parameters of each example.
    """

    scores: Tensor
    log_q: Tensor
    hits: Tensor
    per_example: Tensor


class Objective(BaseEstimator, ABC):
    """Base class of all objectives.

    Every objective adds the penalty λ(logit_y² + (1/m) Σ logit_y'²), λ = ``regularization``, to its
    surrogate loss.
    """

    #: What the model's probabilities are: "exact" if softmax(ξ) is the distribution of the data at
    #: the optimum over free scores, "bias-corrected" if softmax(ξ + log q) is, or "approximate: "
    #: followed by a description.
    probabilities: str
    #: Whether log q is added to the scores at prediction (bias removal).
    adds_log_q: bool = False
    #: Whether `log_normalize` is log-softmax.
    is_softmax: bool = True
    #: Whether the loss is a softmax over the true class and draws with corrected logits, whose
    #: gradient has a bias that falls with the number of draws (see `extremax.diagnostics.bias`).
    corrects_draws: bool = False
    #: Whether draws come from the noise over the classes other than the true one
    #: (`extremax.noise.Noise.sample_others`), rather than over all classes.
    draws_others: bool = False
    #: Whether loss and gradient depend on log q of the true class. Noises that walk a tree for it
    #: are spared the walk otherwise.
    reads_true_log_q: bool = True
    #: Whether training draws classes from a noise rather than scoring every class.
    samples: bool = True
    #: Number of variational parameters per training example.
    per_example_size: int = 0
    #: The lowest score from which `link` rises; the start of a head is shifted above it.
    least_score: float = -math.inf

    def __init__(self, regularization: float = 0.0) -> None:
        self.regularization = regularization

    def __init_subclass__(cls) -> None:
        # A subclass that changes a formula must not inherit a shortcut for the old formula.
        for name in _SHORTCUTS:
            if _FORMULAS & vars(cls).keys() and name not in vars(cls):
                setattr(cls, name, getattr(Objective, name))

    @property
    def regularization(self) -> float:
        """λ, the strength of the penalty on the logits."""
        return self._regularization

    # Checked when set: an objective has no `fit` that could check it later.
    @regularization.setter
    def regularization(self, value: float) -> None:
        if not (is_number(value) and 0 <= value <= 1e6):
            raise ArgumentError(f"regularization must be a number from 0 to 1e6, got {value!r}")
        self._regularization = float(value)

    @abstractmethod
    def surrogate(self, pairs: Pairs) -> Tensor:
        """Loss of each example without the penalty, (n,). Not a likelihood."""

    @abstractmethod
    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        """∂ Σ surrogate / ∂ scores, (n, 1 + m)."""

    def loss(self, pairs: Pairs) -> Tensor:
        """Loss of each example with the penalty, (n,). Not a likelihood."""
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

    def loss_and_gradient(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """`loss` and `gradient`, which may have much in common."""
        return self.loss(pairs), self.gradient(pairs)

    @property
    def scores_are_logits(self) -> bool:
        """Whether p is the softmax of the scores themselves."""
        return self.is_softmax and not self.adds_log_q

    def link(self, scores: Tensor) -> Tensor:
        """Logits before log q is added: the scores, unless a subclass transforms them."""
        return scores

    def logits(self, scores: Tensor, log_q: Tensor) -> Tensor:
        """Softmax logits at prediction, link(ξ) + log q or link(ξ); ``log_q`` broadcasts."""
        return self.link(scores) + log_q if self.adds_log_q else self.link(scores)

    def logits_slope(self, scores: Tensor) -> Tensor | float:
        """∂ logits / ∂ scores."""
        return 1.0

    def log_normalize(self, logits: Tensor) -> Tensor:
        """Turn logits of every class, (n, C), into log-probabilities."""
        # Not logits − logsumexp, whose rounding error shows in p when logits are large.
        return logits.log_softmax(1)

    def logistic(self, m: int) -> tuple[float, float, float] | None:
        """Coefficients (a, b, s) of a surrogate that is logistic in every pair, or None.

        The surrogate must be softplus(−t_0) + s Σ_j softplus(t_j) over the m draws, with
        t = ξ + a log q + b. One kernel then runs many steps (`extremax.kernels.cpu.steps`).
        """
        return None

    @property
    def is_softmax_of_draws(self) -> bool:
        """Whether the loss is −log softmax of the true class among itself and the draws, whose
        logits are ξ − log(m q). One kernel then runs many steps
        (`extremax.kernels.cpu.bag_steps`)."""
        return False

    def current_per_example(self, pairs: Pairs) -> Tensor:
        """Variational parameters for `loss` and `gradient`, from those kept since the last visit.

        An estimate from the draws of ``pairs``, over which the gradient is taken as well, would be
        correlated with the gradient and bias it.
        """
        return pairs.per_example

    def update_per_example(self, pairs: Pairs, epoch: int, uniform: Tensor) -> Tensor:
        """What to keep until the next visit of the examples, in place of ``pairs.per_example``.

        uniform:  (n, per_example_size), random numbers in (0, 1) for objectives that sample.
        """
        return pairs.per_example

    def per_example_start(self, n: int) -> Tensor:
        """Values of ``per_example`` for n examples before their first update."""
        return torch.zeros((n, self.per_example_size))

    def start_objective(self) -> Objective:
        """Objective that scales the initial head; must be a function of scores and log q only."""
        return self

    def start_scores(self, log_frequency: Tensor) -> Tensor:
        """Scores of a model that knows the class frequencies and nothing else, (C,)."""
        # If log q is added at prediction, the noise accounts for the frequencies.
        return torch.zeros_like(log_frequency) if self.adds_log_q else log_frequency


def log_importance(pairs: Pairs) -> Tensor:
    """Log-weights −log(m q) of the draws, −inf for draws of the true class y, (n, m).

    With these weights Σ_j w_j f(y'_j) is an unbiased estimate of Σ_{y' ≠ y} f(y').
    """
    log_weight = -pairs.log_q[:, 1:] - math.log(pairs.hits.shape[1])
    return log_weight.masked_fill(pairs.hits, -torch.inf)


def given_others(log_q: Tensor) -> Tensor:
    """log q of the true class and of draws from all of q, (n, 1 + m), as an objective that
    `draws_others` takes them: log q(y') − log(1 − q_y) for the draws.

    After draws of the true class are dropped, this is the distribution of the others.
    """
    true = log_q[:, :1]
    return torch.cat([true, log_q[:, 1:] - log_complement(true)], 1)


def shared_draw_weights(pairs: Pairs) -> Tensor:
    """Weights (n,) of rows whose m draws are from all of q, as a batch shares them.

    All are the true class y with probability q_y^m, and a row then teaches nothing. 1/(1 − q_y^m)
    for the other rows makes up for it on average, with a large variance as q_y nears one.
    """
    log_none = pairs.hits.shape[1] * pairs.log_q[:, 0].double()
    weights = torch.where(pairs.hits.all(1), 1.0, -1.0 / torch.expm1(log_none))
    return weights.to(pairs.scores.dtype)


def narrow_softmax(logits: Tensor) -> Tensor:
    """Softmax over dimension 1, five times as fast as torch's for a few columns."""
    weights = torch.exp(logits - logits.amax(1, keepdim=True))
    return weights / weights.sum(1, keepdim=True)
