"""What every head promises. A new one is tested by its line in ``HEADS`` and its formula here.

The reference of a step is Adagrad or Adam in float64, with gradients by autograd from the formula
of the scores.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from extremax.errors import MemoryBudgetError, ModelFileError
from extremax.heads import HEADS, BagHead, Head, HeadOptions, LinearHead, SupportHead, TiedHead
from extremax.heads.bag import RATE
from extremax.heads.blocks import BYTES_PER_SCORE
from extremax.heads.tied import RATE as ADAM_RATE
from extremax.heads.tied import TEMPERATURE
from extremax.kernels.cpu.threads import limit
from extremax.rows import DenseRows, Rows, SequenceRows, Sizes, SparseRows
from extremax.tensors import Tensors

N, K, C, D = 40, 15, 9, 6
OPTIONS = HeadOptions(accumulator_start=0.5, scale=1.3, bag_size=D, dropout=0.0, seed=3)
LARGE = 1 << 30
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
Parameters = list[torch.Tensor]


class Formula(NamedTuple):
    """A head in plain torch.

    parameters:    the trained numbers of a head, as views; its accumulators in the same order.
    scores:        ξ of every class from parameters in float64 and dense rows.
    rates:         what the optimizer multiplies the learning rate by, for each of the parameters.
    adam:          whether that is Adam.
    """

    rows: Callable[[np.ndarray], Rows]
    parameters: Callable[[Any], tuple[Parameters, Parameters]]
    scores: Callable[[Any, Parameters, torch.Tensor], torch.Tensor]
    rates: Callable[[int], list[float]]
    adam: bool = False


def linear_parameters(head: LinearHead) -> tuple[Parameters, Parameters]:
    table = head.classes
    return [table.weight, table.bias], [table.weight_acc, table.bias_acc]


def bag_parameters(head: BagHead) -> tuple[Parameters, Parameters]:
    features, classes = head.features, head.classes
    return (
        [features.weight, classes.weight, classes.bias],
        [features.weight_acc, classes.weight_acc, classes.bias_acc],
    )


def support_parameters(head: SupportHead) -> tuple[Parameters, Parameters]:
    weights, accumulators = torch.from_numpy(head.weight), torch.from_numpy(head.weight_acc)
    return [weights, head.bias], [accumulators, head.bias_acc]


def linear_scores(head: Head, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
    weight, bias = parameters
    return head.options.scale * x @ weight.T + bias


def bag_scores(head: Head, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
    vectors, weight, bias = parameters
    return math.sqrt(D) * (head.options.scale * x @ vectors) @ weight.T + bias


def support_scores(head: SupportHead, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
    entries, bias = parameters
    features = torch.from_numpy(np.repeat(np.arange(x.shape[1]), np.diff(head.first)))
    weight = torch.zeros((head.n_classes, x.shape[1]), dtype=torch.float64)
    weight = weight.index_put((torch.from_numpy(head.classes), features), entries)
    return head.options.scale * x @ weight.T + bias


def tied_parameters(head: TiedHead) -> tuple[Parameters, Parameters]:
    for table in (head.items, head.steps):
        table.catch_up()
    return [head.items.values, head.steps.values], [head.items.squares, head.steps.squares]


def as_sequences(x: np.ndarray) -> SequenceRows:
    """The features that a row has, in order, as items."""
    lists = [np.flatnonzero(row) % C for row in x]
    sizes = np.array([len(one) for one in lists], np.int64)
    return SequenceRows(np.concatenate(lists).astype(np.int32), np.cumsum(sizes), sizes, C)


def tied_scores(head: TiedHead, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
    items, (back,) = parameters
    vectors, a, b = items[:, :-2], items[:, -2], items[:, -1]
    scores = []
    for row in x:
        sequence = row.nonzero()[:, 0].flip(0) % C
        weights = (a[sequence] + back[: len(sequence)]).softmax(0)
        u = (weights[:, None] * vectors[sequence]).sum(0)
        cosines = torch.nn.functional.cosine_similarity(u[None], vectors)
        scores.append(cosines / TEMPERATURE + b)
    return torch.stack(scores)


FORMULAS: dict[str, Formula] = {
    "linear": Formula(
        DenseRows, linear_parameters, linear_scores, lambda width: [width**-0.5, width**-0.5]
    ),
    # The vectors of features are not scaled by √D, and their rate is not divided by it.
    "bag": Formula(
        SparseRows.of, bag_parameters, bag_scores, lambda _: [RATE, RATE * D**-0.5, RATE * D**-0.5]
    ),
    "support": Formula(SparseRows.of, support_parameters, support_scores, lambda _: [1.0, 1.0]),
    "tied": Formula(
        as_sequences, tied_parameters, tied_scores, lambda _: [ADAM_RATE, ADAM_RATE], adam=True
    ),
}
# These have an accumulator of Adagrad for each weight, or for each row of weights.
BY_ROW = {f"{name}_by_row": name for name in ("bag", "linear")}
NAMES = sorted([*HEADS, *BY_ROW])
every_head = pytest.mark.parametrize("name", NAMES)


def kind_of(name: str) -> type[Head]:
    return HEADS[BY_ROW.get(name, name)]


def options_of(name: str) -> HeadOptions:
    return OPTIONS._replace(accumulators="row") if name in BY_ROW else OPTIONS


class Problem:
    """A head in mid-training, its rows and their labels: the same for the same arguments."""

    def __init__(
        self, name: str, n: int = N, n_features: int = K, n_classes: int = C, density: float = 0.4
    ) -> None:
        rng = np.random.default_rng(7)
        self.formula = FORMULAS[BY_ROW.get(name, name)]
        present = rng.random((n, n_features)) < density
        self.x = np.where(present, rng.standard_normal((n, n_features)), 0.0).astype(np.float32)
        self.rows = self.formula.rows(self.x)
        self.labels = rng.integers(0, n_classes, n)
        self.truth = torch.from_numpy(self.labels)
        self.head: Any = kind_of(name).create(
            self.rows, self.labels, np.arange(n), n_classes, options_of(name)
        )
        for weights, accumulators in zip(*self.formula.parameters(self.head), strict=True):
            weights.copy_(torch.from_numpy(0.5 * rng.standard_normal(weights.shape)))
            if not self.formula.adam:
                accumulators.copy_(torch.from_numpy(0.1 + rng.random(accumulators.shape)))
        # Rows and classes repeat.
        self.numbers = rng.integers(0, n, n)
        self.classes = torch.from_numpy(rng.integers(0, n_classes, (n, 4)))
        self.gradient = torch.from_numpy(rng.standard_normal((n, 4), dtype=np.float32))
        self.weights = torch.from_numpy(rng.random(n, dtype=np.float32))

    @property
    def inputs(self) -> Any:
        return self.head.inputs(self.rows, self.numbers)

    def step(self, rate: float = 0.2) -> None:
        self.head.step(self.inputs, self.classes, self.gradient, rate)

    def exact_step(self, weighted: bool = True, penalty: float = 0.0, rate: float = 0.2) -> float:
        weights = self.weights if weighted else None
        truth = self.truth[torch.from_numpy(self.numbers)]
        return self.head.exact_step(self.inputs, truth, weights, penalty, rate)

    def parameters(self) -> Parameters:
        """Weights as float64 leaves of autograd."""
        weights = self.formula.parameters(self.head)[0]
        return [tensor.double().clone().requires_grad_() for tensor in weights]

    def scores(self, parameters: Parameters, numbers: np.ndarray | None = None) -> torch.Tensor:
        x = self.x if numbers is None else self.x[numbers]
        return self.formula.scores(self.head, parameters, torch.from_numpy(x).double())

    def after(self, parameters: Parameters, loss: torch.Tensor, rate: float) -> Parameters:
        """Weights and accumulators after a step."""
        if self.formula.adam:
            return self.after_adam(parameters, loss, rate)
        accumulators = [tensor.double() for tensor in self.formula.parameters(self.head)[1]]
        gradients = torch.autograd.grad(loss, parameters)
        sums = [
            a + (g.square() if a.ndim == g.ndim else g.square().mean(1))
            for a, g in zip(accumulators, gradients, strict=True)
        ]
        rates = self.formula.rates(self.x.shape[1])
        moved = [
            (w - rate * r * g / beside(a, w).sqrt()).detach()
            for w, r, g, a in zip(parameters, rates, gradients, sums, strict=True)
        ]
        return [*moved, *sums]

    def after_adam(self, parameters: Parameters, loss: torch.Tensor, rate: float) -> Parameters:
        moved, squares = [], []
        gradients = torch.autograd.grad(loss, parameters)
        tables = self.head.items, self.head.steps
        for w, g, table, r in zip(
            parameters, gradients, tables, self.formula.rates(0), strict=True
        ):
            t = int(table.steps) + 1
            mean = 0.9 * table.means.double() + 0.1 * g
            square = 0.999 * table.squares.double() + 0.001 * g.square()
            root = (square / (1 - 0.999**t)).sqrt() + 1e-8
            moved.append((w - rate * r * mean / (1 - 0.9**t) / root).detach())
            squares.append(square)
        return [*moved, *squares]

    def assert_at(self, expected: Parameters) -> None:
        weights, accumulators = self.formula.parameters(self.head)
        for found, truth in zip([*weights, *accumulators], expected, strict=True):
            torch.testing.assert_close(found.double(), truth, **CLOSE)


def beside(accumulators: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The accumulator of each weight, or of its row."""
    return accumulators[:, None] if accumulators.ndim < weights.ndim else accumulators


