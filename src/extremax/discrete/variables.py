"""Bernoulli and categorical variables, as the gradient estimators see them.

A variable draws z = g(logits, noise), differentiable, and b is a hard function of z: b = 1 if
z > 0, or the one-hot argmax. Given b, z is distributed as its posterior.

``event_dims`` says how many of the last dimensions (before the classes) form one joint value: with
0 every variable has its own f; logits (100, 8, 10) of `Categorical` with event_dims=1 are 100 joint
values of 8 ten-way variables, and f returns 100 numbers.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from extremax.discrete.checks import check_count, check_logits, check_temperature
from extremax.discrete.gumbel import gumbel_posterior, gumbel_posterior_noise, perturbed
from extremax.discrete.logistic import logistic, logistic_posterior, logistic_posterior_noise
from extremax.discrete.relaxations import one_hot

# Joint values that may be enumerated.
MOST_STATES = 1 << 16


class Variable(ABC):
    """p(b) by its logits. b, z and the logits have one shape."""

    #: Dimensions at the end of the logits that describe one variable.
    own_dims: int

    def __init__(self, logits: Tensor, event_dims: int = 0) -> None:
        check_logits(logits)
        check_count(event_dims, "event_dims", 0)
        if event_dims > logits.ndim - self.own_dims:
            raise ValueError(
                f"event_dims must be at most {logits.ndim - self.own_dims} for logits of shape "
                f"{tuple(logits.shape)}, got {event_dims}"
            )
        self.logits, self.event_dims = logits, event_dims
        joint = event_dims + self.own_dims
        cut = logits.ndim - joint
        #: Shape of what f returns, without its dimension of draws.
        self.batch_shape = tuple(logits.shape[:cut])
        self.event_shape = tuple(logits.shape[cut:])
        #: How many numbers of b one value of f sees.
        self.event_size = math.prod(self.event_shape)

    def repeated(self, n: int) -> Variable:
        """n copies in a new first dimension, whose logits are a leaf of their own."""
        logits = self.logits.detach().expand(n, *self.logits.shape).clone()
        return type(self)(logits.requires_grad_(), self.event_dims)

    def total(self, values: Tensor) -> Tensor:
        """Sum over all that belongs to one value of f."""
        n = len(self.event_shape)
        return values.sum(tuple(range(-n, 0))) if n else values

    def spread(self, values: Tensor) -> Tensor:
        """One number for each value of f, ready to multiply b or the logits."""
        return values.reshape(values.shape + (1,) * len(self.event_shape))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """b, without gradient."""
        return self.harden(self.draw(generator).detach())

    def score(self, b: Tensor) -> Tensor:
        """∇ log p(b) on the logits, without gradient: b − E b."""
        return b - self.mean().detach()

    @abstractmethod
    def mean(self) -> Tensor:
        """E b."""

    @abstractmethod
    def log_prob(self, b: Tensor) -> Tensor:
        """log p of joint values, in the batch shape; b may have more dimensions before it."""

    @abstractmethod
    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """z, differentiable in the logits."""

    @abstractmethod
    def harden(self, z: Tensor) -> Tensor:
        """b of z, as floating point."""

    @abstractmethod
    def soften(self, z: Tensor, temperature: float | Tensor) -> Tensor:
        """σ_τ(z), which becomes b as τ → 0."""

    @abstractmethod
    def posterior(self, z: Tensor, b: Tensor) -> Tensor:
        """z̃ given b by the random numbers that make it equal to z; its gradient is not z's."""

    @abstractmethod
    def states(self) -> Tensor:
        """Every joint value, (n_states, *event_shape)."""

    def _check_states(self, n: int, count: int) -> None:
        if count * math.log(n) > math.log(MOST_STATES) + 1e-9:
            raise ValueError(
                f"{count} joint variables of {n} values have {n}^{count} states, more than the "
                f"{MOST_STATES:,} that can be enumerated; sample instead"
            )


class Bernoulli(Variable):
    """b ∈ {0, 1} with P(b = 1) = σ(l), logits of any shape."""

    own_dims = 0

    def mean(self) -> Tensor:
        return torch.sigmoid(self.logits)

    def log_prob(self, b: Tensor) -> Tensor:
        return self.total(logsigmoid(self.logits) * b + logsigmoid(-self.logits) * (1.0 - b))

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        like = self.logits
        return like + logistic(like.shape, generator, like.dtype, like.device)

    def harden(self, z: Tensor) -> Tensor:
        return (z > 0).to(z.dtype)

    def soften(self, z: Tensor, temperature: float | Tensor) -> Tensor:
        check_temperature(temperature)
        return torch.sigmoid(z / temperature)

    def posterior(self, z: Tensor, b: Tensor) -> Tensor:
        noise = logistic_posterior_noise(self.logits.detach(), z, b)
        return logistic_posterior(self.logits, b, noise=noise)

    def states(self) -> Tensor:
        self._check_states(2, self.event_size)
        values = list(itertools.product((0.0, 1.0), repeat=self.event_size))
        like = self.logits
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(
            -1, *self.event_shape
        )


class Categorical(Variable):
    """b one-hot of C classes with P(b_i = 1) = softmax(ξ)_i, logits (..., C)."""

    own_dims = 1

    def mean(self) -> Tensor:
        return torch.softmax(self.logits, -1)

    def log_prob(self, b: Tensor) -> Tensor:
        return self.total(torch.log_softmax(self.logits, -1) * b)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        return perturbed(self.logits, generator)

    def harden(self, z: Tensor) -> Tensor:
        return one_hot(z)

    def soften(self, z: Tensor, temperature: float | Tensor) -> Tensor:
        check_temperature(temperature)
        return torch.softmax(z / temperature, -1)

    def posterior(self, z: Tensor, b: Tensor) -> Tensor:
        chosen = b.argmax(-1)
        noise = gumbel_posterior_noise(self.logits.detach(), z, chosen)
        return gumbel_posterior(self.logits, chosen, noise=noise)

    def states(self) -> Tensor:
        n = self.event_shape[-1]
        self._check_states(n, self.event_size // n)
        picks = list(itertools.product(range(n), repeat=self.event_size // n))
        like = self.logits
        rows = torch.eye(n, dtype=like.dtype, device=like.device)[
            torch.tensor(picks, device=like.device)
        ]
        return rows.view(-1, *self.event_shape)
