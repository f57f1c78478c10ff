"""REBAR: the control variate is f at the relaxed sample (Tucker et al. 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from extremax.discrete.checks import check_temperature
from extremax.discrete.estimators.base import Function, evaluate
from extremax.discrete.estimators.controlled import ControlledEstimator
from extremax.discrete.variables import Variable


class Rebar(ControlledEstimator):
    """c(z) = η f(σ_τ(z)), with learned η and log τ.

    f must be differentiable and is evaluated twice per call.
    """

    def __init__(
        self, temperature: float = 0.5, eta: float = 1.0, learning_rate: float = 0.03
    ) -> None:
        super().__init__(learning_rate)
        check_temperature(temperature)
        self.log_temperature = torch.nn.Parameter(torch.tensor(math.log(temperature)))
        self.eta = torch.nn.Parameter(torch.tensor(float(eta)))

    @property
    def temperature(self) -> float:
        """Current value of τ."""
        return float(self.log_temperature.detach().exp())

    def control(self, f: Function, z: Tensor, variable: Variable) -> Tensor:
        soft = variable.soften(z, self.log_temperature.exp())
        return self.eta * evaluate(f, soft, variable)
