"""What all estimators share, and those without a learned control variate, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from extremax.discrete import (
    ESTIMATORS,
    Bernoulli,
    Categorical,
    ControlVariate,
    Exact,
    GumbelSoftmax,
    LeaveOneOutReinforce,
    Reinforce,
    RunningMeanReinforce,
    StraightThrough,
    create,
    gradients,
    measure,
    optimal_coefficient,
)
from extremax.discrete.variables import Variable

UNBIASED = [name for name, kind in ESTIMATORS.items() if kind.unbiased]
BIASED = [name for name, kind in ESTIMATORS.items() if not kind.unbiased]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(name: str, variable: Variable):
    torch.manual_seed(0)
    return create(name, variable)


def draws_of(estimator, f, variable: Variable, n_samples: int, seed: int):
    """The surrogate, and the draws that f was shown."""
    seen: list[Tensor] = []

    def watched(b: Tensor) -> Tensor:
        seen.append(b.detach().clone())
        return f(b)

    return estimator(watched, variable, n_samples, seeded(seed)), seen[0]


def leaf(variable: Variable) -> Variable:
    return type(variable)(variable.logits.clone().requires_grad_(), variable.event_dims)


def scores(variable: Variable, b: Tensor) -> Tensor:
    """∇ log p(b) of each draw by autograd, (n_samples, *logits.shape)."""
    found = []
    for one in b:
        fresh = leaf(variable)
        found.append(torch.autograd.grad(fresh.log_prob(one).sum(), fresh.logits)[0])
    return torch.stack(found)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_signature_a_surrogate_in_the_batch_shape_and_finite_gradients(name, problem) -> None:
    estimator, variable = made(name, problem.variable), leaf(problem.variable)
    for n_samples in (8, 20):
        found = estimator(problem.f, variable, n_samples=n_samples, generator=seeded())
        assert found.shape == variable.batch_shape
        (slope,) = torch.autograd.grad(found.sum(), variable.logits)
        assert slope.shape == variable.logits.shape
        assert bool(slope.isfinite().all())
        assert float(slope.abs().sum()) > 0


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_of_the_estimates_is_the_exact_gradient(name, problem) -> None:
    estimator = made(name, problem.variable)
    # Whatever it has learned meanwhile must not matter.
    for seed in range(20):
        gradients(estimator, *problem, 100, 3, seeded(seed))
    found = measure(estimator, *problem, n=8000, n_samples=3, generator=seeded(99))
    assert float(found.t.abs().max()) < 4.5


@pytest.mark.parametrize("name", BIASED)
def test_the_biased_ones_are_found_out(name, problem) -> None:
    found = measure(made(name, problem.variable), *problem, n=8000, generator=seeded())
    assert float(found.t.abs().max()) > 8


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if n != "exact"])
def test_gradients_reach_what_the_logits_and_f_are_made_of(name) -> None:
    x = torch.randn(6, 3, generator=seeded(1), dtype=torch.float64)
    weight = torch.randn(3, 4, generator=seeded(2), dtype=torch.float64).requires_grad_()
    inside = torch.randn(4, generator=seeded(3), dtype=torch.float64).requires_grad_()

    def f(b: Tensor) -> Tensor:
        return (b - inside).square().sum(-1)

    variable = Categorical(x @ weight)
    found, b = draws_of(made(name, variable), f, variable, 3, seed=4)
    by_weight, by_inside = torch.autograd.grad(found.sum(), (weight, inside), retain_graph=True)
    (by_logits,) = torch.autograd.grad(found.sum(), variable.logits)
    torch.testing.assert_close(by_weight, x.T @ by_logits)
    # 2 Σ (inside − b), averaged over draws: those that the value was computed at.
    torch.testing.assert_close(by_inside, 2 * (inside - b).sum(1).mean(0).detach())


@pytest.mark.parametrize("name", [n for n in UNBIASED if n != "exact"])
def test_the_value_of_the_surrogate_is_the_mean_of_f(name, problem) -> None:
    estimator = made(name, problem.variable)
    found, b = draws_of(estimator, problem.f, problem.variable, 4, seed=5)
    torch.testing.assert_close(found.detach(), problem.f(b).mean(0))


def test_exact_is_the_expectation_and_its_slope_on_the_toy() -> None:
    t = 0.45
    variable = Bernoulli(torch.tensor([-1.0, 0.4], dtype=torch.float64).requires_grad_())
    found = Exact()(lambda b: (b - t).square(), variable)
    theta = torch.sigmoid(variable.logits.detach())
    torch.testing.assert_close(found.detach(), theta * (1 - t) ** 2 + (1 - theta) * t**2)
    (slope,) = torch.autograd.grad(found.sum(), variable.logits)
    torch.testing.assert_close(slope, (1 - 2 * t) * theta * (1 - theta))


def test_exact_gradients_by_finite_differences(problem) -> None:
    kind, dims = type(problem.variable), problem.variable.event_dims
    logits = problem.variable.logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Exact()(problem.f, kind(x, dims)), logits)


@pytest.mark.parametrize("kind", [Bernoulli, Categorical])
def test_exact_weighs_states_as_often_as_they_are_drawn(kind) -> None:
    logits = torch.randn(2, 3, generator=seeded(6), dtype=torch.float64)
    variable = kind(logits, event_dims=1)
    n = 20_000
    drawn = variable.repeated(n).sample(seeded(7))
    assert float(variable.log_prob(_states(variable)).exp().sum(0).sub(1).abs().max()) < 1e-12
    for state in _states(variable):
        share = (drawn == state).flatten(len(drawn.shape) - len(variable.event_shape)).all(-1)
        p = variable.log_prob(state).exp()
        error = (p * (1 - p) / n).sqrt()
        assert bool(((share.double().mean(0) - p).abs() < 4.5 * error).all())


def _states(variable: Variable) -> Tensor:
    states = variable.states()
    ones = (1,) * len(variable.batch_shape)
    return states.view(len(states), *ones, *variable.event_shape).expand(
        len(states), *variable.logits.shape
    )


def test_reinforce_is_f_times_the_score(problem) -> None:
    variable = leaf(problem.variable)
    found, b = draws_of(Reinforce(), problem.f, variable, 5, seed=8)
    (slope,) = torch.autograd.grad(found.sum(), variable.logits)
    weight = variable.spread(problem.f(b))
    torch.testing.assert_close(slope, (weight * scores(variable, b)).mean(0))


def test_leave_one_out_takes_the_mean_of_the_others(problem) -> None:
    variable, n = leaf(problem.variable), 4
    found, b = draws_of(LeaveOneOutReinforce(), problem.f, variable, n, seed=9)
    (slope,) = torch.autograd.grad(found.sum(), variable.logits)
    value, score = problem.f(b), scores(variable, b)
    expected = torch.zeros_like(slope)
    for i in range(n):
        others = torch.stack([value[j] for j in range(n) if j != i]).mean(0)
        expected += variable.spread(value[i] - others) * score[i] / n
    torch.testing.assert_close(slope, expected)


def test_the_running_mean_knows_earlier_calls_only() -> None:
    variable = Bernoulli(torch.zeros(3, dtype=torch.float64).requires_grad_())
    estimator = RunningMeanReinforce(decay=0.5)

    def slope(level: float, seed: int) -> tuple[Tensor, Tensor]:
        found, b = draws_of(estimator, lambda b: level + 0 * b, variable, 1, seed)
        return torch.autograd.grad(found.sum(), variable.logits)[0], b[0] - 0.5

    for level, baseline in ((4.0, 0.0), (8.0, 4.0), (2.0, 6.0), (1.0, 4.0)):
        found, score = slope(level, seed=int(level))
        torch.testing.assert_close(found, (level - baseline) * score)
    before = float(estimator.mean)
    estimator.eval()
    slope(100.0, seed=1)
    assert float(estimator.mean) == before == 2.5
    other = RunningMeanReinforce()
    other.load_state_dict(estimator.state_dict())
    assert float(other.mean) == before


def test_the_control_variate_takes_its_coefficient_from_the_other_draws(problem) -> None:
    variable, n = leaf(problem.variable), 4
    found, b = draws_of(ControlVariate(), problem.f, variable, n, seed=10)
    (slope,) = torch.autograd.grad(found.sum(), variable.logits)
    control = scores(variable, b)
    plain = variable.spread(problem.f(b)) * control
    expected = torch.zeros_like(slope)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        h = (plain[others] * control[others]).sum(0) / control[others].square().sum(0)
        expected += (plain[i] - h * control[i]) / n
    torch.testing.assert_close(slope, expected)


def test_the_optimal_coefficient_leaves_what_correlation_does_not_explain() -> None:
    g = torch.randn(5000, 2, generator=seeded(11), dtype=torch.float64)
    noise = torch.randn(5000, 2, generator=seeded(12), dtype=torch.float64)
    f = 3.0 * g + noise * torch.tensor([0.5, 2.0], dtype=torch.float64)
    h = optimal_coefficient(f, g)
    left = (f - h * (g - g.mean(0))).var(0)
    for column in range(2):
        correlation = torch.corrcoef(torch.stack([f[:, column], g[:, column]]))[0, 1]
        share = float(left[column] / f[:, column].var())
        assert share == pytest.approx(1 - float(correlation) ** 2, rel=1e-9)
    for step in (-0.01, 0.01):
        assert bool(((f - (h + step) * g).var(0) > left).all())
    assert optimal_coefficient(f, torch.ones_like(f)).tolist() == [0.0, 0.0]


def test_gumbel_softmax_is_the_slope_at_the_relaxed_draw() -> None:
    temperature = 0.7
    for estimator, hard in ((GumbelSoftmax(0.7), False), (StraightThrough(0.7), True)):
        variable = Bernoulli(torch.tensor([0.4, -1.0], dtype=torch.float64).requires_grad_())
        found, y = draws_of(estimator, torch.sin, variable, 3, seed=13)
        (slope,) = torch.autograd.grad(found.sum(), variable.logits)
        soft = draws_of(GumbelSoftmax(0.7), torch.sin, variable, 3, seed=13)[1]
        if hard:
            torch.testing.assert_close(y, (soft > 0.5).double())
        expected = (torch.cos(y) * soft * (1 - soft) / temperature).mean(0)
        torch.testing.assert_close(slope, expected)


BERNOULLI = Bernoulli(torch.zeros(3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: GumbelSoftmax(0.0), ValueError, "temperature must be > 0, got 0"),
        (lambda: StraightThrough(-1.0), ValueError, "temperature must be > 0"),
        (lambda: RunningMeanReinforce(1.0), ValueError, r"decay must be in \[0, 1\), got 1"),
        (lambda: Reinforce()(torch.sum, BERNOULLI), ValueError, r"f must return shape \(1, 3\)"),
        (lambda: Exact()(torch.sum, BERNOULLI), ValueError, r"f must return shape \(2, 3\)"),
        (lambda: Reinforce()(lambda b: 1.0, BERNOULLI), TypeError, "f must return a torch tensor"),
        (lambda: Reinforce()(lambda b: b.long(), BERNOULLI), TypeError, "floating .* torch.int64"),
        (lambda: Exact()(lambda b: b > 0, BERNOULLI), TypeError, "f must return floating point"),
        (lambda: Reinforce()(lambda b: b / 0, BERNOULLI), ValueError, "f returned NaN"),
        (lambda: Reinforce()(torch.sin, torch.zeros(3)), TypeError, r"Bernoulli\(logits\)"),
        (lambda: Reinforce()(torch.sin, BERNOULLI, 0), ValueError, "n_samples .* >= 1, got 0"),
        (
            lambda: LeaveOneOutReinforce()(torch.sin, BERNOULLI),
            ValueError,
            "n_samples must be an integer >= 2, got 1; LeaveOneOutReinforce compares draws",
        ),
        (lambda: ControlVariate()(torch.sin, BERNOULLI), ValueError, "n_samples .* >= 2"),
        (lambda: Bernoulli(torch.tensor([math.nan])), ValueError, "logits must be finite"),
        (lambda: Categorical(torch.zeros(3, dtype=torch.int64)), TypeError, "floating point"),
        (lambda: Categorical(torch.zeros(3), event_dims=1), ValueError, "event_dims .* at most 0"),
        (lambda: create("reinforced", BERNOULLI), ValueError, "name must be one of exact"),
        (
            lambda: Exact()(torch.sum, Bernoulli(torch.zeros(20), event_dims=1)),
            ValueError,
            r"2\^20 states, more than the 65,536",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
