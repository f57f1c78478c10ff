"""The exact gradient, by enumeration of Σ_b p(b) f(b). For small problems and for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from extremax.discrete.estimators.base import Estimator, Function, evaluate
from extremax.discrete.variables import Variable


class Exact(Estimator):
    """Enumerates up to 65,536 joint values; ``n_samples`` and ``generator`` have no effect."""

    def surrogate(
        self, f: Function, variable: Variable, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        states = variable.states()
        ones = (1,) * len(variable.batch_shape)
        states = states.view(len(states), *ones, *variable.event_shape)
        states = states.expand(len(states), *variable.logits.shape)
        p = variable.log_prob(states).exp()
        return (p * evaluate(f, states, variable)).sum(0)
