"""The contract of a gradient estimator for E f(b), b ~ p(b).

    surrogate = estimator(f, variable, n_samples=1, generator=None)
    surrogate.sum().backward()

f takes draws (n_samples, *logits.shape) and returns (n_samples, *variable.batch_shape). The
surrogate has the batch shape. Its value is an estimate of E f, its gradient on the logits the
estimate of ∇E f; parameters of f get the gradient of f at the draws.

Estimators that learn something of their own do so at each call in training mode, after the estimate
was made, so that it stays unbiased; ``estimator.eval()`` stops it, as with any torch module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from extremax.discrete.checks import check_count
from extremax.discrete.variables import Variable

Function = Callable[[Tensor], Tensor]


class Estimator(torch.nn.Module, ABC):
    """``unbiased``: the mean of the gradient is that of E f. ``least_samples``: draws it needs."""

    unbiased: bool = True
    least_samples: int = 1

    def forward(
        self,
        f: Function,
        variable: Variable,
        n_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if not isinstance(variable, Variable):
            raise TypeError(
                "variable must be Bernoulli(logits) or Categorical(logits), got "
                f"{type(variable).__name__}"
            )
        why = f"; {type(self).__name__} compares draws" if self.least_samples > 1 else ""
        check_count(n_samples, "n_samples", self.least_samples, why)
        return self.surrogate(f, variable, n_samples, generator)

    @abstractmethod
    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """What `forward` returns, for arguments that were checked."""


def evaluate(f: Function, values: Tensor, variable: Variable) -> Tensor:
    """f at (draws, *logits.shape), which must return one finite number for each joint value."""
    found = f(values)
    if not isinstance(found, Tensor):
        raise TypeError(f"f must return a torch tensor, got {type(found).__name__}")
    if not found.is_floating_point():
        raise TypeError(f"f must return floating point, got {found.dtype}; call .float() on it")
    n = len(variable.event_shape)
    expected = tuple(values.shape[: values.ndim - n])
    if tuple(found.shape) != expected:
        raise ValueError(
            f"f must return shape {expected}, a number for each joint value of draws "
            f"{tuple(values.shape)}, got {tuple(found.shape)}; event_dims of the variable says how "
            "many dimensions f sums over"
        )
    if not bool(torch.isfinite(found.detach()).all()):
        raise ValueError("f returned NaN or infinity; look at f")
    return found


def draws(variable: Variable, n_samples: int, generator: torch.Generator | None) -> Tensor:
    """b of shape (n_samples, *logits.shape)."""
    return variable.repeated(n_samples).sample(generator)


def carry(value: Tensor, estimate: Tensor, variable: Variable) -> Tensor:
    """``value`` (batch shape), with ``estimate`` as its gradient on the variable's logits."""
    logits = variable.logits
    return value + variable.total(estimate.detach() * (logits - logits.detach()))
