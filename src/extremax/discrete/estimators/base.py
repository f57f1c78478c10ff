"""The contract of an estimator of ∇E f(b), b ~ p(b).

    surrogate = estimator(f, variable, n_samples=1, generator=None)
    surrogate.sum().backward()

f maps draws (n_samples, *logits.shape) to values (n_samples, *variable.batch_shape). The surrogate
has the batch shape. Its value estimates E f, and its gradient on the logits estimates ∇E f;
parameters of f get the gradient of f at the draws.

Estimators with learned parameters update them at each call in training mode, after the estimate is
computed, so that it stays unbiased. As with any torch module, ``estimator.eval()`` turns learning
off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from extremax.discrete.variables import Variable
from extremax.tensor_checks import check_count, check_finite

Function = Callable[[Tensor], Tensor]


class Estimator(torch.nn.Module, ABC):
    """Base class of the estimators; a subclass implements `surrogate`."""

    #: Whether the expected gradient is that of E f.
    unbiased: bool = True
    #: Smallest number of draws per call.
    least_samples: int = 1

    def forward(
        self,
        f: Function,
        variable: Variable,
        n_samples: int = 1,
        generator: Generator | None = None,
    ) -> Tensor:
        """Compute a surrogate of E f, in the batch shape."""
        if not isinstance(variable, Variable):
            raise TypeError(
                "variable must be Bernoulli(logits) or Categorical(logits), got "
                f"{type(variable).__name__}"
            )
        reason = f"; {type(self).__name__} compares draws" if self.least_samples > 1 else ""
        check_count(n_samples, "n_samples", self.least_samples, reason)
        return self.surrogate(f, variable, n_samples, generator)

    @abstractmethod
    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: Generator | None
    ) -> Tensor:
        """Compute the result of `forward` from checked arguments."""


class Exact(Estimator):
    """The exact gradient, by enumeration of Σ_b p(b) f(b), for small problems and for tests.

    Enumerates up to 65,536 joint values; ``n_samples`` and ``generator`` have no effect.
    """

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: Generator | None
    ) -> Tensor:
        states = variable.states()
        ones = (1,) * len(variable.batch_shape)
        states = states.view(len(states), *ones, *variable.event_shape)
        states = states.expand(len(states), *variable.logits.shape)
        p = variable.log_prob(states).exp()
        return (p * evaluate(f, states, variable)).sum(0)


def evaluate(f: Function, draws: Tensor, variable: Variable) -> Tensor:
    """Evaluate f at (n_samples, *logits.shape); require one finite number per joint value."""
    values = f(draws)
    check_finite(values, "the result of f")
    expected = tuple(draws.shape[: draws.ndim - len(variable.event_shape)])
    if tuple(values.shape) != expected:
        raise ValueError(
            f"f must return shape {expected}, one number per joint value of draws of shape "
            f"{tuple(draws.shape)}, got {tuple(values.shape)}; event_dims of the variable is the "
            "number of dimensions that f reduces"
        )
    return values


def attach_gradient(value: Tensor, estimate: Tensor, variable: Variable) -> Tensor:
    """Return ``value``, in the batch shape, with ``estimate`` as its gradient on the logits."""
    logits = variable.logits
    return value + variable.total(estimate.detach() * (logits - logits.detach()))
