"""REBAR and RELAX against their published formulas by plain autograd, and their learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from extremax.discrete import (
    Bernoulli,
    Categorical,
    Rebar,
    Reinforce,
    Relax,
    gradients,
    measure,
    variance_ratio,
)
from extremax.discrete.variables import Variable


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def estimate_and_z(estimator, f, variable: Variable, seed: int) -> tuple[Tensor, Tensor]:
    """The estimate, and the z passed to the control variate."""
    recorded: list[Tensor] = []
    original = estimator.control

    def recording(f, z, variable):
        recorded.append(z.detach().clone())
        return original(f, z, variable)

    estimator.control = recording
    estimate = gradients(estimator, f, variable, 1, 1, seeded(seed))[0]
    estimator.control = original
    return estimate, recorded[0].reshape(variable.logits.shape)


def bernoulli_pair(logits: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(z, z̃, log p(b)) as functions of the logits, by u and v (Tucker et al. 2017)."""
    theta = torch.sigmoid(logits)
    u = torch.sigmoid(z - logits).detach()
    b = (z > 0).double()
    fixed = theta.detach()
    v = torch.where(b == 1, (u - (1 - fixed)) / fixed, u / (1 - fixed))
    v_given_b = torch.where(b == 1, v * theta + (1 - theta), v * (1 - theta))
    tilde = torch.logit(theta) + torch.logit(v_given_b)
    log_p = (b * theta.log() + (1 - b) * (1 - theta).log()).sum()
    return torch.logit(theta) + torch.logit(u), tilde, log_p


