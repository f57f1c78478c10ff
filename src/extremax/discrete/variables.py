"""Bernoulli and categorical variables, as seen by the gradient estimators.

A variable draws z = g(logits, noise), differentiable in the logits, and b is a hard function of z:
b = 1 if z > 0, or the one-hot argmax. `Variable.posterior` is the distribution of z given b.

``event_dims`` is the number of dimensions (before the classes) that form one joint value. With 0,
f is evaluated for every variable separately. `Categorical` logits of shape (100, 8, 10) with
``event_dims=1`` are 100 joint values of 8 ten-way variables, and f returns 100 numbers.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid

from extremax.discrete.gumbel import gumbel_posterior, gumbel_posterior_noise, perturb
from extremax.discrete.logistic import logistic, logistic_posterior, logistic_posterior_noise
from extremax.discrete.relaxations import one_hot_argmax, softmax_map
from extremax.tensor_checks import check_count, check_logits, check_temperature

# Largest number of joint values that may be enumerated.
MAX_STATES = 1 << 16


class Variable(ABC):
    """A distribution p(b) given by logits. b, z and the logits have the same shape.

    batch_shape:  shape of f(b), without the dimension of draws.
    event_shape:  shape of one joint value.
    event_size:   number of elements of one joint value.
    """

    #: Number of trailing dimensions of the logits that describe one variable.
    class_dims: int

    def __init__(self, logits: Tensor, event_dims: int = 0) -> None:
        check_logits(logits)
        check_count(event_dims, "event_dims", 0)
        if event_dims > logits.ndim - self.class_dims:
            raise ValueError(
                f"event_dims must be at most {logits.ndim - self.class_dims} for logits of shape "
                f"{tuple(logits.shape)}, got {event_dims}"
            )
        self.logits, self.event_dims = logits, event_dims
        n_batch_dims = logits.ndim - event_dims - self.class_dims
        self.batch_shape = tuple(logits.shape[:n_batch_dims])
        self.event_shape = tuple(logits.shape[n_batch_dims:])
        self.event_size = math.prod(self.event_shape)

    def repeated(self, n: int) -> Variable:
        """n copies in a new first dimension; their logits are a new leaf tensor."""
        logits = self.logits.detach().expand(n, *self.logits.shape).clone()
        return type(self)(logits.requires_grad_(), self.event_dims)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the dimensions of one joint value."""
        n = len(self.event_shape)
        return values.sum(tuple(range(-n, 0))) if n else values

    def spread(self, values: Tensor) -> Tensor:
        """Append dimensions to values of f, so that they broadcast against b and the logits."""
        return values.reshape(values.shape + (1,) * len(self.event_shape))

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Draw b, without gradient."""
        return self.harden(self.draw(generator).detach())

    def score(self, b: Tensor) -> Tensor:
        """Score function ∇ log p(b) = b − E b on the logits, without gradient."""
        return b - self.mean().detach()

    @abstractmethod
    def mean(self) -> Tensor:
        """E b."""

    @abstractmethod
    def log_prob(self, b: Tensor) -> Tensor:
        """log p of joint values, in the batch shape; b may have additional leading dimensions."""

    @abstractmethod
    def draw(self, generator: Generator | None = None) -> Tensor:
        """Draw z, differentiable in the logits."""

    @abstractmethod
    def harden(self, z: Tensor) -> Tensor:
        """b of z, as floating point."""

    @abstractmethod
    def soften(self, z: Tensor, temperature: float | Tensor) -> Tensor:
        """Relaxed sample σ_τ(z), which tends to b as τ → 0."""

    @abstractmethod
    def posterior(self, z: Tensor, b: Tensor) -> Tensor:
        """z̃ given b, with the random numbers that make it equal to z; its gradient differs."""

    @abstractmethod
    def values(self) -> Tensor:
        """Every value of a single variable, one per row."""

    def states(self) -> Tensor:
        """Every joint value, (n_states, *event_shape)."""
        n_values = self.logits.shape[-1] if self.class_dims else 2
        n_variables = math.prod(self.event_shape[: self.event_dims])
        if n_variables * math.log(n_values) > math.log(MAX_STATES) + 1e-9:
            raise ValueError(
                f"{n_variables} joint variables of {n_values} values have {n_values}^{n_variables} "
                f"states, more than the {MAX_STATES:,} that can be enumerated; use an estimator "
                "that samples"
            )
        choices = torch.tensor(list(itertools.product(range(n_values), repeat=n_variables)))
        return self.values()[choices].view(-1, *self.event_shape)


class Bernoulli(Variable):
    """b ∈ {0, 1} with P(b = 1) = σ(l), for logits l of any shape."""

    class_dims = 0

    def mean(self) -> Tensor:
        return torch.sigmoid(self.logits)

    def log_prob(self, b: Tensor) -> Tensor:
        return self.total(logsigmoid(self.logits) * b + logsigmoid(-self.logits) * (1.0 - b))

    def draw(self, generator: Generator | None = None) -> Tensor:
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

    def values(self) -> Tensor:
        return self.logits.new_tensor([0.0, 1.0])


class Categorical(Variable):
    """b one-hot over C classes with P(b_i = 1) = softmax(ξ)_i, for logits ξ (..., C)."""

    class_dims = 1

    def mean(self) -> Tensor:
        return torch.softmax(self.logits, -1)

    def log_prob(self, b: Tensor) -> Tensor:
        return self.total(torch.log_softmax(self.logits, -1) * b)

    def draw(self, generator: Generator | None = None) -> Tensor:
        return perturb(self.logits, generator)

    def harden(self, z: Tensor) -> Tensor:
        return one_hot_argmax(z)

    def soften(self, z: Tensor, temperature: float | Tensor) -> Tensor:
        return softmax_map(z, temperature)

    def posterior(self, z: Tensor, b: Tensor) -> Tensor:
        chosen = b.argmax(-1)
        noise = gumbel_posterior_noise(self.logits.detach(), z, chosen)
        return gumbel_posterior(self.logits, chosen, noise=noise)

    def values(self) -> Tensor:
        n_classes = self.logits.shape[-1]
        return torch.eye(n_classes, dtype=self.logits.dtype, device=self.logits.device)
