"""REINFORCE with the optimal multiple of a control variate of known mean: F − h(G − E G).

    h* = Cov(F, G)/Var(G) leaves the fraction 1 − corr(F, G)² of the variance (Xu 2019, "More
    sophisticated control variate").

Here F = f(b) ∇ log p(b) and G = ∇ log p(b), whose mean is zero for any f. h* is one number per
logit, while a baseline is one number for all logits. It has to be estimated. An h* from the same
draws would bias the estimate, so each draw uses the h* of the other draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.discrete.checks import check_floating, check_shape
from extremax.discrete.estimators.base import (
    Estimator,
    Function,
    attach_gradient,
    draw_samples,
    evaluate,
)
from extremax.discrete.variables import Variable


def optimal_coefficient(values: Tensor, controls: Tensor) -> Tensor:
    """h* = Cov(F, G)/Var(G) over the first dimension; 0 where G does not vary."""
    check_floating(values, "values")
    check_shape(controls, "controls", values.shape, "values")
    if len(values) < 2:
        raise ValueError(f"values must have at least two rows, got {len(values)}")
    centered = controls - controls.mean(0)
    return _ratio((centered * (values - values.mean(0))).sum(0), centered.square().sum(0))


class ControlVariate(Estimator):
    """Unbiased; needs at least two draws, and more draws improve h*."""

    least_samples = 2

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        b = draw_samples(variable, n_samples, generator)
        value = evaluate(f, b, variable)
        control = variable.score(b)
        plain = variable.spread(value.detach()) * control
        # E G = 0 is known and need not be estimated: Cov = E FG, Var = E G².
        products, squares = plain * control, control.square()
        h = _ratio(products.sum(0) - products, squares.sum(0) - squares)
        return attach_gradient(value.mean(0), (plain - h * control).mean(0), variable)


def _ratio(covariance: Tensor, variance: Tensor) -> Tensor:
    """covariance / variance, 0 where the variance is 0."""
    tiny = torch.finfo(variance.dtype).tiny
    return torch.where(variance > 0, covariance / variance.clamp(min=tiny), 0.0)
