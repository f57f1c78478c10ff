"""The numba step of the linear head against the reference, under several numbers of threads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extremax.heads import LinearHead, table
from extremax.kernels.cpu import head as kernel
from extremax.kernels.cpu.threads import limit, parallel
from extremax.rows import DenseRows
from tests import reference


class Problem(NamedTuple):
    head: LinearHead
    features: np.ndarray
    rows: np.ndarray
    classes: torch.Tensor
    gradient: torch.Tensor

    def parts(self) -> list[torch.Tensor]:
        classes = self.head.classes
        return [classes.weight, classes.bias, classes.weight_acc, classes.bias_acc]

    def doubles(self) -> list[torch.Tensor]:
        return [tensor.double() for tensor in self.parts()]

    def batch(self) -> torch.Tensor:
        return torch.from_numpy(self.features[self.rows]).double()

    def scores(self) -> torch.Tensor:
        return self.head.pair_scores(self.features, self.rows, self.classes)

    def step(self, rate: float) -> None:
        inputs = self.head.inputs(DenseRows(self.features), self.rows)
        self.head.step(inputs, self.classes, self.gradient, rate)


def make(
    n: int, m: int, n_features: int, n_classes: int, seed: int, accumulators: str = "weight"
) -> Problem:
    """A head in mid-training and a batch of n examples; some of their rows occur twice."""
    rng = np.random.default_rng(seed)
    head = LinearHead(n_classes, n_features, 1.0, 0.7, accumulators)
    for tensor in (head.weight, head.bias):
        tensor.copy_(torch.from_numpy(rng.standard_normal(tensor.shape, dtype=np.float32)))
    for tensor in (head.classes.weight_acc, head.classes.bias_acc):
        values = rng.standard_normal(tensor.shape, dtype=np.float32)
        tensor.copy_(torch.from_numpy(values**2 + 0.1))
    features = rng.standard_normal((n + 5, n_features), dtype=np.float32)
    rows = rng.integers(0, n + 5, n)
    classes = torch.from_numpy(rng.integers(0, n_classes, (n, 1 + m)))
    gradient = torch.from_numpy(rng.standard_normal((n, 1 + m), dtype=np.float32))
    return Problem(head, features, rows, classes, gradient)


problems = st.builds(
    make,
    n=st.integers(1, 30),
    m=st.integers(0, 5),
    n_features=st.integers(1, 70),
    # One class, few classes (each many times in a batch), or more than a batch can touch.
    n_classes=st.sampled_from([1, 2, 7, 500]),
    seed=st.integers(0, 10**6),
    accumulators=st.sampled_from(["weight", "row"]),
)
both_forms = pytest.mark.parametrize("accumulators", ["weight", "row"])


@settings(deadline=None, max_examples=40)
@given(problems)
def test_scores_equal_the_reference(problem: Problem) -> None:
    weight, bias, _, _ = problem.doubles()
    expected = reference.score_pairs(weight, bias, problem.batch(), problem.classes, 0.7)
    scores = problem.scores()
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=2e-5)
    dense = problem.head.scores_all(DenseRows(problem.features[problem.rows]))
    torch.testing.assert_close(dense.gather(1, problem.classes), scores, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("n_classes", [1, 2, 3, 1000, 10_000_000])
def test_groups_are_a_stable_sort(n_classes: int) -> None:
    classes = np.random.default_rng(0).integers(n_classes, size=700)
    classes[::7] = n_classes - 1
    order, starts = np.empty(700, np.int64), np.empty(701, np.int64)
    n_groups = kernel.group_by_class(classes, n_classes, order, starts)
    np.testing.assert_array_equal(order, np.argsort(classes, kind="stable"))
    expected = np.unique(np.sort(classes), return_index=True)[1]
    np.testing.assert_array_equal(starts[: n_groups + 1], [*expected, 700])


@settings(deadline=None, max_examples=40)
@given(problems, st.integers(1, 9))
def test_updates_equal_the_reference(problem: Problem, chunk: int) -> None:
    pairs = problem.classes.numpy().ravel()
    order, starts = np.empty(len(pairs), np.int64), np.empty(len(pairs) + 1, np.int64)
    n_groups = kernel.group_by_class(pairs, problem.head.n_classes, order, starts)
    expected = problem.doubles()
    before = [tensor.clone() for tensor in problem.parts()]
    groups = kernel.Groups(pairs, order, starts)
    repeated = np.repeat(problem.rows, problem.classes.shape[1])
    inputs = kernel.Inputs(problem.features, repeated, np.float32(0.7))
    for rate in (0.3, 0.1):
        reference.adagrad_step(
            *expected, problem.batch(), problem.classes, problem.gradient.double(), 0.7, rate
        )
        parallel(
            kernel.update_rows, n_groups, chunk, groups, problem.head.classes.arrays(), inputs,
            problem.gradient.numpy().ravel(), np.float32(rate),
        )  # fmt: skip
    untouched = torch.ones(problem.head.n_classes, dtype=torch.bool)
    untouched[problem.classes.unique()] = False
    for new, old, truth in zip(problem.parts(), before, expected, strict=True):
        torch.testing.assert_close(new.double(), truth, rtol=2e-5, atol=2e-5)
        assert torch.equal(new[untouched], old[untouched])
    # Accumulators may not change: the square of a small gradient is lost to rounding.
    assert not torch.equal(problem.head.weight, before[0])


@settings(deadline=None, max_examples=30)
@given(problems)
def test_a_step_of_the_head_is_the_reference_at_some_rate(problem: Problem) -> None:
    before = problem.doubles()
    truth = problem.doubles()
    reference.adagrad_step(
        *truth, problem.batch(), problem.classes, problem.gradient.double(), 0.7, 1.0
    )
    problem.step(0.5)
    after = problem.doubles()
    for old, new, expected in zip(before[:2], after[:2], truth[:2], strict=True):
        moved, direction = new - old, expected - old
        rate = float((moved * direction).sum() / (direction**2).sum())
        assert rate > 0.0
        torch.testing.assert_close(moved, rate * direction, rtol=1e-4, atol=1e-5)
    for new, expected in zip(after[2:], truth[2:], strict=True):
        torch.testing.assert_close(new, expected, rtol=2e-5, atol=2e-5)


@both_forms
@pytest.mark.parametrize("n_features", [1, 15, 16, 33, 64, 100])
def test_pairs_of_zero_gradient_change_no_bit(n_features: int, accumulators: str) -> None:
    states = []
    for n_more in (0, 2):
        problem = make(
            n=6, m=0, n_features=n_features, n_classes=6, seed=4, accumulators=accumulators
        )
        rows = np.concatenate([np.arange(6), np.arange(n_more)])
        # Every class alone, or two of them with a pair more.
        classes = torch.from_numpy(np.concatenate([np.arange(6), np.arange(n_more)]))[:, None]
        gradient = torch.cat([problem.gradient, torch.zeros((n_more, 1))])
        inputs = problem.head.inputs(DenseRows(problem.features), rows)
        problem.head.step(inputs, classes, gradient, 0.1)
        states.append(problem.head.state())
    assert [name for name in states[0] if not torch.equal(states[0][name], states[1][name])] == []


@pytest.mark.parametrize("factor", [1e-15, 1e15])
def test_a_row_accumulator_takes_features_of_any_scale(factor: float) -> None:
    plain, scaled = (make(9, 1, 50, 20, seed=3, accumulators="row") for _ in range(2))
    scaled.head.options = scaled.head.options._replace(scale=0.7 / factor)
    large = scaled._replace(features=np.float32(factor) * scaled.features)
    for problem in (plain, large):
        problem.step(0.1)
    for one, other in zip(large.parts(), plain.parts(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@both_forms
@pytest.mark.parametrize("accumulator_start", [1.0, 1e-8])
def test_a_gradient_of_zero_changes_nothing(accumulator_start: float, accumulators: str) -> None:
    problem = make(n=4, m=2, n_features=3, n_classes=4, seed=0)
    head = LinearHead(4, 3, accumulator_start, accumulators=accumulators)
    before = {name: tensor.clone() for name, tensor in head.state().items()}
    # Class 0 alone, class 1 twice, class 2 with gradients that cancel.
    classes = torch.tensor([[0], [1], [1], [2], [2]])
    gradient = torch.tensor([[0.0], [0.0], [0.0], [0.5], [-0.5]])
    rows = np.array([0, 1, 2, 3, 3])
    head.step(head.inputs(DenseRows(problem.features), rows), classes, gradient, 0.1)
    for name, tensor in head.state().items():
        assert torch.equal(tensor, before[name])


@both_forms
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_numbers_stay_visible(bad: float, accumulators: str) -> None:
    problem = make(n=6, m=1, n_features=9, n_classes=3, seed=1, accumulators=accumulators)
    problem.features[problem.rows[2], 4] = bad
    scores = problem.scores()
    hit = problem.rows == problem.rows[2]
    assert not scores[hit].isfinite().any()
    assert scores[~hit].isfinite().all()
    problem.step(0.1)
    assert not problem.head.weight[problem.classes[2, 0]].isfinite().all()


@both_forms
def test_bits_do_not_depend_on_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, accumulators: str
) -> None:
    chunks: list[int] = []
    run = table.parallel

    def spy(kernel: object, n: int, chunk: int, *args: object) -> None:
        chunks.append(-(-n // chunk))
        run(kernel, n, chunk, *args)

    monkeypatch.setattr(table, "parallel", spy)
    states, scores = [], []
    for n_threads in (1, 2, 3):
        # 18,000 pairs over 9,000 classes: most classes are touched, many of them twice or more.
        problem = make(3000, 5, 40, 9000, seed=2, accumulators=accumulators)
        with limit(n_threads):
            scores.append(problem.scores())
            problem.step(0.1)
        states.append(problem.head.state())
    assert min(chunks) > 3  # Or threads had nothing to share.
    for other in (1, 2):
        assert torch.equal(scores[0], scores[other])
        for name, tensor in states[0].items():
            assert torch.equal(tensor, states[other][name])


def test_accumulators_must_start_above_zero() -> None:
    with pytest.raises(ValueError, match="accumulator_start"):
        LinearHead(3, 2, accumulator_start=0.0)