def categorical_pair(logits: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for one categorical variable, by Gumbels and v (Xu 2019)."""
    p = torch.softmax(logits, -1)
    k = int(z.argmax())
    noise = (z - p.log()).detach()
    v_k = torch.exp(-torch.exp(-z[k]))
    v = torch.exp(-p.detach() * (torch.exp(-z) - torch.exp(-z[k])))
    others = -torch.log(-torch.log(v) / p - torch.log(v_k))
    tilde = torch.where(torch.arange(len(z)) == k, -torch.log(-torch.log(v_k)), others)
    return p.log() + noise, tilde, p[k].log()


CASES = {
    "bernoulli": (
        Bernoulli(torch.tensor([0.4, -1.0, 1.5], dtype=torch.float64), event_dims=1),
        bernoulli_pair,
        torch.sigmoid,
    ),
    "categorical": (
        Categorical(torch.tensor([0.4, -1.0, 1.5, 0.0], dtype=torch.float64)),
        categorical_pair,
        lambda z: torch.softmax(z, -1),
    ),
}


def f(b: Tensor) -> Tensor:
    return torch.sin(1.0 + 2.0 * b.cumsum(-1)).sum(-1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(6))
def test_rebar_follows_its_formula(case: str, seed: int) -> None:
    variable, pair, soften = CASES[case]
    temperature, eta = 0.6, 0.8
    estimate, z = estimate_and_z(Rebar(temperature, eta).eval(), f, variable, seed)
    logits = variable.logits.clone().requires_grad_()
    z_of, tilde_of, log_p = pair(logits, z)
    torch.testing.assert_close(z_of.detach(), z)
    torch.testing.assert_close(tilde_of.detach(), z, rtol=1e-6, atol=1e-6)
    value = f(variable.harden(z))
    relaxed, relaxed_tilde = f(soften(z_of / temperature)), f(soften(tilde_of / temperature))
    weight = (value - eta * relaxed_tilde).detach()
    total = weight * log_p + eta * relaxed - eta * relaxed_tilde
    (expected,) = torch.autograd.grad(total, logits)
    # η and τ are stored in float32.
    torch.testing.assert_close(estimate, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("through_f", [False, True])
def test_relax_follows_its_formula(case: str, through_f: bool) -> None:
    variable, pair, soften = CASES[case]
    torch.manual_seed(1)
    estimator = Relax(variable.event_size, through_f=through_f, temperature=0.6).double().eval()
    torch.nn.init.normal_(estimator.network[2].weight)
    estimate, z = estimate_and_z(estimator, f, variable, seed=2)
    logits = variable.logits.clone().requires_grad_()
    z_of, tilde_of, log_p = pair(logits, z)

    def control(z: Tensor) -> Tensor:
        learned = estimator.network(z)[0]
        return learned + f(soften(z / 0.6)) if through_f else learned

    weight = (f(variable.harden(z)) - control(tilde_of)).detach()
    total = weight * log_p + control(z_of) - control(tilde_of)
    (expected,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(estimate, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_learning_descends_the_squared_estimate(case: str) -> None:
    variable = CASES[case][0]
    estimator = Rebar(0.6, 0.8).double()
    start = {name: float(p.detach()) for name, p in estimator.named_parameters()}
    # One gradient step of size one reveals the gradient itself.
    estimator.optimizer = torch.optim.SGD(estimator.parameters(), lr=1.0)
    gradients(estimator, f, variable, 50, 2, seeded(3))
    step = {name: start[name] - float(p.detach()) for name, p in estimator.named_parameters()}

    def squared(name: str, value: float) -> float:
        fixed = Rebar(0.6, 0.8).double().eval()
        getattr(fixed, name).data.fill_(value)
        copies = variable.repeated(50)
        # Estimates from single draws: the same random numbers, draws as a leading dimension.
        inner = type(variable)(
            copies.logits.detach().expand(2, *copies.logits.shape), variable.event_dims
        )
        return float(gradients(fixed, f, inner, 1, 1, seeded(3)).square().mean())

    for name, value in start.items():
        gradient = (squared(name, value + 1e-5) - squared(name, value - 1e-5)) / 2e-5
        assert step[name] == pytest.approx(gradient, rel=1e-4)
        assert abs(gradient) > 1e-4


@pytest.mark.parametrize("case", CASES)
def test_learning_lowers_the_variance_below_reinforce(case: str) -> None:
    variable = CASES[case][0]
    plain = measure(Reinforce(), f, variable, n=20_000, generator=seeded(4))
    for kind in (Rebar(), Relax(variable.event_size), Relax(variable.event_size, through_f=True)):
        torch.manual_seed(2)
        before = measure(kind, f, variable, n=20_000, generator=seeded(4))
        for seed in range(300):
            gradients(kind, f, variable, 100, 1, seeded(seed))
        after = measure(kind, f, variable, n=20_000, generator=seeded(4))
        assert variance_ratio(after, before)[2] < 1
        assert variance_ratio(after, plain)[2] < 1


def test_evaluation_mode_turns_learning_off_and_measuring_restores_the_mode() -> None:
    variable = CASES["bernoulli"][0]
    estimator = Relax(3).eval()
    before = {name: value.clone() for name, value in estimator.state_dict().items()}
    gradients(estimator, f, variable, 10, 1, seeded())
    estimator.train()
    measure(estimator, f, variable, n=100, generator=seeded())
    assert estimator.training
    for name, value in estimator.state_dict().items():
        assert torch.equal(value, before[name])
    gradients(estimator, f, variable, 10, 1, seeded())
    assert not torch.equal(estimator.network[2].weight, before["network.2.weight"])


def test_learning_does_not_change_the_parameters_of_f() -> None:
    parameter = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    variable = CASES["categorical"][0]
    estimator = Rebar()
    estimator(lambda b: (b - parameter).square().sum(-1), variable, 2, seeded())
    assert parameter.grad is None
    assert all(p.grad is None for p in estimator.parameters())


def test_relax_accepts_a_black_box_f() -> None:
    def black_box(b: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(b.numpy()).sum(-1))

    variable = CASES["categorical"][0]
    torch.manual_seed(3)
    estimator = Relax(4)
    before = measure(estimator, black_box, variable, n=8000, generator=seeded(5))
    for seed in range(50):
        gradients(estimator, black_box, variable, 20, 1, seeded(seed))
    after = measure(estimator, black_box, variable, n=8000, generator=seeded(5))
    assert float(after.t.abs().max()) < 4.5
    assert variance_ratio(after, before)[2] < 1


def test_extreme_logits_in_float32_give_finite_estimates() -> None:
    for variable in (
        Bernoulli(torch.tensor([-200.0, -30.0, 30.0, 200.0])),
        Categorical(torch.tensor([[0.0, 300.0, -300.0], [0.0, 30.0, -30.0]])),
    ):
        dims = variable.class_dims
        for estimator in (Rebar(), Relax(variable.event_size)):
            estimates = gradients(
                estimator, lambda b, dims=dims: b.square().sum(-1) if dims else b.square(),
                variable, 2000, 1, seeded(6),
            )  # fmt: skip
            assert bool(estimates.isfinite().all())
            assert all(bool(p.isfinite().all()) for p in estimator.parameters())


def test_errors_name_the_argument() -> None:
    variable = CASES["categorical"][0]
    with pytest.raises(ValueError, match=r"f is not differentiable .* which Rebar needs"):
        Rebar()(lambda b: f(b.detach()), variable)
    with pytest.raises(ValueError, match=r"size is 3, .* has 4 elements; use Relax\(4\)"):
        Relax(3)(f, variable)
    with pytest.raises(ValueError, match="temperature must be > 0"):
        Rebar(temperature=0.0)
    with pytest.raises(ValueError, match="learning_rate must be > 0"):
        Rebar(learning_rate=0.0)
    with pytest.raises(ValueError, match="size must be an integer >= 1"):
        Relax(0)
