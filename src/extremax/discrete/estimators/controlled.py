"""REINFORCE with a control variate that depends on the continuous z behind b: REBAR and RELAX.

    [f(b) − c(z̃)] ∇ log p(b) + ∇ c(z) − ∇ c(z̃)         (Grathwohl et al. 2018, RELAX)

with b = H(z) and z̃ drawn given b is unbiased for every c, because given b both terms in z̃ have the
same expectation. z̃ uses the random numbers that make it equal to z (common random numbers, Tucker
et al. 2017), so c is evaluated once, and only ∂z/∂θ and ∂z̃/∂θ differ.

c is trained to reduce the variance. The mean does not depend on c, so the gradient of E‖estimate‖²
is the gradient of the variance (Tucker et al. 2017).
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from extremax.discrete.estimators.base import Estimator, Function, attach_gradient, evaluate
from extremax.discrete.variables import Variable
from extremax.tensor_checks import check_count, check_temperature


class Rebar(Estimator):
    """c(z) = η f(σ_τ(z)), with η and log τ trained by Adam at each call (Tucker et al. 2017).

    f must be differentiable and is evaluated twice per call.
    """

    def __init__(
        self, temperature: float = 0.5, eta: float = 1.0, learning_rate: float = 0.03
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        if not learning_rate > 0:
            raise ValueError(
                f"learning_rate must be > 0, got {learning_rate}; call .eval() to turn learning off"
            )
        self.learning_rate = learning_rate
        self.optimizer: torch.optim.Optimizer | None = None
        self.log_temperature = torch.nn.Parameter(torch.tensor(math.log(temperature)))
        self.eta = torch.nn.Parameter(torch.tensor(float(eta)))

    @property
    def temperature(self) -> float:
        """Current value of τ."""
        return float(self.log_temperature.detach().exp())

    def control(self, f: Function, z: Tensor, variable: Variable) -> Tensor:
        """c(z), one number per value of f, differentiable in z."""
        soft = variable.soften(z, self.log_temperature.exp())
        return self.eta * evaluate(f, soft, variable)

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: Generator | None
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
        estimate.square().mean().backward(inputs=parameters)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Relax(Rebar):
    """c(z) = r(z), a network with one hidden layer, or r(z) + η f(σ_τ(z)) with ``through_f``.

    Without ``through_f``, f may be a black box (Grathwohl et al. 2018). The output of the network
    starts at zero, so the first estimates are those of REINFORCE, or of REBAR with ``through_f``.
    The network sees only z; if f depends on more (such as an image), use ``through_f``.

    size:    number of elements of z per value of f, `Variable.event_size`.
    hidden:  number of hidden units.
    """

    def __init__(
        self,
        size: int,
        hidden: int = 32,
        through_f: bool = False,
        temperature: float = 0.5,
        learning_rate: float = 0.03,
    ) -> None:
        super().__init__(temperature, 1.0, learning_rate)
        check_count(size, "size")
        check_count(hidden, "hidden")
        self.through_f, self.size = through_f, size
        last = torch.nn.Linear(hidden, 1)
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
        self.network = torch.nn.Sequential(torch.nn.Linear(size, hidden), torch.nn.Tanh(), last)

    def control(self, f: Function, z: Tensor, variable: Variable) -> Tensor:
        if variable.event_size != self.size:
            raise ValueError(
                f"size is {self.size}, but a joint value of the variable has "
                f"{variable.event_size} elements; use Relax({variable.event_size})"
            )
        flat = z.reshape(*z.shape[: z.ndim - len(variable.event_shape)], self.size)
        learned = self.network(flat.to(self.eta.dtype)).squeeze(-1).to(z.dtype)
        return learned + super().control(f, z, variable) if self.through_f else learned
