"""REINFORCE: (f(b) − c) ∇ log p(b) (Williams 1992), for any f, differentiable or not.

E ∇ log p(b) = 0, so a baseline c that does not depend on b leaves the mean unchanged. c is one
number for all logits, except in `ControlVariate`.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from extremax.discrete.estimators.base import Estimator, Function, attach_gradient, evaluate
from extremax.discrete.variables import Variable
from extremax.tensor_checks import check_floating, check_shape


class Reinforce(Estimator):
    """Without a baseline: unbiased, often with a large variance."""

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: Generator | None
    ) -> Tensor:
        b = variable.repeated(n_samples).sample(generator)
        value, score = evaluate(f, b, variable), variable.score(b)
        weight = variable.spread(value.detach())
        estimate = (weight - self.baseline(weight, score)) * score
        return attach_gradient(value.mean(0), estimate.mean(0), variable)

    def baseline(self, value: Tensor, score: Tensor) -> Tensor | float:
        """c for draws with these values of f and scores; c of a draw must not depend on that draw.

        value:  (n_samples, *batch_shape), with dimensions of size one for those of one joint value.
        score:  ∇ log p, (n_samples, *logits.shape).
        """
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

    def baseline(self, value: Tensor, score: Tensor) -> Tensor | float:
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

    def baseline(self, value: Tensor, score: Tensor) -> Tensor | float:
        return (value.sum(0) - value) / (len(value) - 1)


class ControlVariate(Reinforce):
    """Subtracts the optimal multiple of a control variate of known mean: F − h(G − E G).

    h* = Cov(F, G)/Var(G) leaves the fraction 1 − corr(F, G)² of the variance (Xu 2019, "More
    sophisticated control variate"). Here F = f(b) ∇ log p(b) and G = ∇ log p(b), whose mean is zero
    for any f, so that h* is a baseline per logit. It has to be estimated. An h* from the same draws
    would bias the estimate, so each draw uses the h* of the other draws.

    Unbiased; needs at least two draws, and more draws improve h*.
    """

    least_samples = 2

    def baseline(self, value: Tensor, score: Tensor) -> Tensor | float:
        # E G = 0 is known and need not be estimated: Cov = E FG, Var = E G².
        squares = score.square()
        products = value * squares
        return _ratio(products.sum(0) - products, squares.sum(0) - squares)


def optimal_coefficient(values: Tensor, controls: Tensor) -> Tensor:
    """h* = Cov(F, G)/Var(G) over the first dimension; 0 where G does not vary."""
    check_floating(values, "values")
    check_shape(controls, "controls", values.shape, "values")
    if len(values) < 2:
        raise ValueError(f"values must have at least two rows, got {len(values)}")
    centered = controls - controls.mean(0)
    return _ratio((centered * (values - values.mean(0))).sum(0), centered.square().sum(0))


def _ratio(covariance: Tensor, variance: Tensor) -> Tensor:
    """covariance / variance, 0 where the variance is 0."""
    tiny = torch.finfo(variance.dtype).tiny
    return torch.where(variance > 0, covariance / variance.clamp(min=tiny), 0.0)
