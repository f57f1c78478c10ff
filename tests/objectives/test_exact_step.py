"""The exact step of the linear head, against autograd and Adagrad in float64, and in a fit."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from extremax import ExtremeClassifier
from extremax.heads import LinearHead, linear
from extremax.kernels.cpu.threads import limit
from extremax.objectives import ExactSoftmax, Pairs, fit_exact
from extremax.rows import DenseRows
from extremax.softmax import cross_entropy

RATE = 0.3


class Problem(NamedTuple):
    head: LinearHead
    features: np.ndarray
    rows: np.ndarray
    truth: Tensor
    weights: Tensor | None


def parameters(head: LinearHead) -> dict[str, Tensor]:
    names = ("weight", "bias", "weight_acc", "bias_acc")
    return {name: getattr(head.classes, name) for name in names}


def make(n: int, n_features: int, n_classes: int, weighted: bool, seed: int) -> Problem:
    """A partly trained head; some rows occur twice, classes many times."""
    rng = np.random.default_rng(seed)
    head = LinearHead(n_classes, n_features, accumulator_start=1.0, scale=0.7)
    for name, tensor in parameters(head).items():
        values = rng.standard_normal(tuple(tensor.shape), dtype=np.float32)
        tensor.copy_(torch.from_numpy(values**2 + 0.1 if name.endswith("acc") else values))
    features = rng.standard_normal((n + 3, n_features), dtype=np.float32)
    rows, truth = rng.integers(0, n + 3, n), torch.from_numpy(rng.integers(0, n_classes, n))
    weights = torch.from_numpy(rng.random(n, dtype=np.float32)) if weighted else None
    return Problem(head, features, rows, truth, weights)


problems = st.builds(
    make,
    n=st.integers(1, 20),
    n_features=st.integers(1, 9),
    n_classes=st.sampled_from([1, 2, 7, 60]),
    weighted=st.booleans(),
    seed=st.integers(0, 10**6),
)


def step(problem: Problem, penalty: float) -> float:
    head, _, _, truth, weights = problem
    return head.exact_step(inputs(problem), truth, weights, penalty, RATE)


def inputs(problem: Problem) -> Any:
    return problem.head.inputs(DenseRows(problem.features), problem.rows)


def plain_loss(problem: Problem, weight: Tensor, bias: Tensor, penalty: float) -> Tensor:
    x = torch.from_numpy(problem.features[problem.rows]).double() * problem.head.scale
    scores = x @ weight.T + bias
    true = scores.gather(1, problem.truth[:, None])[:, 0]
    loss = scores.logsumexp(1) - true + penalty * (true.square() + scores.square().mean(1))
    return (loss if problem.weights is None else loss * problem.weights.double()).sum()


def plain_step(problem: Problem, penalty: float) -> tuple[float, dict[str, Tensor]]:
    """Loss and parameters after one step of torch's Adagrad, in float64."""
    state = {name: tensor.double().clone() for name, tensor in parameters(problem.head).items()}
    free = [state[name].requires_grad_() for name in ("weight", "bias")]
    rate = RATE / math.sqrt(problem.features.shape[1])
    optimizer = torch.optim.Adagrad(free, lr=rate, eps=0.0)
    for name, parameter in zip(("weight_acc", "bias_acc"), free, strict=True):
        optimizer.state[parameter]["sum"].copy_(state[name])
    loss = plain_loss(problem, *free, penalty)
    loss.backward()
    optimizer.step()
    for name, parameter in zip(("weight_acc", "bias_acc"), free, strict=True):
        state[name] = optimizer.state[parameter]["sum"]
    return float(loss.detach()), {name: tensor.detach() for name, tensor in state.items()}


