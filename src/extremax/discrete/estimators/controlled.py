"""REINFORCE with a control variate that sees the continuous z behind b: REBAR and RELAX.

    [f(b) − c(z̃)] ∇ log p(b) + ∇ c(z) − ∇ c(z̃)         (Grathwohl et al. 2018, RELAX)

with b = H(z) and z̃ drawn given b, is unbiased for every c: given b, E c(z̃) is the same for both
its terms. z̃ takes the random numbers that make it equal to z (common random numbers, Tucker et al.
2017), so c is evaluated once, and only ∂z/∂θ and ∂z̃/∂θ differ.

c learns to make the variance small. The mean does not depend on c, so the gradient of E‖estimate‖²
is that of the variance (Tucker et al. 2017).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from extremax.discrete.estimators.base import Estimator, Function, carry, evaluate
from extremax.discrete.variables import Variable


class ControlledEstimator(Estimator):
    """The module's parameters are those of c; Adam moves them at each call in training mode."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        if not learning_rate > 0:
            raise ValueError(
                f"learning_rate must be > 0, got {learning_rate}; call .eval() to learn nothing"
            )
        self.learning_rate = learning_rate
        self._optimizer: torch.optim.Optimizer | None = None

    @abstractmethod
    def control(self, f: Function, z: Tensor, variable: Variable) -> Tensor:
        """c(z), one number for each value of f, differentiable in z."""

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        # Logits of its own for each draw: the estimate is made here, one for each, and not by
        # the caller's backward, which must not reach into what is about to change.
        copies = variable.repeated(n_samples)
        with torch.enable_grad():
            z = copies.draw(generator)
            point = z.detach().requires_grad_()
            b = copies.harden(point.detach())
            value = evaluate(f, b, variable)
            control = self.control(f, point, variable)
            slope = self._slope(control, point)
            (path,) = torch.autograd.grad(
                z - copies.posterior(point.detach(), b),
                copies.logits,
                slope,
                create_graph=self.training,
            )
            weight = variable.spread(value.detach() - control)
            estimate = weight * copies.score(b) + path
            if self.training:
                self._learn(estimate)
        return carry(value.mean(0), estimate.detach().mean(0), variable)

    def _slope(self, control: Tensor, point: Tensor) -> Tensor:
        if control.requires_grad:
            (slope,) = torch.autograd.grad(
                control.sum(), point, create_graph=self.training, allow_unused=True
            )
            if slope is not None:
                return slope
        raise ValueError(
            f"f is not differentiable in its argument, which {type(self).__name__} needs; give it "
            "an f made of torch operations, or use Relax or a Reinforce"
        )

    def _learn(self, estimate: Tensor) -> None:
        """One step down the mean of the squared estimates."""
        parameters = list(self.parameters())
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        square = estimate.square().mean()
        slopes = torch.autograd.grad(square, parameters, allow_unused=True)
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.grad = slope
        self._optimizer.step()
        self._optimizer.zero_grad()
