"""Small problems with every kind of variable, whose exact gradients are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from extremax.discrete import Bernoulli, Categorical, Variable


class Problem(NamedTuple):
    f: Callable[[Tensor], Tensor]
    variable: Variable


def _normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _problems() -> dict[str, Problem]:
    target, pairs = _normal(4, seed=0), _normal(2, 3, seed=1)
    return {
        # f of each variable separately.
        "bernoulli": Problem(lambda b: (b - 0.3).square() + 0.5 * b, Bernoulli(_normal(2, seed=2))),
        # f of three variables jointly, not a sum of functions of single variables.
        "joint_bernoulli": Problem(
            lambda b: (b.sum(-1) - 1.2).square() + b[..., 0] * b[..., 1],
            Bernoulli(_normal(2, 3, seed=3), event_dims=1),
        ),
        "categorical": Problem(
            lambda b: (b - target).square().sum(-1), Categorical(_normal(2, 4, seed=4))
        ),
        "joint_categorical": Problem(
            lambda b: ((b * pairs).sum((-2, -1)) - 0.5).square(),
            Categorical(_normal(2, 3, seed=5), event_dims=1),
        ),
    }


PROBLEMS = _problems()


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> Problem:
    return PROBLEMS[request.param]