def copied(head: Head) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in head.state().items()}


def state_bytes(head: Head) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in head.state().values())


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


# Scores and steps


@every_head
def test_scores_follow_the_formula_for_pairs_and_for_every_class(name: str) -> None:
    problem = Problem(name)
    expected = problem.scores(problem.parameters()).detach()
    found = problem.head.scores_all(problem.rows)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, **CLOSE)
    pairs = problem.head.scores(problem.inputs, problem.classes)
    gathered = expected[torch.from_numpy(problem.numbers)].gather(1, problem.classes)
    torch.testing.assert_close(pairs.double(), gathered, **CLOSE)
    every = torch.arange(C).repeat(N, 1)
    whole = problem.head.scores(problem.head.inputs(problem.rows), every)
    torch.testing.assert_close(whole, found, **CLOSE)


@every_head
def test_the_bias_is_the_score_of_a_row_of_zeros(name: str) -> None:
    problem = Problem(name)
    zeros = problem.formula.rows(np.zeros((2, K), np.float32))
    assert torch.equal(problem.head.scores_all(zeros), problem.head.bias.expand(2, C))


@every_head
def test_a_step_is_that_of_its_optimizer_on_the_given_gradient(name: str) -> None:
    problem = Problem(name)
    for rate in (0.3, 0.1):
        parameters = problem.parameters()
        scores = problem.scores(parameters, problem.numbers).gather(1, problem.classes)
        loss = (scores * problem.gradient.double()).sum()
        expected = problem.after(parameters, loss, rate)
        problem.step(rate)
        problem.assert_at(expected)


