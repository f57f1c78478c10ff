"""RELAX: the control variate is a learned network (Grathwohl et al. 2018); f may be a black box."""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.discrete.checks import check_count
from extremax.discrete.estimators.base import Function
from extremax.discrete.estimators.rebar import Rebar
from extremax.discrete.variables import Variable


class Relax(Rebar):
    """c(z) = r(z), a network with one hidden layer, or r(z) + η f(σ_τ(z)) with ``through_f``.

    The output of the network starts at zero, so the first estimates are those of REINFORCE, or of
    REBAR with ``through_f``. The network sees only z; if f depends on more (such as an image), use
    ``through_f``.

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
        check_count(size, "size", 1)
        check_count(hidden, "hidden", 1)
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
