"""Augment & reduce with normal (probit) or logistic ε: a variational q(ε) per example.

Ruiz et al. 2018, section 3: p(y|x) = E_ε Π_{y' ≠ y} Φ(ε + ξ_y − ξ_y'), where Φ is the
distribution function of ε and φ its density. With q(ε) = N(μ, 1/τ) for each example and u ~ q,

    log p(y|x) ≥ E_q f(u) − E_q log q(u),   f(u) = log φ(u) + Σ_{y' ≠ y} log Φ(u + ξ_y − ξ_y').

Draws of the noise give an unbiased estimate of the sum. After each step (μ, τ) move along the
natural gradient of the bound (Khan & Lin 2017), τ ← (1 − ρ)τ − ρ f''(u), μ ← μ + ρ f'(u)/τ, and u
is drawn for the next visit: the u of a step does not depend on its draws.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from extremax.objectives.augment_reduce import update_rate
from extremax.objectives.base import Objective, Pairs, log_importance
from extremax.objectives.one_vs_each import OneVsEach
from extremax.objectives.random_utility import Tables, build_tables, log_probabilities

# Entropy of a normal distribution of unit variance.
_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)


class _AugmentReduceNoise(Objective):
    """The parameters kept per example are μ, log τ and the draw u."""

    is_softmax = False
    per_example_size = 3
    #: Integration grid of p(y), the keyword arguments of `random_utility.build_tables`.
    grid: ClassVar[dict[str, float]]

    @abstractmethod
    def log_density(self, t: Tensor) -> Tensor:
        """log φ(t)."""

    @abstractmethod
    def log_cdf(self, t: Tensor) -> Tensor:
        """log Φ(t)."""

    @abstractmethod
    def density_slope(self, t: Tensor) -> Tensor:
        """(log φ)'(t)."""

    @abstractmethod
    def cdf_slope(self, t: Tensor) -> Tensor:
        """(log Φ)'(t)."""

    @abstractmethod
    def curvatures(self, u: Tensor, t: Tensor, cdf_slope: Tensor) -> tuple[Tensor, Tensor]:
        """−(log φ)''(u) and −(log Φ)''(t), given ``cdf_slope`` = (log Φ)'(t)."""

    def surrogate(self, pairs: Pairs) -> Tensor:
        _, log_tau, u = pairs.per_example.unbind(1)
        terms = log_importance(pairs).exp() * self.log_cdf(_margins(pairs) + u[:, None])
        return 0.5 * log_tau - _ENTROPY - self.log_density(u) - terms.sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        slope = self.cdf_slope(_margins(pairs) + pairs.per_example[:, 2:])
        drawn = log_importance(pairs).exp() * slope
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)

    def update_per_example(self, pairs: Pairs, epoch: int, uniform: Tensor) -> Tensor:
        mu, log_tau, u = pairs.per_example.unbind(1)
        tau = log_tau.exp()
        weight, t = log_importance(pairs).exp(), _margins(pairs) + u[:, None]
        cdf_slope = self.cdf_slope(t)
        density_curvature, cdf_curvature = self.curvatures(u, t, cdf_slope)
        slope = self.density_slope(u) + (weight * cdf_slope).sum(1)
        curvature = density_curvature + (weight * cdf_curvature).sum(1)
        # A single draw of u is too noisy to replace the start: ρ < 1 at the first update, too.
        rate = update_rate(epoch + 1)
        tau = (1.0 - rate) * tau + rate * curvature.clamp(min=1e-3)
        deviation = tau.rsqrt()
        # Clamped, so that one outlying estimate of the sum does not push μ far off for good.
        mu = mu + rate * deviation * (slope * deviation).clamp(-5.0, 5.0)
        normal = torch.special.ndtri(uniform[:, 0].clamp(1e-6, 1.0 - 1e-6)).to(mu.dtype)
        return torch.stack([mu, tau.log(), mu + normal * deviation], 1)

    def log_normalize(self, logits: Tensor) -> Tensor:
        return log_probabilities(logits, _tables(type(self)))

    def start_objective(self) -> Objective:
        return OneVsEach(self.regularization)


