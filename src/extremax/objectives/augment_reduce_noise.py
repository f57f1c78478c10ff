"""Augment & reduce with normal (probit) or logistic ε: a variational q(ε) an example.

Ruiz et al. 2018, section 3: p(y|x) = E_ε Π_{y' ≠ y} Φ(ε + ξ_y − ξ_y'), Φ the distribution
function of ε and φ its density. With q(ε) = N(μ, 1/τ) for each example and u one draw of it,

    log p(y|x) ≥ E_q f(u) − E_q log q(u),   f(u) = log φ(u) + Σ_{y' ≠ y} log Φ(u + ξ_y − ξ_y'),

the sum estimated without bias from draws of the noise. A visit moves (μ, τ) along the natural
gradient of the bound (Khan & Lin 2017): τ ← (1 − ρ)τ − ρ f''(u), μ ← μ + ρ f'(u)/τ.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from extremax.objectives.augment_reduce import visit_rate
from extremax.objectives.base import Objective, Pairs, importance
from extremax.objectives.one_vs_each import OneVsEach
from extremax.objectives.random_utility import Tables, log_shares, tables

# Entropy of a normal distribution of unit variance.
_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)


class _AugmentReduceNoise(Objective):
    """Kept for each example: μ, log τ and the draw u."""

    local_size = 3
    #: Where p(y) is integrated, see `random_utility.tables`.
    integral: ClassVar[dict[str, float]]

    def __init__(self, regularization: float = 0.0) -> None:
        self.regularization = regularization

    @abstractmethod
    def log_density(self, t: Tensor) -> Tensor:
        """log φ(t)."""

    @abstractmethod
    def log_cdf(self, t: Tensor) -> Tensor:
        """log Φ(t)."""

    @abstractmethod
    def density_slope(self, t: Tensor) -> Tensor:
        """(log φ)'."""

    @abstractmethod
    def cdf_slope(self, t: Tensor) -> Tensor:
        """(log Φ)'."""

    @abstractmethod
    def bends(self, u: Tensor, t: Tensor, cdf_slope: Tensor) -> tuple[Tensor, Tensor]:
        """−(log φ)'' at u and −(log Φ)'' at t, given (log Φ)' there."""

    def surrogate(self, pairs: Pairs) -> Tensor:
        _, log_tau, u = pairs.local.unbind(1)
        each = importance(pairs).exp() * self.log_cdf(_ahead(pairs) + u[:, None])
        return 0.5 * log_tau - _ENTROPY - self.log_density(u) - each.sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        slope = self.cdf_slope(_ahead(pairs) + pairs.local[:, 2:])
        drawn = importance(pairs).exp() * slope
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)

    def visit(self, pairs: Pairs, epoch: int, uniform: Tensor) -> Tensor:
        mu, tau = pairs.local[:, 0], pairs.local[:, 1].exp()
        normal = torch.special.ndtri(uniform[:, 0].clamp(1e-6, 1.0 - 1e-6)).to(mu.dtype)
        u = mu + normal / tau.sqrt()
        weight, t = importance(pairs).exp(), _ahead(pairs) + u[:, None]
        cdf_slope = self.cdf_slope(t)
        density_bend, cdf_bend = self.bends(u, t, cdf_slope)
        slope = self.density_slope(u) + (weight * cdf_slope).sum(1)
        bend = density_bend + (weight * cdf_bend).sum(1)
        # One draw of u is too little for the first visit to forget the start.
        rate = visit_rate(epoch + 1)
        tau = (1.0 - rate) * tau + rate * bend.clamp(min=1e-3)
        deviation = tau.rsqrt()
        # A stray estimate of the sum must not throw μ away for good.
        mu = mu + rate * deviation * (slope * deviation).clamp(-5.0, 5.0)
        return torch.stack([mu, tau.log(), mu + normal * deviation], 1)

    def log_normalise(self, logits: Tensor) -> Tensor:
        return log_shares(logits, _tables(type(self)))

    def start_objective(self) -> Objective:
        return OneVsEach(self.regularization)


def _ahead(pairs: Pairs) -> Tensor:
    return pairs.scores[:, :1] - pairs.scores[:, 1:]


def _inverse_mills(t: Tensor) -> Tensor:
    """φ/Φ of the normal distribution, also where both vanish."""
    return math.sqrt(2.0 / math.pi) / torch.special.erfcx(-math.sqrt(0.5) * t)


class _OneVsEachProbit(OneVsEach):
    """log p(y) ≥ Σ log P(y's utility beats that of y'), for normal ε. Scales the start."""

    def surrogate(self, pairs: Pairs) -> Tensor:
        won = torch.special.log_ndtr(math.sqrt(0.5) * _ahead(pairs))
        return -(importance(pairs).exp() * won).sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        slope = math.sqrt(0.5) * _inverse_mills(math.sqrt(0.5) * _ahead(pairs))
        drawn = importance(pairs).exp() * slope
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)


class AugmentReduceProbit(_AugmentReduceNoise):
    """ε standard normal: the multinomial probit model.

    Draws of the true class are dropped: the product is over the others.
    """

    probabilities = "approximate: a variational fit of a multinomial probit model"
    integral: ClassVar = {"depth": 24.0, "low": -18.0, "high": 12.0, "step": 0.25}

    def log_density(self, t: Tensor) -> Tensor:
        return -0.5 * (t * t + math.log(2.0 * math.pi))

    def log_cdf(self, t: Tensor) -> Tensor:
        return torch.special.log_ndtr(t)

    def density_slope(self, t: Tensor) -> Tensor:
        return -t

    def cdf_slope(self, t: Tensor) -> Tensor:
        return _inverse_mills(t)

    def bends(self, u: Tensor, t: Tensor, cdf_slope: Tensor) -> tuple[Tensor, Tensor]:
        # Far below zero the two parts of the second cancel; it lies between 0 and 1.
        return torch.ones_like(u), (cdf_slope * (cdf_slope + t)).clamp(0.0, 1.0)

    def start_objective(self) -> Objective:
        # Normal tails are so much thinner that the scale of the softmax would be far too large.
        return _OneVsEachProbit(self.regularization)

    def start_scores(self, log_frequency: Tensor) -> Tensor:
        # P(ξ + ε > 0) is the frequency: up to a constant factor, where no class dominates, as the
        # logarithm is for the softmax.
        return torch.special.ndtri(log_frequency.double().exp().clamp(max=0.9)).float()


class AugmentReduceLogistic(_AugmentReduceNoise):
    """ε standard logistic.

    Draws of the true class are dropped: the product is over the others.
    """

    probabilities = "approximate: a variational fit of a model with logistic utilities"
    integral: ClassVar = {"depth": 40.0, "low": -50.0, "high": 40.0, "step": 0.5}

    def log_density(self, t: Tensor) -> Tensor:
        return logsigmoid(t) + logsigmoid(-t)

    def log_cdf(self, t: Tensor) -> Tensor:
        return logsigmoid(t)

    def density_slope(self, t: Tensor) -> Tensor:
        return -torch.tanh(0.5 * t)

    def cdf_slope(self, t: Tensor) -> Tensor:
        return torch.sigmoid(-t)

    def bends(self, u: Tensor, t: Tensor, cdf_slope: Tensor) -> tuple[Tensor, Tensor]:
        return 2.0 * torch.sigmoid(u) * torch.sigmoid(-u), cdf_slope * torch.sigmoid(t)


@cache
def _tables(kind: type[_AugmentReduceNoise]) -> Tables:
    form = kind()
    return tables(form.log_density, form.log_cdf, **kind.integral)
