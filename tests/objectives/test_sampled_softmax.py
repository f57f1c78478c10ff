"""Sampled softmax: its bias, and the noises for which it is unbiased."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from extremax.objectives import Pairs, SampledSoftmax, given_others

SCORES = torch.tensor([1.0, -0.5, 2.0, 0.3, -2.0], dtype=torch.float64)
TRUE = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)


def without(q: Tensor, truth: int) -> Tensor:
    """q over the classes other than the true one."""
    others = q.clone()
    others[truth] = 0.0
    return others / others.sum()


def draws(truth: int, q: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Every (y, y'_1..y'_m) of positive probability, and its probability."""
    classes = torch.tensor(list(itertools.product(range(len(q)), repeat=m)))
    classes = torch.cat([torch.full((len(classes), 1), truth), classes], 1)
    probability = q[classes[:, 1:]].prod(1)
    return classes[probability > 0], probability[probability > 0]


def mean_gradient(classes: Tensor, probability: Tensor, log_q: Tensor) -> Tensor:
    hits = classes[:, 1:] == classes[:, :1]
    pairs = Pairs(SCORES[classes], log_q, hits, torch.empty(len(classes), 0))
    gradient = probability[:, None] * SampledSoftmax().gradient(pairs)
    return torch.zeros_like(SCORES).index_add(0, classes.ravel(), gradient.ravel())


def expected_gradient(truth: int, q: Tensor, m: int) -> Tensor:
    """With m draws from q over the other classes."""
    classes, probability = draws(truth, without(q, truth), m)
    log_q = without(q, truth).log()[classes]
    log_q[:, 0] = q[truth].log()
    return mean_gradient(classes, probability, log_q)


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("truth", range(5))
def test_draws_from_the_model_itself_are_unbiased(truth: int, m: int) -> None:
    p = SCORES.softmax(0)
    exact = p - torch.nn.functional.one_hot(torch.tensor(truth), 5)
    found = expected_gradient(truth, p, m)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("truth", range(5))
def test_shared_draws_lose_the_steps_that_draw_only_the_true_class(truth: int, m: int) -> None:
    p = SCORES.softmax(0)
    exact = p - torch.nn.functional.one_hot(torch.tensor(truth), 5)
    classes, probability = draws(truth, p, m)
    found = mean_gradient(classes, probability, given_others(p.log()[classes]))
    torch.testing.assert_close(found, (1.0 - p[truth] ** m) * exact, rtol=0, atol=1e-12)


def test_uniform_draws_are_biased_and_the_bias_falls_with_their_number() -> None:
    uniform = torch.full((5,), 0.2, dtype=torch.float64)
    exact = SCORES.softmax(0)
    exact[2] -= 1.0
    found = [expected_gradient(2, uniform, m) for m in (1, 2, 4, 6)]
    bias = [float((gradient - exact).abs().sum()) for gradient in found]
    assert bias[0] > bias[1] > bias[2] > bias[3] > 1e-3
    # By Jensen, the true class appears more probable than it is.
    assert all(float(gradient[2]) > float(exact[2]) for gradient in found)


def fitted(q: Tensor, m: int) -> Tensor:
    """Probabilities of the free scores that minimize the expected loss."""
    parts = [draws(truth, without(q, truth), m) for truth in range(5)]
    classes = torch.cat([classes for classes, _ in parts])
    probability = torch.cat([TRUE[truth] * p for truth, (_, p) in enumerate(parts)])
    hits, log_q = classes[:, 1:] == classes[:, :1], given_others(q.log()[classes])
    assert not hits.any()
    free = TRUE.log().requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        pairs = Pairs(free[classes], log_q, hits, torch.empty(len(classes), 0))
        total = probability @ SampledSoftmax().loss(pairs)
        total.backward()
        return total

    optimizer.step(loss)
    return free.detach().softmax(0)


def distances(power: float) -> list[float]:
    """Total variation from the data, for 1, 2, 3 and 5 draws from q ∝ p^power."""
    q = TRUE**power / (TRUE**power).sum()
    return [float((fitted(q, m) - TRUE).abs().sum() / 2) for m in (1, 2, 3, 5)]


def test_the_fitted_distribution_approaches_the_data_as_draws_grow() -> None:
    found = distances(0.0)
    assert found[0] > found[1] > found[2] > found[3] > 0.0
    # The bias of a ratio of means falls about as 1/m.
    assert found[3] < 0.4 * found[0]
    # It also falls as the noise approaches the data.
    assert all(far > near for far, near in zip(found, distances(0.7), strict=True))
    assert max(distances(1.0)) < 1e-4


def test_noise_concentrated_on_the_true_class_stays_finite() -> None:
    scores = torch.tensor([[0.5, 0.5, -1.0], [0.5, 0.5, 0.5]])
    log_q = torch.tensor([[-1e-9, -1e-9, -21.0], [1e-7, 1e-7, 1e-7]])  # Rounded above log 1.
    hits = torch.tensor([[True, False], [True, True]])
    pairs = Pairs(scores, given_others(log_q), hits, torch.empty(2, 0))
    objective = SampledSoftmax()
    assert objective.loss(pairs).isfinite().all()
    assert objective.gradient(pairs).isfinite().all()
    # Only the true class was drawn: the gradient is zero.
    assert (objective.gradient(pairs)[1] == 0.0).all()


def test_a_nearly_certain_noise_keeps_its_odds_among_the_other_classes() -> None:
    # 1 − q_y is 2^-30, below the resolution of float32 near q_y = 1; the drawn class has half of
    # that.
    log_q = given_others(torch.tensor([[-(2.0**-30), torch.log(torch.tensor(2.0**-31))]]))
    scores = torch.zeros(1, 2)
    pairs = Pairs(scores, log_q, torch.tensor([[False]]), torch.empty(1, 0))
    # A draw of probability ½ among the other classes has weight 2, the true class weight 1.
    torch.testing.assert_close(SampledSoftmax().loss(pairs), torch.log(torch.tensor([3.0])))


def test_absolute_logits_do_not_distinguish_a_score_from_its_negative() -> None:
    objective = SampledSoftmax(absolute=True, regularization=0.1)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn((9, 4), generator=generator, dtype=torch.float64)
    log_q = -3.0 * torch.rand((9, 4), generator=generator, dtype=torch.float64) - 0.1
    hits = torch.rand((9, 3), generator=generator) < 0.2
    pairs = Pairs(scores, log_q, hits, torch.empty(9, 0))
    flipped = pairs._replace(scores=-scores)
    torch.testing.assert_close(objective.loss(flipped), objective.loss(pairs))
    torch.testing.assert_close(objective.gradient(flipped), -objective.gradient(pairs))
    plain = SampledSoftmax(regularization=0.1)
    same = pairs._replace(scores=scores.abs())
    torch.testing.assert_close(objective.loss(pairs), plain.loss(same))
    torch.testing.assert_close(objective.logits(scores, log_q), scores.abs())
    free = scores.clone().requires_grad_()
    objective.loss(pairs._replace(scores=free)).sum().backward()
    torch.testing.assert_close(objective.gradient(pairs), free.grad)