@every_head
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 0.05])
def test_an_exact_step_is_that_of_its_optimizer_on_the_exact_loss(
    name: str, weighted: bool, penalty: float
) -> None:
    problem = Problem(name)
    if name == "support" and penalty:
        with pytest.raises(ValueError, match="supports no regularization"):
            problem.exact_step(weighted, penalty)
        return
    parameters = problem.parameters()
    scores = problem.scores(parameters, problem.numbers)
    truth = problem.truth[torch.from_numpy(problem.numbers)][:, None]
    squares = penalty * (scores.gather(1, truth)[:, 0] ** 2 + scores.square().mean(1))
    losses = squares - scores.log_softmax(1).gather(1, truth)[:, 0]
    loss = (losses * (problem.weights.double() if weighted else 1.0)).sum()
    expected = problem.after(parameters, loss, 0.2)
    found = problem.exact_step(weighted, penalty)
    assert found == pytest.approx(float(loss.detach()), rel=1e-5)
    problem.assert_at(expected)


@every_head
@pytest.mark.parametrize("weighted", [False, True])
def test_an_exact_step_is_a_step_with_the_gradient_p_minus_y(name: str, weighted: bool) -> None:
    one, other = Problem(name), Problem(name)
    every = torch.arange(C).repeat(N, 1)
    gradient = one.head.scores(one.inputs, every).softmax(1)
    gradient[torch.arange(N), one.truth[torch.from_numpy(one.numbers)]] -= 1.0
    if weighted:
        gradient *= one.weights[:, None]
    one.head.step(one.inputs, every, gradient, 0.2)
    other.exact_step(weighted)
    for tensor, expected in zip(
        other.head.state().values(), one.head.state().values(), strict=True
    ):
        torch.testing.assert_close(tensor, expected, **CLOSE)


