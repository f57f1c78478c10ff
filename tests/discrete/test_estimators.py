"""The contract of all estimators, and those without learned control variates against loops."""

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


def make(name: str, variable: Variable):
    torch.manual_seed(0)
    return create(name, variable)


def surrogate_and_draws(estimator, f, variable: Variable, n_samples: int, seed: int):
    """The surrogate, and the draws passed to f."""
    recorded: list[Tensor] = []

    def recording(b: Tensor) -> Tensor:
        recorded.append(b.detach().clone())
        return f(b)

    return estimator(recording, variable, n_samples, seeded(seed)), recorded[0]


def leaf(variable: Variable) -> Variable:
    return type(variable)(variable.logits.clone().requires_grad_(), variable.event_dims)


def scores(variable: Variable, b: Tensor) -> Tensor:
    """∇ log p(b) of each draw by autograd, (n_samples, *logits.shape)."""
    rows = []
    for draw in b:
        copy = leaf(variable)
        rows.append(torch.autograd.grad(copy.log_prob(draw).sum(), copy.logits)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_surrogates_have_the_batch_shape_and_finite_gradients(name, problem) -> None:
    estimator, variable = make(name, problem.variable), leaf(problem.variable)
    for n_samples in (8, 20):
        surrogate = estimator(problem.f, variable, n_samples=n_samples, generator=seeded())
        assert surrogate.shape == variable.batch_shape
        (gradient,) = torch.autograd.grad(surrogate.sum(), variable.logits)
        assert gradient.shape == variable.logits.shape
        assert bool(gradient.isfinite().all())
        assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_of_the_estimates_is_the_exact_gradient(name, problem) -> None:
    estimator = make(name, problem.variable)
    # What the estimator has learned must not matter.
    for seed in range(20):
        gradients(estimator, *problem, 100, 3, seeded(seed))
    measurement = measure(estimator, *problem, n=8000, n_samples=3, generator=seeded(99))
    assert float(measurement.t.abs().max()) < 4.5


@pytest.mark.parametrize("name", BIASED)
def test_the_bias_of_biased_estimators_is_detected(name, problem) -> None:
    measurement = measure(make(name, problem.variable), *problem, n=8000, generator=seeded())
    assert float(measurement.t.abs().max()) > 8


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if n != "exact"])
def test_gradients_reach_the_parameters_of_the_logits_and_of_f(name) -> None:
    x = torch.randn(6, 3, generator=seeded(1), dtype=torch.float64)
    weight = torch.randn(3, 4, generator=seeded(2), dtype=torch.float64).requires_grad_()
    target = torch.randn(4, generator=seeded(3), dtype=torch.float64).requires_grad_()

    def f(b: Tensor) -> Tensor:
        return (b - target).square().sum(-1)

    variable = Categorical(x @ weight)
    surrogate, b = surrogate_and_draws(make(name, variable), f, variable, 3, seed=4)
    by_weight, by_target = torch.autograd.grad(surrogate.sum(), (weight, target), retain_graph=True)
    (by_logits,) = torch.autograd.grad(surrogate.sum(), variable.logits)
    torch.testing.assert_close(by_weight, x.T @ by_logits)
    # 2 Σ (target − b), averaged over the draws at which f was evaluated.
    torch.testing.assert_close(by_target, 2 * (target - b).sum(1).mean(0).detach())


@pytest.mark.parametrize("name", [n for n in UNBIASED if n != "exact"])
def test_the_value_of_the_surrogate_is_the_mean_of_f(name, problem) -> None:
    estimator = make(name, problem.variable)
    surrogate, b = surrogate_and_draws(estimator, problem.f, problem.variable, 4, seed=5)
    torch.testing.assert_close(surrogate.detach(), problem.f(b).mean(0))


def test_exact_gives_the_expectation_and_gradient_of_the_toy() -> None:
    t = 0.45
    variable = Bernoulli(torch.tensor([-1.0, 0.4], dtype=torch.float64).requires_grad_())
    surrogate = Exact()(lambda b: (b - t).square(), variable)
    theta = torch.sigmoid(variable.logits.detach())
    torch.testing.assert_close(surrogate.detach(), theta * (1 - t) ** 2 + (1 - theta) * t**2)
    (gradient,) = torch.autograd.grad(surrogate.sum(), variable.logits)
    torch.testing.assert_close(gradient, (1 - 2 * t) * theta * (1 - theta))


def test_exact_gradients_match_finite_differences(problem) -> None:
    kind, dims = type(problem.variable), problem.variable.event_dims
    logits = problem.variable.logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Exact()(problem.f, kind(x, dims)), logits)


@pytest.mark.parametrize("kind", [Bernoulli, Categorical])
def test_states_are_drawn_as_often_as_exact_weighs_them(kind) -> None:
    logits = torch.randn(2, 3, generator=seeded(6), dtype=torch.float64)
    variable = kind(logits, event_dims=1)
    n = 20_000
    drawn = variable.repeated(n).sample(seeded(7))
    assert (
        float(variable.log_prob(expanded_states(variable)).exp().sum(0).sub(1).abs().max()) < 1e-12
    )
    for state in expanded_states(variable):
        equal = (drawn == state).flatten(len(drawn.shape) - len(variable.event_shape)).all(-1)
        p = variable.log_prob(state).exp()
        error = (p * (1 - p) / n).sqrt()
        assert bool(((equal.double().mean(0) - p).abs() < 4.5 * error).all())


def expanded_states(variable: Variable) -> Tensor:
    states = variable.states()
    ones = (1,) * len(variable.batch_shape)
    return states.view(len(states), *ones, *variable.event_shape).expand(
        len(states), *variable.logits.shape
    )


