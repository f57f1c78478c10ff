"""REINFORCE with a control variate that depends on the continuous z behind b: REBAR and RELAX.

    [f(b) − c(z̃)] ∇ log p(b) + ∇ c(z) − ∇ c(z̃)         (Grathwohl et al. 2018, RELAX)

with b = H(z) and z̃ drawn given b is unbiased for every c, because given b both terms in z̃ have the
same expectation. z̃ uses the random numbers that make it equal to z (common random numbers, Tucker
et al. 2017), so c is evaluated once, and only ∂z/∂θ and ∂z̃/∂θ differ.

c is trained to reduce the variance. The mean does not depend on c, so the gradient of E‖estimate‖²
is the gradient of the variance (Tucker et al. 2017).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from extremax.discrete.estimators.base import Estimator, Function, attach_gradient, evaluate
from extremax.discrete.variables import Variable


class ControlledEstimator(Estimator):
    """Base of REBAR and RELAX. Its parameters are those of c, trained by Adam at each call."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        if not learning_rate > 0:
            raise ValueError(
                f"learning_rate must be > 0, got {learning_rate}; call .eval() to turn learning off"
            )
        self.learning_rate = learning_rate
        self.optimizer: torch.optim.Optimizer | None = None

    @abstractmethod
    def control(self, f: Function, z: Tensor, variable: Variable) -> Tensor:
        """c(z), one number per value of f, differentiable in z."""

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        # Separate logits per draw give one estimate per draw. The estimates are computed here, not
        # in the caller's backward pass, because the parameters of c are about to change.
        copies = variable.repeated(n_samples)
        with torch.enable_grad():
            z = copies.draw(generator)
            point = z.detach().requires_grad_()
            b = copies.harden(point.detach())
            value = evaluate(f, b, variable)
            control = self.control(f, point, variable)
            (path,) = torch.autograd.grad(
                z - copies.posterior(point.detach(), b),
                copies.logits,
                self._control_gradient(control, point),
                create_graph=self.training,
            )
            weight = variable.spread(value.detach() - control)
            estimate = weight * copies.score(b) + path
            if self.training:
                self._learn(estimate)
        return attach_gradient(value.mean(0), estimate.detach().mean(0), variable)

    def _control_gradient(self, control: Tensor, point: Tensor) -> Tensor:
        """∂c/∂z."""
        if control.requires_grad:
            (gradient,) = torch.autograd.grad(
                control.sum(), point, create_graph=self.training, allow_unused=True
            )
            if gradient is not None:
                return gradient
        raise ValueError(
            f"f is not differentiable in its argument, which {type(self).__name__} needs; write f "
            "with torch operations, or use Relax or one of the Reinforce estimators"
        )

    def _learn(self, estimate: Tensor) -> None:
        """Take one step down the mean of the squared estimates."""
        parameters = list(self.parameters())
        if self.optimizer is None:
            self.optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        square = estimate.square().mean()
        gradients = torch.autograd.grad(square, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