# The last one is the score of the true class: the loss is infinite, log Σ e^ξ is not.
@every_head
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_exact_step_whose_loss_is_not_finite_changes_nothing(name: str, bad: float) -> None:
    problem = Problem(name)
    problem.head.bias[int(problem.truth[problem.numbers[0]])] = bad
    before = copied(problem.head)
    assert not math.isfinite(problem.exact_step())
    for key, tensor in problem.head.state().items():
        assert torch.equal(tensor.nan_to_num(), before[key].nan_to_num()), key


@pytest.mark.parametrize("name", ["linear", "bag"])
def test_a_penalty_that_is_not_finite_changes_nothing(name: str) -> None:
    problem = Problem(name)
    problem.head.bias[3] = -1e25
    before = copied(problem.head)
    assert not math.isfinite(problem.exact_step(penalty=0.1))
    assert_equal(problem.head.state(), before)


decaying_heads = pytest.mark.parametrize("name", [n for n in NAMES if kind_of(n).decays])


@decaying_heads
def test_decay_is_a_proximal_step_of_the_penalty_on_the_weights(name: str) -> None:
    problem = Problem(name)
    before, state = problem.parameters()[0].detach(), copied(problem.head)
    problem.head.decay(0.7)
    weight, bias = problem.parameters()
    # W from scores: ξ = W x + b.
    scores = problem.formula.scores(problem.head, [weight, bias], torch.eye(K).double())
    penalty = 0.35 * (scores - bias).square().sum()
    (gradient,) = torch.autograd.grad(penalty, weight)
    rate = problem.formula.rates(K)[0]
    root = beside(problem.formula.parameters(problem.head)[1][0], weight).double().sqrt()
    torch.testing.assert_close(before - weight.detach(), rate / root * gradient, **CLOSE)
    assert float((before - weight.detach()).abs().max()) > 0.1
    for key in ("bias", "bias_acc", "weight_acc", "row_acc"):
        if key in state:
            assert torch.equal(problem.head.state()[key], state[key])


@decaying_heads
def test_a_huge_decay_makes_weights_zero(name: str) -> None:
    problem = Problem(name)
    problem.head.decay(1e300)
    assert not problem.formula.parameters(problem.head)[0][0].any()


