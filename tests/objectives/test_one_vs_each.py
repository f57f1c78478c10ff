"""One-vs-each, softmax and probit: bounds of the likelihood, estimated without bias."""

from __future__ import annotations

import itertools

import pytest
import torch

from extremax.objectives import AugmentReduceProbit, Objective, OneVsEach, Pairs

SCORES = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
Q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def every_class(truth: int) -> Pairs:
    """Every class is drawn once with q = 1/C, so all weights are one."""
    scores = torch.cat([SCORES[truth : truth + 1], SCORES])[None]
    hits = torch.arange(4)[None] == truth
    return Pairs(
        scores, torch.full_like(scores, -torch.log(torch.tensor(4.0))), hits, scores[:, :0]
    )


@pytest.mark.parametrize("objective", [OneVsEach(), AugmentReduceProbit().start_objective()])
@pytest.mark.parametrize("truth", range(4))
def test_it_is_a_lower_bound_of_the_likelihood(objective: Objective, truth: int) -> None:
    model = OneVsEach() if type(objective) is OneVsEach else AugmentReduceProbit()
    log_p = model.log_normalize(SCORES[None].clone())[0, truth]
    bound = -objective.loss(every_class(truth))[0]
    assert bound < log_p
    # With one other class the bound is the likelihood itself.
    pair = every_class(truth)
    pair = pair._replace(hits=torch.arange(4)[None] != (truth + 1) % 4)
    two = SCORES[[truth, (truth + 1) % 4]][None]
    exact = model.log_normalize(two.clone())[0, 0]
    torch.testing.assert_close(-objective.loss(pair)[0], exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("objective", [OneVsEach(), AugmentReduceProbit().start_objective()])
@pytest.mark.parametrize("m", [1, 2])
def test_draws_of_any_noise_estimate_the_sum_without_bias(objective: Objective, m: int) -> None:
    truth = 2
    classes = torch.tensor([(truth, *drawn) for drawn in itertools.product(range(4), repeat=m)])
    chance = Q[classes[:, 1:]].prod(1)
    pairs = Pairs(
        SCORES[classes], Q.log()[classes], classes[:, 1:] == truth, SCORES[classes][:, :0]
    )
    torch.testing.assert_close(
        chance @ objective.loss(pairs), objective.loss(every_class(truth))[0]
    )
    gradient = (chance[:, None] * objective.gradient(pairs)).ravel()
    found = torch.zeros(4, dtype=torch.float64).index_add(0, classes.ravel(), gradient)
    whole = objective.gradient(every_class(truth))[0]
    expected = whole[1:].clone()
    expected[truth] += whole[0]
    torch.testing.assert_close(found, expected)
