"""REINFORCE less the best multiple of something whose mean is known: F − h(G − E G).

    h* = Cov(F, G)/Var(G) leaves the share 1 − corr(F, G)² of the variance (Xu 2019, "More
    sophisticated control variate").

Here F = f(b) ∇ log p(b) and G = ∇ log p(b), of mean zero: available whatever f is. h* is a number
for each logit, where a baseline is one for all. It has to be estimated; from the very draws it is
applied to it would bias the estimate, so each draw takes h* from the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.discrete.checks import check_floating, check_shape
from extremax.discrete.estimators.base import Estimator, Function, carry, draws, evaluate
from extremax.discrete.variables import Variable


def optimal_coefficient(values: Tensor, controls: Tensor) -> Tensor:
    """h* = Cov(F, G)/Var(G) over the first dimension; 0 where G does not vary."""
    check_floating(values, "values")
    check_shape(controls, values.shape, "controls", "values")
    if len(values) < 2:
        raise ValueError(f"values must be at least two, got {len(values)}")
    away = controls - controls.mean(0)
    variance = away.square().sum(0)
    covariance = (away * (values - values.mean(0))).sum(0)
    return torch.where(
        variance > 0, covariance / variance.clamp(min=torch.finfo(values.dtype).tiny), 0.0
    )


class ControlVariate(Estimator):
    """Unbiased; several draws are needed, and many make h* better."""

    least_samples = 2

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        b = draws(variable, n_samples, generator)
        value = evaluate(f, b, variable)
        control = variable.score(b)
        plain = variable.spread(value.detach()) * control
        # E G = 0 is known and need not be estimated: Cov = E FG, Var = E G².
        products, squares = plain * control, control.square()
        above = products.sum(0) - products
        below = squares.sum(0) - squares
        h = torch.where(below > 0, above / below.clamp(min=torch.finfo(b.dtype).tiny), 0.0)
        return carry(value.mean(0), (plain - h * control).mean(0), variable)