def _margins(pairs: Pairs) -> Tensor:
    """ξ_y − ξ_y', (n, m)."""
    return pairs.scores[:, :1] - pairs.scores[:, 1:]


def _inverse_mills(t: Tensor) -> Tensor:
    """φ/Φ of the normal distribution, accurate also where both underflow."""
    return math.sqrt(2.0 / math.pi) / torch.special.erfcx(-math.sqrt(0.5) * t)


class _OneVsEachProbit(OneVsEach):
    """One-vs-each for normal ε: log p(y) ≥ Σ log P(ξ_y + ε_y > ξ_y' + ε_y'). Scales the start."""

    def surrogate(self, pairs: Pairs) -> Tensor:
        log_wins = torch.special.log_ndtr(math.sqrt(0.5) * _margins(pairs))
        return -(log_importance(pairs).exp() * log_wins).sum(1)

    def surrogate_gradient(self, pairs: Pairs) -> Tensor:
        slope = math.sqrt(0.5) * _inverse_mills(math.sqrt(0.5) * _margins(pairs))
        drawn = log_importance(pairs).exp() * slope
        return torch.cat([-drawn.sum(1, keepdim=True), drawn], 1)


class AugmentReduceProbit(_AugmentReduceNoise):
    """Multinomial probit model: ε standard normal.

    Draws of the true class are dropped, because the product is over the other classes.
    """

    probabilities = "approximate: a variational fit of a multinomial probit model"
    grid: ClassVar = {"depth": 24.0, "low": -18.0, "high": 12.0, "step": 0.25}

    def log_density(self, t: Tensor) -> Tensor:
        return -0.5 * (t * t + math.log(2.0 * math.pi))

    def log_cdf(self, t: Tensor) -> Tensor:
        return torch.special.log_ndtr(t)

    def density_slope(self, t: Tensor) -> Tensor:
        return -t

    def cdf_slope(self, t: Tensor) -> Tensor:
        return _inverse_mills(t)

    def curvatures(self, u: Tensor, t: Tensor, cdf_slope: Tensor) -> tuple[Tensor, Tensor]:
        # The second lies between 0 and 1; far below zero its two parts cancel, hence the clamp.
        return torch.ones_like(u), (cdf_slope * (cdf_slope + t)).clamp(0.0, 1.0)

    def start_objective(self) -> Objective:
        # Normal tails are much thinner than Gumbel tails: the scale that suits the softmax would
        # be far too large.
        return _OneVsEachProbit(self.regularization)

    def start_scores(self, log_frequency: Tensor) -> Tensor:
        # P(ξ + ε > 0) is the frequency. If no class dominates, this is right up to a constant
        # factor, as the logarithm is for the softmax.
        return torch.special.ndtri(log_frequency.double().exp().clamp(max=0.9)).float()


class AugmentReduceLogistic(_AugmentReduceNoise):
    """Random utility model with standard logistic ε.

    Draws of the true class are dropped, because the product is over the other classes.
    """

    probabilities = "approximate: a variational fit of a model with logistic utilities"
    grid: ClassVar = {"depth": 40.0, "low": -50.0, "high": 40.0, "step": 0.5}

    def log_density(self, t: Tensor) -> Tensor:
        return logsigmoid(t) + logsigmoid(-t)

    def log_cdf(self, t: Tensor) -> Tensor:
        return logsigmoid(t)

    def density_slope(self, t: Tensor) -> Tensor:
        return -torch.tanh(0.5 * t)

    def cdf_slope(self, t: Tensor) -> Tensor:
        return torch.sigmoid(-t)

    def curvatures(self, u: Tensor, t: Tensor, cdf_slope: Tensor) -> tuple[Tensor, Tensor]:
        return 2.0 * torch.sigmoid(u) * torch.sigmoid(-u), cdf_slope * torch.sigmoid(t)


@cache
def _tables(kind: type[_AugmentReduceNoise]) -> Tables:
    form = kind()
    return build_tables(form.log_density, form.log_cdf, **kind.grid)
