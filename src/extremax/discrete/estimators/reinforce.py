"""REINFORCE: (f(b) − c) ∇ log p(b) (Williams 1992), for any f, differentiable or not.

E ∇ log p(b) = 0, so a baseline c that does not depend on b leaves the mean unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.discrete.estimators.base import (
    Estimator,
    Function,
    attach_gradient,
    draw_samples,
    evaluate,
)
from extremax.discrete.variables import Variable


class Reinforce(Estimator):
    """Without a baseline: unbiased, often with a large variance."""

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        b = draw_samples(variable, n_samples, generator)
        value = evaluate(f, b, variable)
        weight = value.detach() - self.baseline(value.detach())
        estimate = variable.spread(weight) * variable.score(b)
        return attach_gradient(value.mean(0), estimate.mean(0), variable)

    def baseline(self, value: Tensor) -> Tensor | float:
        """c for values (n_samples, *batch_shape); c of a draw must not depend on that draw."""
        return 0.0


class RunningMeanReinforce(Reinforce):
    """c is a running mean of f over earlier calls, one number for all variables; 0 at first.

    After each estimate, mean ← decay·mean + (1 − decay)·(mean of f in this call).
    """

    mean: Tensor
    calls: Tensor

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        self.decay = decay
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def baseline(self, value: Tensor) -> Tensor | float:
        before = self.mean.to(value).clone()
        if self.training:
            # During the first calls, their plain mean.
            decay = min(self.decay, int(self.calls) / (int(self.calls) + 1))
            self.mean.mul_(decay).add_((1.0 - decay) * value.mean().to(self.mean))
            self.calls.add_(1)
        return before


class LeaveOneOutReinforce(Reinforce):
    """c of a draw is the mean of f over the other draws of the same variable.

    Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!".
    """

    least_samples = 2

    def baseline(self, value: Tensor) -> Tensor | float:
        return (value.sum(0) - value) / (len(value) - 1)