@settings(deadline=None, max_examples=40)
@given(problem=problems, penalty=st.sampled_from([0.0, 0.05]), size=st.sampled_from([1, 50, 10**6]))
def test_it_matches_autograd_and_adagrad_for_any_block_size(
    problem: Problem, penalty: float, size: int
) -> None:
    loss, state = plain_step(problem, penalty)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "_EXACT_SCORES", size)
        found = step(problem, penalty)
    assert found == pytest.approx(loss, rel=1e-4, abs=1e-4)
    for name, tensor in parameters(problem.head).items():
        torch.testing.assert_close(tensor.double(), state[name], rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(problem=problems, penalty=st.sampled_from([0.0, 0.05]))
def test_its_loss_equals_the_objective_over_every_class(problem: Problem, penalty: float) -> None:
    head, _, _, truth, weights = problem
    every = torch.arange(head.n_classes).repeat(len(truth), 1)
    classes = torch.cat([truth[:, None], every], 1)
    scores = head.scores(inputs(problem), classes)
    pairs = Pairs(scores, torch.zeros_like(scores), every == truth[:, None], scores[:, :0])
    loss = ExactSoftmax(regularization=penalty).loss(pairs)
    expected = float((loss if weights is None else loss * weights).sum())
    assert step(problem, penalty) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_single_class_leaves_the_head_unchanged() -> None:
    problem = make(9, 4, 1, False, seed=0)
    weight, bias = problem.head.weight.clone(), problem.head.bias.clone()
    assert step(problem, 0.0) == pytest.approx(0.0, abs=1e-5)
    torch.testing.assert_close(problem.head.weight, weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(problem.head.bias, bias, rtol=0, atol=1e-5)


def test_examples_of_weight_zero_have_no_effect() -> None:
    whole, half = make(12, 4, 6, True, seed=1), make(12, 4, 6, True, seed=1)
    assert whole.weights is not None
    assert half.weights is not None
    whole.weights[6:] = 0.0
    half = half._replace(rows=half.rows[:6], truth=half.truth[:6], weights=half.weights[:6])
    assert step(whole, 0.01) == pytest.approx(step(half, 0.01), rel=1e-5)
    for name, tensor in whole.head.state().items():
        torch.testing.assert_close(tensor, half.head.state()[name])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("size", [1, 10**6])
def test_features_that_are_not_finite_leave_the_head_unchanged(
    bad: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_EXACT_SCORES", size)
    problem = make(5, 4, 6, False, seed=2)
    problem.features[problem.rows[0], 1] = bad
    before = {name: tensor.clone() for name, tensor in problem.head.state().items()}
    assert not math.isfinite(step(problem, 0.0))
    assert all(torch.equal(tensor, before[k]) for k, tensor in problem.head.state().items())


@pytest.mark.parametrize("shape", [(700, 33, 900), (7, 20, 300), (1000, 10, 60), (32, 3, 3001)])
def test_results_do_not_depend_on_the_number_of_threads(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_EXACT_SCORES", shape[0] * shape[2] // 5)
    states = []
    for n_threads in (1, 2, 3):
        with limit(n_threads):
            problem = make(*shape, True, seed=3)
            loss = step(problem, 0.01)
            assert torch.get_num_threads() == n_threads
        states.append((loss, problem.head.state()))
    for loss, state in states[1:]:
        assert loss == states[0][0]
        assert all(torch.equal(tensor, states[0][1][name]) for name, tensor in state.items())


def test_a_fit_is_as_likely_as_a_fit_by_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn((600, 4), generator=generator, dtype=torch.float64)
    logits = x @ torch.randn((4, 6), generator=generator, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    model = ExtremeClassifier(
        "exact", learning_rate=1.0, epochs=150, validation_fraction=0.0, n_jobs=1, random_state=0
    ).fit(x.float().numpy(), y.numpy())
    theirs = LogisticRegression(C=1e6, max_iter=2000).fit(x.numpy(), y.numpy())
    best = float(theirs.predict_log_proba(x.numpy())[np.arange(600), y.numpy()].mean())
    weight, bias = fit_exact(x, y, 6, learning_rate=2.0, n_epochs=1500)
    ours = model.log_likelihood(x.float().numpy(), y.numpy())
    plain = -float(cross_entropy(x @ weight.T + bias, y)) / 600
    assert plain == pytest.approx(best, abs=1e-3)
    # 25 free parameters fitted to 600 rows gain 25/1200 nat over the truth (Wilks); a tenth of that
    # is far below what the data can resolve.
    assert best - 2e-3 < ours < best + 1e-5
    assert type(model.model_.objective) is ExactSoftmax
    assert model.predict_proba(x.float().numpy()[:5]).sum(1) == pytest.approx(1.0)