def test_reinforce_is_f_times_the_score(problem) -> None:
    variable = leaf(problem.variable)
    surrogate, b = surrogate_and_draws(Reinforce(), problem.f, variable, 5, seed=8)
    (gradient,) = torch.autograd.grad(surrogate.sum(), variable.logits)
    weight = variable.spread(problem.f(b))
    torch.testing.assert_close(gradient, (weight * scores(variable, b)).mean(0))


def test_leave_one_out_takes_the_mean_of_the_others(problem) -> None:
    variable, n = leaf(problem.variable), 4
    surrogate, b = surrogate_and_draws(LeaveOneOutReinforce(), problem.f, variable, n, seed=9)
    (gradient,) = torch.autograd.grad(surrogate.sum(), variable.logits)
    value, score = problem.f(b), scores(variable, b)
    expected = torch.zeros_like(gradient)
    for i in range(n):
        others = torch.stack([value[j] for j in range(n) if j != i]).mean(0)
        expected += variable.spread(value[i] - others) * score[i] / n
    torch.testing.assert_close(gradient, expected)


def test_the_running_mean_uses_earlier_calls_only() -> None:
    variable = Bernoulli(torch.zeros(3, dtype=torch.float64).requires_grad_())
    estimator = RunningMeanReinforce(decay=0.5)

    def gradient(level: float, seed: int) -> tuple[Tensor, Tensor]:
        surrogate, b = surrogate_and_draws(estimator, lambda b: level + 0 * b, variable, 1, seed)
        return torch.autograd.grad(surrogate.sum(), variable.logits)[0], b[0] - 0.5

    for level, baseline in ((4.0, 0.0), (8.0, 4.0), (2.0, 6.0), (1.0, 4.0)):
        estimate, score = gradient(level, seed=int(level))
        torch.testing.assert_close(estimate, (level - baseline) * score)
    before = float(estimator.mean)
    estimator.eval()
    gradient(100.0, seed=1)
    assert float(estimator.mean) == before == 2.5
    other = RunningMeanReinforce()
    other.load_state_dict(estimator.state_dict())
    assert float(other.mean) == before


def test_the_control_variate_takes_its_coefficient_from_the_other_draws(problem) -> None:
    variable, n = leaf(problem.variable), 4
    surrogate, b = surrogate_and_draws(ControlVariate(), problem.f, variable, n, seed=10)
    (gradient,) = torch.autograd.grad(surrogate.sum(), variable.logits)
    control = scores(variable, b)
    plain = variable.spread(problem.f(b)) * control
    expected = torch.zeros_like(gradient)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        h = (plain[others] * control[others]).sum(0) / control[others].square().sum(0)
        expected += (plain[i] - h * control[i]) / n
    torch.testing.assert_close(gradient, expected)


def test_the_optimal_coefficient_leaves_the_unexplained_variance() -> None:
    g = torch.randn(5000, 2, generator=seeded(11), dtype=torch.float64)
    noise = torch.randn(5000, 2, generator=seeded(12), dtype=torch.float64)
    f = 3.0 * g + noise * torch.tensor([0.5, 2.0], dtype=torch.float64)
    h = optimal_coefficient(f, g)
    left = (f - h * (g - g.mean(0))).var(0)
    for column in range(2):
        correlation = torch.corrcoef(torch.stack([f[:, column], g[:, column]]))[0, 1]
        fraction = float(left[column] / f[:, column].var())
        assert fraction == pytest.approx(1 - float(correlation) ** 2, rel=1e-9)
    for step in (-0.01, 0.01):
        assert bool(((f - (h + step) * g).var(0) > left).all())
    assert optimal_coefficient(f, torch.ones_like(f)).tolist() == [0.0, 0.0]


def test_gumbel_softmax_gives_the_gradient_at_the_relaxed_draw() -> None:
    temperature = 0.7
    for estimator, hard in ((GumbelSoftmax(0.7), False), (StraightThrough(0.7), True)):
        variable = Bernoulli(torch.tensor([0.4, -1.0], dtype=torch.float64).requires_grad_())
        surrogate, y = surrogate_and_draws(estimator, torch.sin, variable, 3, seed=13)
        (gradient,) = torch.autograd.grad(surrogate.sum(), variable.logits)
        soft = surrogate_and_draws(GumbelSoftmax(0.7), torch.sin, variable, 3, seed=13)[1]
        if hard:
            torch.testing.assert_close(y, (soft > 0.5).double())
        expected = (torch.cos(y) * soft * (1 - soft) / temperature).mean(0)
        torch.testing.assert_close(gradient, expected)


BERNOULLI = Bernoulli(torch.zeros(3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: GumbelSoftmax(0.0), ValueError, "temperature must be > 0, got 0"),
        (lambda: StraightThrough(-1.0), ValueError, "temperature must be > 0"),
        (lambda: RunningMeanReinforce(1.0), ValueError, r"decay must be in \[0, 1\), got 1"),
        (lambda: Reinforce()(torch.sum, BERNOULLI), ValueError, r"f must return shape \(1, 3\)"),
        (lambda: Exact()(torch.sum, BERNOULLI), ValueError, r"f must return shape \(2, 3\)"),
        (
            lambda: Reinforce()(lambda b: 1.0, BERNOULLI),
            TypeError,
            "the result of f must be a torch tensor",
        ),
        (lambda: Reinforce()(lambda b: b.long(), BERNOULLI), TypeError, "floating .* torch.int64"),
        (
            lambda: Exact()(lambda b: b > 0, BERNOULLI),
            TypeError,
            "the result of f must be floating point",
        ),
        (
            lambda: Reinforce()(lambda b: b / 0, BERNOULLI),
            ValueError,
            "the result of f must be finite",
        ),
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
def test_errors_name_the_argument(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
