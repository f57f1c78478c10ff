"""What every objective promises. A new one is tested by its line in ``OBJECTIVES``."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from torch import Tensor

from extremax.objectives import OBJECTIVES, Objective

every_objective = pytest.mark.parametrize("name", sorted(OBJECTIVES))


def make(name: str) -> Objective:
    """With a penalty that is seen, where the objective has one."""
    objective = OBJECTIVES[name]()
    if "regularization" in objective.get_params():
        objective.set_params(regularization=0.01)
    return objective


def unpenalised(name: str) -> Objective:
    objective = OBJECTIVES[name]()
    if "regularization" in objective.get_params():
        objective.set_params(regularization=0.0)
    return objective


def batch(n: int, m: int, seed: int, size: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = size * torch.randn((n, 1 + m), generator=generator, dtype=torch.float64)
    log_q = -8.0 * torch.rand((n, 1 + m), generator=generator, dtype=torch.float64)
    return scores, log_q


def autograd(objective: Objective, scores: Tensor, log_q: Tensor) -> Tensor:
    free = scores.clone().requires_grad_()
    return torch.autograd.grad(objective.loss(free, log_q).sum(), free)[0]


@every_objective
@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 6), m=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_gradient_is_that_of_autograd(name: str, n: int, m: int, seed: int) -> None:
    for objective in (make(name), unpenalised(name)):
        scores, log_q = batch(n, m, seed)
        kept = scores.clone(), log_q.clone()
        gradient = objective.gradient(scores, log_q)
        assert objective.loss(scores, log_q).shape == (n,)
        assert gradient.shape == (n, 1 + m)
        # softplus takes a straight line from 20 on, which is off by e^-20.
        torch.testing.assert_close(
            gradient, autograd(objective, scores, log_q), rtol=1e-9, atol=1e-8
        )
        # The caller's arrays are still the caller's.
        assert torch.equal(scores, kept[0])
        assert torch.equal(log_q, kept[1])


@every_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_stay_finite(name: str, dtype: torch.dtype) -> None:
    extremes = torch.tensor(list(itertools.product([-1e4, 0.0, 1e4], repeat=3)), dtype=dtype)
    log_q = torch.full_like(extremes, -9.0)
    for objective in (make(name), unpenalised(name)):
        gradient = objective.gradient(extremes, log_q)
        assert objective.loss(extremes, log_q).isfinite().all()
        assert gradient.isfinite().all()
        torch.testing.assert_close(gradient, autograd(objective, extremes, log_q))


@every_objective
def test_examples_do_not_mix(name: str) -> None:
    objective = make(name)
    scores, log_q = batch(8, 3, seed=1)
    loss, gradient = objective.loss(scores, log_q), objective.gradient(scores, log_q)
    for i in range(8):
        row = slice(i, i + 1)
        torch.testing.assert_close(objective.loss(scores[row], log_q[row]), loss[row])
        torch.testing.assert_close(objective.gradient(scores[row], log_q[row]), gradient[row])


@every_objective
def test_the_order_of_negatives_is_nothing(name: str) -> None:
    objective = make(name)
    scores, log_q = batch(8, 4, seed=2)
    order = torch.tensor([0, 3, 1, 4, 2])
    torch.testing.assert_close(
        objective.loss(scores[:, order], log_q[:, order]), objective.loss(scores, log_q)
    )


def best_scores(objective: Objective, p: Tensor, q: Tensor, m: int) -> Tensor:
    """The free scores that minimise the expected loss over y ~ p and m draws from q, exactly."""
    classes = torch.tensor(list(itertools.product(range(len(p)), repeat=1 + m)))
    chance = p[classes[:, 0]] * q[classes[:, 1:]].prod(1)
    log_q = q.log()[classes]
    free = torch.zeros(len(p), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [free], lr=1.0, max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def expected_loss() -> Tensor:
        optimiser.zero_grad()
        loss = chance @ objective.loss(free[classes], log_q)
        loss.backward()
        return loss

    optimiser.step(expected_loss)
    return free.detach()


TRUE = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)
NOISE = {
    "uniform": torch.full((5,), 0.2, dtype=torch.float64),
    "the data's own": TRUE,
    "far from the data": torch.tensor([0.05, 0.1, 0.15, 0.3, 0.4], dtype=torch.float64),
}


@every_objective
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("m", [1, 2])
def test_logits_recover_the_probabilities_of_the_data(name: str, noise: str, m: int) -> None:
    objective, q = unpenalised(name), NOISE[noise]
    if objective.probabilities == "uncalibrated":
        pytest.skip("does not promise probabilities")
    scores = best_scores(objective, TRUE, q, m)
    found = objective.logits(scores, q.log()).softmax(0)
    assert 0.5 * (found - TRUE).abs().sum() < 1e-3


@every_objective
def test_logits_add_log_q_where_it_says_so(name: str) -> None:
    objective = make(name)
    scores, log_q = batch(3, 6, seed=4)
    expected = scores + log_q[:1] if objective.adds_log_q else scores
    torch.testing.assert_close(objective.logits(scores, log_q[:1]), expected)
    assert isinstance(objective.probabilities, str)


@every_objective
def test_parameters_are_those_of_scikit_learn(name: str) -> None:
    objective = make(name)
    assert clone(objective).get_params() == objective.get_params()
    restored = type(objective)(**json.loads(json.dumps(objective.settings())))
    scores, log_q = batch(3, 2, seed=5)
    assert torch.equal(restored.loss(scores, log_q), objective.loss(scores, log_q))
