"""Augment & reduce, softmax form: its bound and its per-example updates."""

from __future__ import annotations

import math

import pytest
import torch

from extremax.objectives import AugmentReduce, OneVsEach, Pairs
from extremax.objectives.augment_reduce import update_rate

SCORES = torch.tensor([1.0, -0.5, 2.0, 0.3, -3.0], dtype=torch.float64)
NO_UNIFORM = torch.empty(5, 1)


def every_class(per_example: torch.Tensor) -> Pairs:
    """Example y has class y; every class is drawn once with q = 1/C, so all weights are one."""
    scores = torch.cat([SCORES[:, None], SCORES.repeat(5, 1)], 1)
    log_q = torch.full_like(scores, -math.log(5))
    return Pairs(scores, log_q, torch.eye(5, dtype=torch.bool), per_example)


def after_update(pairs: Pairs, epoch: int) -> Pairs:
    kept = AugmentReduce().update_per_example(pairs, epoch, NO_UNIFORM)
    return pairs._replace(per_example=kept)


def log_e_of(pairs: Pairs) -> torch.Tensor:
    """What is kept is log(e e^ξ_y)."""
    return pairs.per_example[:, 0] - pairs.scores[:, 0]


def sums() -> torch.Tensor:
    """S = Σ_{y' ≠ y} e^{ξ_y' − ξ_y} = 1/p_y − 1."""
    return 1.0 / SCORES.softmax(0) - 1.0


def test_it_bounds_the_likelihood_and_is_tight_at_the_sum() -> None:
    objective, log_p = AugmentReduce(), SCORES.log_softmax(0)
    at_sum = sums().log()[:, None]
    torch.testing.assert_close(-objective.loss(every_class(at_sum)), log_p)
    for shift in (-3.0, -0.1, 0.1, 3.0):
        assert (-objective.loss(every_class(at_sum + shift)) < log_p).all()
    # The gradient there is that of the softmax, p − y.
    gradient = objective.gradient(every_class(at_sum))
    torch.testing.assert_close(gradient[:, 0], log_p.exp() - 1.0)
    others = ~torch.eye(5, dtype=torch.bool)
    torch.testing.assert_close(gradient[:, 1:][others], log_p.exp().repeat(5, 1)[others])


def test_the_first_update_sets_the_sum() -> None:
    for start in (torch.zeros(5, 1), torch.full((5, 1), 50.0)):
        updated = after_update(every_class(start.double()), 0)
        torch.testing.assert_close(log_e_of(updated).exp(), sums())


def test_later_updates_move_by_the_rate_and_converge_to_the_sum() -> None:
    pairs = every_class(SCORES[:, None] + 1.5)
    expected = math.exp(1.5)
    for epoch in range(1, 200):
        rate = (1.0 + epoch) ** -0.9
        assert update_rate(epoch) == pytest.approx(rate)
        pairs = after_update(pairs, epoch)
        expected = (1.0 - rate) * expected + rate * sums()
        torch.testing.assert_close(log_e_of(pairs).exp(), expected)
    # Σ ρ is infinite but grows slowly: Π(1 − ρ) over 200 epochs leaves 1e-4 of the start.
    torch.testing.assert_close(log_e_of(pairs).exp(), sums(), rtol=1e-2, atol=1e-2)


def test_updates_with_random_draws_average_to_the_sum() -> None:
    n, m, epochs = 4000, 2, 60
    generator = torch.Generator().manual_seed(0)
    q = torch.tensor([0.3, 0.1, 0.3, 0.2, 0.1], dtype=torch.float64)
    truth, kept = 1, torch.zeros((n, 1), dtype=torch.float64)
    for epoch in range(epochs):
        drawn = torch.multinomial(q, n * m, replacement=True, generator=generator).view(n, m)
        classes = torch.cat([torch.full((n, 1), truth), drawn], 1)
        pairs = Pairs(SCORES[classes], q.log()[classes], drawn == truth, kept)
        kept = after_update(pairs, epoch).per_example
    e = (kept[:, 0] - SCORES[truth]).exp()
    error = float(e.std()) / math.sqrt(n)
    assert abs(float(e.mean() - sums()[truth])) < 4.0 * error
    assert float(e.std()) < 0.5 * float(sums()[truth])


@pytest.mark.parametrize("gap", [-1e4, -50.0, 0.0, 50.0, 1e4])
@pytest.mark.parametrize("epoch", [0, 1, 5, 100])
def test_weights_are_at_most_those_of_one_vs_each(gap: float, epoch: int) -> None:
    scores = torch.tensor([[0.0, gap, 1.0]])
    log_q = torch.full((1, 3), -12.0)
    objective = AugmentReduce()
    for kept in (-80.0, 0.0, 80.0):
        pairs = Pairs(scores, log_q, torch.zeros((1, 2), dtype=torch.bool), torch.tensor([[kept]]))
        for visited in (pairs, after_update(pairs, epoch)):
            now = visited._replace(per_example=objective.current_per_example(visited))
            weights = objective.gradient(now)[0, 1:]
            largest = OneVsEach().gradient(now)[0, 1:]
            assert (weights <= largest * (1.0 + 1e-5)).all()
            assert objective.loss(now).isfinite().all()


def test_what_the_loss_takes_is_independent_of_what_draws_say_of_the_sum() -> None:
    """Unless the draws show that e is too small: S is at least each of its terms."""
    scores = torch.tensor([[0.5, 1.0], [0.5, -2.0], [0.5, 4.0]])
    hits = torch.zeros((3, 1), dtype=torch.bool)
    pairs = Pairs(scores, torch.full_like(scores, -2.0), hits, torch.full((3, 1), 2.5))
    log_e = AugmentReduce().current_per_example(pairs)
    torch.testing.assert_close(log_e, torch.tensor([[2.0], [2.0], [3.5]]))


def test_an_example_whose_draws_are_all_the_true_class_stays_finite() -> None:
    pairs = Pairs(
        torch.zeros(1, 3), torch.full((1, 3), -1.0), torch.ones((1, 2), dtype=torch.bool),
        torch.zeros(1, 1),
    )  # fmt: skip
    objective = AugmentReduce()
    for epoch in range(4):
        pairs = after_update(pairs, epoch)
        now = pairs._replace(per_example=objective.current_per_example(pairs))
        assert now.per_example.isfinite().all()
        assert objective.loss(now).isfinite().all()
        assert (objective.gradient(now) == 0.0).all()
