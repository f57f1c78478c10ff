"""Gradients through a relaxed sample: small variance, but biased.

f must be differentiable and accept values inside the simplex, or between 0 and 1.
"""

from __future__ import annotations

from torch import Generator, Tensor

from extremax.discrete.estimators.base import Estimator, Function, evaluate
from extremax.discrete.relaxations import straight_through
from extremax.discrete.variables import Variable
from extremax.tensor_checks import check_temperature


class GumbelSoftmax(Estimator):
    """∇ f(σ_τ(z)), unbiased for E f(σ_τ(z)), which tends to E f(b) as τ → 0 (Jang et al. 2017)."""

    unbiased = False

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature = temperature

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: Generator | None
    ) -> Tensor:
        logits = variable.logits.expand(n_samples, *variable.logits.shape)
        copies = type(variable)(logits, variable.event_dims)
        return evaluate(f, self.relax(copies, generator), variable).mean(0)

    def relax(self, variable: Variable, generator: Generator | None) -> Tensor:
        """Draw the argument of f."""
        return variable.soften(variable.draw(generator), self.temperature)


class StraightThrough(GumbelSoftmax):
    """f at the hard sample, with its gradient passed on to the soft sample.

    Bengio et al. 2013; Jang et al. 2017.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__(temperature)

    def relax(self, variable: Variable, generator: Generator | None) -> Tensor:
        z = variable.draw(generator)
        return straight_through(variable.soften(z, self.temperature), variable.harden(z.detach()))
