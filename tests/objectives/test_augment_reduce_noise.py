"""Augment & reduce with normal and logistic ε: the bound, its optimum and the updates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from extremax.objectives import AugmentReduceLogistic, AugmentReduceProbit, Pairs

FORMS = {"normal": AugmentReduceProbit(), "logistic": AugmentReduceLogistic()}
every_form = pytest.mark.parametrize("form", FORMS)

TRUE = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)
SCORES = torch.tensor([1.0, -0.5, 2.0, 0.3, -1.5], dtype=torch.float64)
N_CLASSES = len(TRUE)

# Gauss–Hermite: exact for polynomials of u up to degree 63.
_points, _weights = np.polynomial.hermite_e.hermegauss(32)
POINTS = torch.from_numpy(_points)
WEIGHTS = torch.from_numpy(_weights / _weights.sum())


def every_class(scores: Tensor, truth: Tensor, per_example: Tensor) -> Pairs:
    """Examples of the classes ``truth``; every class is drawn once with q = 1/C, so all weights
    are one."""
    pairs = torch.cat([scores[truth, None], scores.repeat(len(truth), 1)], 1)
    hits = torch.arange(N_CLASSES) == truth[:, None]
    return Pairs(pairs, torch.full_like(pairs, -math.log(N_CLASSES)), hits, per_example)


def bound(form: str, scores: Tensor, mu: Tensor, log_tau: Tensor) -> Tensor:
    """−E_q of the surrogate loss for each true class, with its q = N(μ, 1/τ)."""
    u = mu[:, None] + POINTS * torch.exp(-0.5 * log_tau)[:, None]
    per_example = torch.stack([mu[:, None].expand_as(u), log_tau[:, None].expand_as(u), u], 2)
    truth = torch.arange(N_CLASSES).repeat_interleave(len(POINTS))
    pairs = every_class(scores, truth, per_example.reshape(-1, 3))
    return -FORMS[form].loss(pairs).view(u.shape) @ WEIGHTS


def log_p(form: str, scores: Tensor) -> Tensor:
    """log ∫ φ(ε) Π_{y' ≠ y} Φ(ε + ξ_y − ξ_y') dε of every class, on a fine grid."""
    width = 12.0 if form == "normal" else 45.0
    eps = torch.linspace(-width, width, 1201, dtype=torch.float64)
    margins = eps[:, None, None] + scores[:, None] - scores
    others = FORMS[form].log_cdf(margins).masked_fill(torch.eye(N_CLASSES, dtype=torch.bool), 0.0)
    whole = FORMS[form].log_density(eps)[:, None] + others.sum(2)
    return whole.logsumexp(0) + math.log(2.0 * width / 1200)


def maximized(value: Callable[[], Tensor], free: list[Tensor]) -> float:
    optimizer = torch.optim.LBFGS(
        free, max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -value()
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(value().detach())


def zeros() -> Tensor:
    return torch.zeros(N_CLASSES, dtype=torch.float64, requires_grad=True)


def best_parameters(form: str, scores: Tensor) -> tuple[Tensor, Tensor]:
    mu, log_tau = zeros(), zeros()
    maximized(lambda: bound(form, scores, mu, log_tau).sum(), [mu, log_tau])
    return mu.detach(), log_tau.detach()


@every_form
def test_it_is_a_lower_bound_of_the_likelihood(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        scores, mu, log_tau = torch.randn((3, N_CLASSES), generator=generator).double() * 1.5
        assert (bound(form, scores, mu, log_tau) < log_p(form, scores)).all()
    best = bound(form, SCORES, *best_parameters(form, SCORES))
    assert (best < log_p(form, SCORES)).all()
    # The posterior of ε is nearly normal, so the best bound is nearly tight.
    assert (best > log_p(form, SCORES) - 0.05).all()


@every_form
def test_the_joint_optimum_is_as_close_to_the_data_as_its_bound_is_tight(form: str) -> None:
    """Let L be the expected log-likelihood of the scores and G ≥ 0 the gap to the best bound.

    The optimum ξ̂ of L − G has L(ξ̂) − G(ξ̂) ≥ L(ξ*) − G(ξ*), where ξ* are the scores of the
    distribution of the data; so KL(data ‖ ξ̂) = L(ξ*) − L(ξ̂) ≤ G(ξ*) − G(ξ̂), and the total
    variation is at most √(KL/2) (Pinsker).
    """
    exact = zeros()
    entropy = float((TRUE * TRUE.log()).sum())
    # The mean of the scores is not identified; a small penalty fixes it.
    likelihood = maximized(lambda: TRUE @ log_p(form, exact) - 1e-9 * exact.square().sum(), [exact])
    assert likelihood == pytest.approx(entropy, abs=1e-6)
    exact = exact.detach()
    exact_gap = entropy - float(TRUE @ bound(form, exact, *best_parameters(form, exact)))

    scores, mu, log_tau = zeros(), zeros(), zeros()
    best = maximized(lambda: TRUE @ bound(form, scores, mu, log_tau), [scores, mu, log_tau])
    scores = scores.detach()
    gap = float(TRUE @ log_p(form, scores)) - best
    assert 0.0 < gap < exact_gap
    predicted = FORMS[form].log_normalize(scores[None].clone())[0].exp()
    torch.testing.assert_close(predicted, log_p(form, scores).exp(), rtol=0, atol=1e-5)
    distance = 0.5 * float((predicted - TRUE).abs().sum())
    assert distance < math.sqrt((exact_gap - gap) / 2.0)
    # In numbers: the order is right, and the total variation is below 0.01.
    assert distance < 0.01
    assert (predicted.diff() < 0.0).all()


@every_form
def test_updates_approach_the_best_bound(form: str) -> None:
    objective, n_copies, epochs = FORMS[form], 200, 400
    mu, log_tau = best_parameters(form, SCORES)
    truth = torch.arange(N_CLASSES).repeat_interleave(n_copies)
    generator = torch.Generator().manual_seed(1)
    pairs = every_class(SCORES, truth, objective.per_example_start(len(truth)).double())
    for epoch in range(epochs):
        uniform = torch.rand((len(truth), 3), generator=generator, dtype=torch.float64)
        updated = objective.update_per_example(pairs, epoch, uniform)
        pairs = pairs._replace(per_example=updated)
    final = pairs.per_example.view(N_CLASSES, n_copies, 3)
    found_mu, found_tau = final[..., 0].mean(1), final[..., 1].exp().mean(1)
    # The mean of 200 has a standard error near √(ρ/2)/√200 = 0.003; allow four of them, and as
    # much for the remaining influence of the start.
    assert (found_mu - mu).abs().max() < 0.025
    torch.testing.assert_close(found_tau, log_tau.exp(), rtol=0.04, atol=0)
    # Single examples come close as well, and their bound is nearly the best one.
    assert final[..., 0].std(1).max() < 0.15
    best = bound(form, SCORES, mu, log_tau)
    reached = bound(form, SCORES, final[:, 0, 0], final[:, 0, 1])
    assert (best - reached < 0.01).all()
    # u is a draw of q.
    z = (final[..., 2] - final[..., 0]) * (0.5 * final[..., 1]).exp()
    assert abs(float(z.mean())) < 4.0 / math.sqrt(z.numel())
    assert float(z.std()) == pytest.approx(1.0, abs=4.0 / math.sqrt(2 * z.numel()))


@every_form
@pytest.mark.parametrize("gap", [-1e4, -30.0, 0.0, 30.0, 1e4])
def test_an_update_moves_by_a_bounded_amount(form: str, gap: float) -> None:
    objective = FORMS[form]
    scores = torch.tensor([[0.0, gap, 1.0]])
    hits = torch.zeros((1, 2), dtype=torch.bool)
    current = objective.per_example_start(1)
    for epoch in range(30):
        pairs = Pairs(scores, torch.full_like(scores, -15.0), hits, current)
        uniform = torch.full((1, 3), 0.001 if epoch % 2 else 0.999, dtype=torch.float64)
        updated = objective.update_per_example(pairs, epoch, uniform)
        assert updated.isfinite().all()
        rate = (2.0 + epoch) ** -0.9
        deviation = math.exp(-0.5 * float(updated[0, 1]))
        assert abs(float(updated[0, 0] - current[0, 0])) <= 5.0 * rate * deviation * 1.001 + 1e-5
        assert float(updated[0, 1]) >= math.log(1e-3) - 1e-4
        current = updated


@every_form
def test_an_example_whose_draws_are_all_the_true_class_approaches_its_prior(form: str) -> None:
    objective = FORMS[form]
    hits = torch.ones((1, 2), dtype=torch.bool)
    pairs = Pairs(torch.zeros(1, 3), torch.full((1, 3), -1.0), hits, objective.per_example_start(1))
    for epoch in range(50):
        uniform = torch.full((1, 3), 0.3 if epoch % 2 else 0.7, dtype=torch.float64)
        updated = objective.update_per_example(pairs, epoch, uniform)
        pairs = pairs._replace(per_example=updated)
        assert (objective.gradient(pairs) == 0.0).all()
    assert abs(float(pairs.per_example[0, 0])) < 0.3
    assert 0.1 < float(pairs.per_example[0, 1].exp()) <= 1.0