@every_head
def test_only_a_head_of_class_vectors_can_be_followed(name: str) -> None:
    problem = Problem(name)
    if kind_of(name) is not LinearHead:
        with pytest.raises(ValueError, match="has no vector per class for a noise to follow"):
            _ = problem.head.vectors
        return
    vectors = problem.head.vectors
    assert vectors.n_classes == C
    assert np.array_equal(vectors.table()[:, :K], vectors.weight.numpy())
    features = torch.from_numpy(problem.x)
    torch.testing.assert_close(
        vectors.all_scores(features), problem.head.scores_all(problem.rows), **CLOSE
    )


# Probabilities


@every_head
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("k", [1, 4, C, C + 5])
def test_rankings_and_log_probabilities_are_those_of_a_softmax(
    name: str, temperature: float, k: int
) -> None:
    problem = Problem(name)
    expected = (problem.head.scores_all(problem.rows).double() / temperature).log_softmax(1)
    best = expected.topk(min(k, C)).values
    labels = problem.classes.numpy()
    wanted = expected.gather(1, problem.classes)
    arguments = problem.rows, labels, k, temperature, LARGE
    ranking, log_p = problem.head.rank_and_score(*arguments)
    alone = problem.head.topk(problem.rows, k, temperature, LARGE)
    for found in (ranking, alone):
        torch.testing.assert_close(found.log_probs.double(), best, **CLOSE)
        torch.testing.assert_close(expected.gather(1, found.labels), best, **CLOSE)
        assert all(len(row.unique()) == min(k, C) for row in found.labels)
    for values in (log_p, problem.head.log_probs(problem.rows, labels, temperature, LARGE)):
        torch.testing.assert_close(values.double(), wanted, **CLOSE)


@every_head
def test_answers_do_not_depend_on_the_budget(name: str) -> None:
    problem = Problem(name)
    head, rows, labels = problem.head, problem.rows, problem.classes.numpy()
    whole = head.rank_and_score(rows, labels, 3, 1.0, LARGE)
    one_row = BYTES_PER_SCORE * C
    for n_rows in (1, 7):
        ranking, log_p = head.rank_and_score(rows, labels, 3, 1.0, n_rows * one_row)
        assert torch.equal(ranking.labels, whole[0].labels)
        torch.testing.assert_close(log_p, whole[1], **CLOSE)
    if name == "support":
        # This one visits active classes only, and holds no scores.
        assert torch.equal(head.topk(rows, 3, 1.0, 1).labels, whole[0].labels)
        return
    for call in (
        lambda budget: head.topk(rows, 3, 1.0, budget),
        lambda budget: head.log_probs(rows, labels, 1.0, budget),
        lambda budget: head.rank_and_score(rows, labels, 3, 1.0, budget),
    ):
        with pytest.raises(MemoryBudgetError, match=f"{one_row:,} bytes.*{one_row - 1:,}"):
            call(one_row - 1)


@every_head
def test_no_rows_give_no_answers(name: str) -> None:
    problem = Problem(name)
    rows, labels = problem.rows[:0], problem.classes[:0].numpy()
    ranking, log_p = problem.head.rank_and_score(rows, labels, 3, 1.0, LARGE)
    assert ranking.labels.shape == ranking.log_probs.shape == (0, 3)
    assert log_p.shape == (0, 4)
    assert problem.head.scores_all(rows).shape == (0, C)


# Growing, saving, threads


@every_head
def test_shared_classes_follow_the_own_ones_of_each_row(name: str) -> None:
    problem = Problem(name)
    head, inputs = problem.head, problem.head.inputs(problem.rows)
    own, shared = torch.arange(N)[:, None] % C, torch.tensor([3, 0, 3])
    expected = head.scores_all(problem.rows)
    expected = torch.cat([expected.gather(1, own), expected[:, shared]], 1)
    torch.testing.assert_close(
        head.scores_shared(inputs, own, shared), expected, rtol=1e-4, atol=1e-4
    )


