"""The reference itself, against torch's own optimizer, loops and hand values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests import reference


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_scores_are_dot_products() -> None:
    weight, bias, features = normal(6, 3), normal(6, seed=1), normal(4, 3, seed=2)
    classes = torch.tensor([[0, 5], [5, 5], [2, 1], [3, 0]])
    scores = reference.score_pairs(weight, bias, features, classes, 0.5)
    for i in range(4):
        for j, c in enumerate(classes[i].tolist()):
            expected = 0.5 * float(weight[c] @ features[i]) + float(bias[c])
            assert math.isclose(scores[i, j], expected, rel_tol=1e-12)


def test_a_step_is_the_adagrad_of_torch_on_the_same_gradient() -> None:
    weight, bias, features = normal(6, 3), normal(6, seed=1), normal(4, 3, seed=2)
    classes = torch.tensor([[0, 5], [5, 5], [2, 1], [3, 0]])
    theirs = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    optimizer = torch.optim.Adagrad(theirs, lr=0.3, initial_accumulator_value=0.2, eps=0.0)
    accumulators = torch.full_like(weight, 0.2), torch.full_like(bias, 0.2)
    for seed in (3, 4):
        gradient = normal(4, 2, seed=seed)
        optimizer.zero_grad()
        (reference.score_pairs(*theirs, features, classes, 0.5) * gradient).sum().backward()
        optimizer.step()
        reference.adagrad_step(weight, bias, *accumulators, features, classes, gradient, 0.5, 0.3)
    torch.testing.assert_close(weight, theirs[0].detach())
    torch.testing.assert_close(bias, theirs[1].detach())


def test_a_tree_of_three_by_hand() -> None:
    # Leaves 0 | 1 2, with σ(log 4) = 0.8 at the root and σ(0) = 0.5 below.
    nodes = torch.tensor([[9.0, 9.0], [math.log(4), 0.0], [0.0, 0.0]])
    order = torch.tensor([2, 0, 1])
    log_q = reference.tree_log_prob_all(nodes, order, torch.tensor([[1.0], [-1.0]]))
    expected = torch.tensor([[0.4, 0.4, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(log_q.exp(), expected)
    uniform = torch.tensor([[[0.79, 0.49], [0.79, 0.51], [0.81, 0.0]]])
    labels = reference.tree_sample(nodes, order, torch.tensor([[1.0]]), uniform)
    assert labels.tolist() == [[1, 0, 2]]


def test_newton_objective_by_hand() -> None:
    examples = torch.tensor([[1.0, 2.0], [0.0, -1.0]], dtype=torch.float64)
    zeta = torch.tensor([1.0, -1.0], dtype=torch.float64)
    theta = torch.tensor([0.5, -0.25, 1.0], dtype=torch.float64)
    penalties = torch.tensor([2.0, 0.5], dtype=torch.float64)
    # Activations 1.0 and 1.25; the second example is on the wrong side.
    fit = -math.log1p(math.exp(-1.0)) - math.log1p(math.exp(1.25))
    expected = 3.0 * fit - (0.5**2 + 0.25**2) - 0.25 * 1.0
    value = reference.newton_objective(examples, zeta, 3.0, penalties, theta)
    assert math.isclose(value, expected, rel_tol=1e-12)