@every_head
def test_growing_keeps_scores_and_adds_classes_that_can_be_trained(name: str) -> None:
    problem = Problem(name)
    head, before = problem.head, problem.head.scores_all(problem.rows)
    head.grow(C + 3)
    assert head.n_classes == len(head.bias) == C + 3
    scores = head.scores_all(problem.rows)
    torch.testing.assert_close(scores[:, :C], before)
    # New classes have no weights: their scores say nothing about the row.
    if name == "tied":  # Its items begin as random vectors.
        assert torch.equal(head.bias[C:], torch.zeros(3))
    else:
        assert torch.equal(scores[:, C:], head.bias[C:].expand(N, 3))
    problem.truth = problem.truth + 3
    loss = problem.exact_step()
    for _ in range(10):
        last = problem.exact_step()
    assert last < loss
    assert head.bias[C:].isfinite().all()
    head.validate(Tensors(head.state(), "head"), C + 3, K)


@every_head
def test_a_restored_head_is_the_same_and_trains_the_same(name: str) -> None:
    problem, other = Problem(name), Problem(name)
    problem.step()
    state = copied(problem.head)
    other.head = kind_of(name).restore(state, problem.head.options)
    assert other.head.options == problem.head.options
    assert other.head.n_classes == C
    for _ in range(2):
        assert torch.equal(other.head.scores_all(other.rows), problem.head.scores_all(problem.rows))
        assert_equal(other.head.state(), problem.head.state())
        for run in (problem, other):
            run.step()
            run.exact_step()
            run.head.grow(run.head.n_classes + 1)
    # It has memory of its own.
    assert_equal(state, copied(kind_of(name).restore(state, problem.head.options)))


@every_head
def test_a_state_can_be_copied_into_a_head_of_the_same_shape(name: str) -> None:
    problem, other = Problem(name), Problem(name)
    problem.step()
    other.head.load_state(problem.head.state())
    assert_equal(other.head.state(), problem.head.state())
    other.step()
    assert not torch.equal(other.head.bias, problem.head.bias)


@every_head
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda head: pickle.loads(pickle.dumps(head))]
)
def test_a_pickled_or_copied_head_is_the_same_and_trains_the_same(
    name: str, duplicate: Callable[[Head], Head]
) -> None:
    problem, other = Problem(name), Problem(name)
    problem.exact_step()
    other.head = duplicate(problem.head)
    for run in (problem, other):
        run.step()
        run.exact_step()
    assert_equal(other.head.state(), problem.head.state())
    assert torch.equal(other.head.scores_all(other.rows), problem.head.scores_all(problem.rows))


def corruptions(state: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """States with one thing wrong, by what it is."""
    wrong: dict[str, dict[str, torch.Tensor]] = {
        "an unknown tensor": state | {"more": torch.ones(1)}
    }
    for name, tensor in state.items():
        rest = {key: value for key, value in state.items() if key != name}
        floating = tensor.dtype.is_floating_point
        wrong[f"{name} missing"] = rest
        wrong[f"{name} of another type"] = state | {name: tensor.to(torch.int32)}
        wrong[f"{name} in double precision"] = state | {name: tensor.double()}
        wrong[f"{name} too short"] = state | {name: tensor[:-1].clone()}
        wrong[f"{name} too long"] = state | {name: torch.cat([tensor, tensor[-1:]])}
        wrong[f"{name} with another dimension"] = state | {name: tensor[None].clone()}
        if tensor.ndim > 1:
            wrong[f"{name} too narrow"] = state | {name: tensor[..., :-1].clone()}
        for value in (math.nan, math.inf) if floating else (-1, 10**6, -(2**62)):
            bad = tensor.clone()
            bad.view(-1)[min(3, bad.numel() - 1)] = value
            wrong[f"{name} with {value}"] = state | {name: bad}
        if "acc" in name or ("table" in name and tensor.shape[1] == 2):
            for value in (0.0, -1.0):
                bad = tensor.clone()
                # A table has weights and accumulators side by side.
                (bad[2, 1] if bad.ndim == 3 else bad).view(-1)[1] = value
                wrong[f"{name} with an accumulator of {value}"] = state | {name: bad}
    return wrong


def accepts(name: str, state: dict[str, torch.Tensor], sizes: tuple[int, int] = (C, K)) -> bool:
    try:
        kind_of(name).validate(Tensors(state, "head"), *sizes)
    except ModelFileError as error:
        return "saved head" not in str(error)
    return True


@every_head
def test_every_damaged_state_is_refused(name: str) -> None:
    state = copied(Problem(name).head)
    assert accepts(name, state)
    damaged = corruptions(state)
    assert len(damaged) > 15
    # A head may well have taken a million steps.
    fine = [f"{key} with {10**6}" for key in state if key.endswith(".steps")]
    assert [what for what, wrong in damaged.items() if accepts(name, wrong)] == fine
    wrong_sizes = [(C + 1, K), (C - 1, K)]
    if name != "tied":  # Its features are its classes.
        wrong_sizes += [(C, K + 1), (C, K - 1)]
    assert [sizes for sizes in wrong_sizes if accepts(name, state, sizes)] == []


@pytest.mark.parametrize("name", BY_ROW)
def test_one_accumulator_per_row_halves_the_state(name: str) -> None:
    large = {"n": 60, "n_features": 200, "n_classes": 300}
    by_row, by_weight = (Problem(one, **large).head for one in (name, BY_ROW[name]))
    # Vectors of the bag are so short that biases and accumulators show.
    width = 200 if BY_ROW[name] == "linear" else D
    assert state_bytes(by_row) / state_bytes(by_weight) < 0.5 + 1 / width
    sizes = Sizes(60, 200, 300, 80.0)
    planned = [head.needs(sizes, head.options) for head in (by_row, by_weight)]
    for head, needs in zip((by_row, by_weight), planned, strict=True):
        assert needs.kept - needs.accumulators == planned[0].kept - planned[0].accumulators
        # Features have no bias.
        assert 0 <= needs.kept - state_bytes(head) <= 8 * 200


@pytest.mark.parametrize("name", BY_ROW)
def test_a_state_of_the_other_form_is_refused(name: str) -> None:
    for one, other in ((name, BY_ROW[name]), (BY_ROW[name], name)):
        with pytest.raises(ValueError, match="but there is one per"):
            kind_of(one).restore(Problem(one).head.state(), options_of(other))


@every_head
def test_the_bytes_that_are_planned_are_about_those_it_has(name: str) -> None:
    for n_features, n_classes in ((60, 30), (500, 10), (10, 400)):
        problem = Problem(name, 300, n_features, n_classes, density=0.05)
        sizes = Sizes(300, n_features, n_classes, problem.rows.nonzeros)
        needs = problem.head.needs(sizes, options_of(name))
        # Pairs of class and feature that meet more than once are counted each time.
        assert state_bytes(problem.head) <= needs.kept <= 3.0 * state_bytes(problem.head)
        assert state_bytes(problem.head) <= needs.saved <= 2.0 * state_bytes(problem.head)


@every_head
def test_bits_do_not_depend_on_the_number_of_threads(name: str) -> None:
    results = []
    for n_threads in (1, 2, 3):
        # Large enough for several chunks of every kernel.
        problem = Problem(name, 1200, 120, 1500, density=0.1)
        with limit(n_threads):
            scores = problem.head.scores(problem.inputs, problem.classes)
            problem.step()
            loss = problem.exact_step()
            ranking = problem.head.topk(problem.rows, 3, 1.0, LARGE)
        results.append((scores, loss, ranking, problem.head.state()))
    first = results[0]
    for scores, loss, ranking, state in results[1:]:
        assert torch.equal(scores, first[0])
        assert loss == first[1]
        assert torch.equal(ranking.labels, first[2].labels)
        torch.testing.assert_close(ranking.log_probs, first[2].log_probs)
        assert_equal(state, first[3])
