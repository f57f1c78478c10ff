"""The fit of one node: its derivatives, its ascent, its split."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.autograd.functional import hessian, jacobian

from extremax.kernels.cpu import tree_fit
from extremax.kernels.cpu.newton import BLOCK, ascend, exp_minus, factorize, solve
from extremax.kernels.cpu.newton import Node as KernelNode
from extremax.kernels.cpu.newton import bound as bound_curvature
from extremax.kernels.cpu.newton import curvature as curvature_of
from extremax.kernels.cpu.newton import evaluate as evaluate_node
from extremax.kernels.cpu.newton import newton as newton_ascent
from tests import reference

NO_CAP = 10**9


class Node(NamedTuple):
    """Examples sorted by class, as `tree_fit` takes them, and a side for each class."""

    z: np.ndarray
    owner: np.ndarray
    offsets: np.ndarray
    sums: np.ndarray
    zeta: np.ndarray

    @property
    def columns(self) -> np.ndarray:
        """The examples as the inner functions take them, with an end that must not matter."""
        return np.pad(self.z.T, ((0, 0), (0, 3)), constant_values=np.nan)

    @property
    def examples(self) -> tree_fit.SortedExamples:
        return tree_fit.SortedExamples(self.z, self.offsets, self.sums, NO_CAP)

    def kernel(self, penalties: np.ndarray, weight: float = 1.0) -> KernelNode:
        return KernelNode(self.columns, self.owner, self.zeta, weight, penalties)

    def truth(self, theta: np.ndarray, penalties: np.ndarray, weight: float = 1.0) -> torch.Tensor:
        return self.objective(weight, penalties)(torch.from_numpy(theta))

    def objective(self, weight: float, penalties: np.ndarray) -> Callable[..., torch.Tensor]:
        z, side = torch.from_numpy(self.z).double(), torch.from_numpy(self.zeta[self.owner])
        penalty = torch.from_numpy(penalties)
        return lambda theta: reference.newton_objective(z, side, weight, penalty, theta)


def make(n_classes: int = 14, k: int = 4, seed: int = 0, noise: float = 0.5) -> Node:
    """Classes around random centers, with one to sixty examples; the last one has none."""
    rng = np.random.default_rng(seed)
    counts = rng.geometric(0.06, n_classes).clip(max=60)
    counts[-1] = 0
    owner = np.repeat(np.arange(n_classes), counts)
    z = rng.standard_normal((n_classes, k))[owner]
    z = (z + noise * rng.standard_normal((len(owner), k))).astype(np.float32)
    sums = np.zeros((n_classes, k))
    np.add.at(sums, owner, z)
    zeta = rng.permutation(np.arange(n_classes) % 2 * 2 - 1).astype(np.int8)
    return Node(z, owner, np.append(0, counts.cumsum()), sums, zeta)


def evaluate(
    node: Node, theta: np.ndarray, penalties: np.ndarray, weight: float = 1.0
) -> tuple[float, np.ndarray, np.ndarray]:
    gradient, curvature = np.empty(len(theta)), np.empty((len(theta), len(theta)))
    slack = np.empty(len(node.z), np.float32)
    value = evaluate_node(node.kernel(penalties, weight), theta, gradient, slack)
    curvature_of(node.kernel(penalties, weight), slack, curvature)
    upper = np.triu(curvature)
    return value, gradient, upper + np.triu(upper, 1).T


def newton(node: Node, start: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    theta, factor = start.copy(), np.empty((len(start), len(start)))
    newton_ascent(node.kernel(penalties), theta, factor, True)
    return theta


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6), st.integers(1, 20), st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    st.sampled_from([1.0, 2.5]),
)  # fmt: skip
def test_value_gradient_and_curvature_are_those_of_autograd(
    seed: int, k: int, size: float, weight: float
) -> None:
    node = make(k=k, seed=seed)
    penalties = np.array([2.0, 0.1])
    theta = size * np.random.default_rng(seed).standard_normal(k + 1)
    value, gradient, curvature = evaluate(node, theta, penalties, weight)
    objective, at = node.objective(weight, penalties), torch.from_numpy(theta)
    # Activations and curvature are summed in float32: some digits of the largest term are left.
    assert value == pytest.approx(float(objective(at)), rel=1e-5, abs=1e-4)
    true_gradient = jacobian(objective, at).numpy()
    np.testing.assert_allclose(gradient, true_gradient, rtol=1e-4, atol=1e-3 * weight)
    true_curvature = -hessian(objective, at).numpy()
    np.testing.assert_allclose(curvature, true_curvature, rtol=1e-4, atol=1e-3 * weight)


@pytest.mark.parametrize("k", [1, 4, 7])
def test_many_examples_are_summed_in_blocks(k: int) -> None:
    node, penalties = make(n_classes=100, k=k, seed=1), np.array([2.0, 0.1])
    assert len(node.z) > 2 * BLOCK
    theta = np.random.default_rng(0).standard_normal(k + 1)
    value, gradient, curvature = evaluate(node, theta, penalties)
    objective, at = node.objective(1.0, penalties), torch.from_numpy(theta)
    assert value == pytest.approx(float(objective(at)), rel=1e-5)
    np.testing.assert_allclose(gradient, jacobian(objective, at).numpy(), rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(curvature, -hessian(objective, at).numpy(), rtol=1e-4, atol=1e-2)


def test_the_exponential_is_as_good_as_float32() -> None:
    x = np.append(np.linspace(0, 55, 20_001), [60.0, 1e4, 1e30]).astype(np.float32)
    expected = np.exp(-np.minimum(x, 55).astype(np.float64))
    found = np.array([exp_minus(each) for each in x])
    np.testing.assert_allclose(found, expected, rtol=1.2e-7)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 20), st.integers(0, 10**6))
def test_solve_solves(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((n, n))
    matrix, vector = half @ half.T + 0.1 * np.eye(n), rng.standard_normal(n)
    factor = matrix.copy()
    factorize(factor)
    expected = np.linalg.cholesky(matrix).T
    np.testing.assert_allclose(np.triu(factor), expected, rtol=1e-6, atol=1e-8)
    solved = np.empty_like(vector)
    solve(factor, vector, solved)
    np.testing.assert_allclose(matrix @ solved, vector, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("penalties", [[16.0, 0.1], [0.25, 0.1], [1e-3, 1e-3]])
@pytest.mark.parametrize("seed", range(4))
def test_newton_reaches_the_maximum(penalties: list[float], seed: int) -> None:
    node, penalty = make(seed=seed), np.array(penalties)
    theta = newton(node, np.zeros(5), penalty)

    def falling(at: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, _ = evaluate(node, at, penalty)
        return -value, -gradient

    best = -minimize(falling, np.zeros(5), jac=True, method="BFGS").fun
    reached = float(node.truth(theta, penalty))
    assert reached >= best - 1e-4 * (1 + abs(best))
    objective, at = node.objective(1.0, penalty), torch.from_numpy(theta)
    gradient, curvature = jacobian(objective, at), -hessian(objective, at)
    # What a further step would promise is nothing beside L.
    assert float(gradient @ torch.linalg.solve(curvature, gradient)) <= 1e-4 * (1 + abs(best))


@pytest.mark.parametrize("seed", range(4))
def test_newton_with_an_old_factor_follows_a_split_that_moves(seed: int) -> None:
    node, penalty = make(seed=seed), np.array([4.0, 0.1])
    theta, factor = np.zeros(5), np.empty((5, 5))
    newton_ascent(node.kernel(penalty), theta, factor, True)
    zeta = node.zeta.copy()
    zeta[[0, 1]] *= -1
    moved = node._replace(zeta=zeta)
    newton_ascent(moved.kernel(penalty), theta, factor, False)
    best = float(moved.truth(newton(moved, np.zeros(5), penalty), penalty))
    assert float(moved.truth(theta, penalty)) == pytest.approx(best, rel=1e-3)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 10.0, 100.0]))
def test_newton_never_goes_down(seed: int, size: float) -> None:
    # From far out, where every σ is flat, plain Newton steps are huge and wrong.
    node, penalty = make(seed=seed), np.array([1e-3, 1e-3])
    start = size * np.random.default_rng(seed).standard_normal(5)
    theta = newton(node, start, penalty)
    before, after = float(node.truth(start, penalty)), float(node.truth(theta, penalty))
    assert np.isfinite(theta).all()
    assert after >= before - 1e-5 * abs(before)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 10.0, 100.0]))
def test_steps_under_the_bound_never_go_down(seed: int, size: float) -> None:
    node, penalty = make(seed=seed), np.array([0.25, 0.1])
    theta = size * np.random.default_rng(seed).standard_normal(5)
    bound = np.empty((5, 5))
    bound_curvature(node.kernel(penalty), bound)
    value = float(node.truth(theta, penalty))
    for _ in range(20):
        ascend(node.kernel(penalty), theta, bound, 1)
        before, value = value, float(node.truth(theta, penalty))
        assert value >= before - 1e-5 * (1 + abs(before))


@pytest.mark.parametrize("seed", range(4))
def test_steps_under_the_bound_lead_to_the_maximum(seed: int) -> None:
    node, penalty, theta = make(seed=seed), np.array([4.0, 1.0]), np.zeros(5)
    bound = np.empty((5, 5))
    bound_curvature(node.kernel(penalty), bound)
    for _ in range(200):
        ascend(node.kernel(penalty), theta, bound, 1)
    best = float(node.truth(newton(node, np.zeros(5), penalty), penalty))
    assert float(node.truth(theta, penalty)) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("start", [0.0, 1.0, -0.5])
def test_newton_stays_finite_on_separable_examples(start: float) -> None:
    far = np.repeat([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]], 40, axis=0)
    z = (far + 0.1 * np.random.default_rng(0).standard_normal(far.shape)).astype(np.float32)
    sides = {"owner": np.repeat([0, 1], 40), "zeta": np.array([1, -1], np.int8)}
    node = make(n_classes=2)._replace(z=z, **sides)
    penalty = np.array([1e-8, 1e-8])
    theta = newton(node, np.full(4, start), penalty)
    assert np.isfinite(theta).all()
    assert np.abs(theta).max() < 1e4
    activation = z @ theta[:3] + theta[3]
    assert (activation[:40] > 0).all()
    assert (activation[40:] < 0).all()
    assert float(node.truth(theta, penalty)) > -1.0


def test_halve_takes_the_best_half() -> None:
    # Classes of one to sixty examples and a bias that counts: sizes matter, not only places.
    node = make(n_classes=8, seed=3)
    penalty, theta = np.array([1.0, 1.0]), np.array([0.4, -1.0, 0.2, 0.0, 2.0])
    zeta = np.empty(8, np.int8)
    tree_fit.halve(np.arange(8), node.offsets, node.sums, theta, 4, zeta)
    assert zeta.sum() == 0
    chosen = float(node._replace(zeta=zeta).truth(theta, penalty))
    for right in combinations(range(8), 4):
        other = np.full(8, -1, np.int8)
        other[list(right)] = 1
        assert float(node._replace(zeta=other).truth(theta, penalty)) <= chosen + 1e-9
    assert not tree_fit.halve(np.arange(8), node.offsets, node.sums, theta, 4, zeta)
    assert tree_fit.halve(np.arange(8), node.offsets, node.sums, -theta, 4, zeta)


def test_the_first_direction_is_the_top_eigenvector() -> None:
    node = make(n_classes=40, k=5, seed=2)
    # Stretched, so that the power iteration has a gap to find.
    sums = node.sums * [1.0, 1.0, 4.0, 1.0, 1.0]
    theta = np.empty(6)
    tree_fit.principal_direction(np.arange(40), sums, theta)
    top = np.linalg.eigh(np.cov(sums.T))[1][:, -1]
    assert abs(theta[:5] @ top) > 0.999
    assert theta[5] == 0.0
    # Classes without examples have no direction.
    tree_fit.principal_direction(np.arange(40), np.zeros((40, 5)), theta)
    assert (theta == 0.0).all()


def split(node: Node, penalties: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """The root of a tree over all classes: θ, and the side of each class."""
    n, mid = len(node.zeta), len(node.zeta) // 2
    order, nodes = np.arange(n), np.zeros((n, node.z.shape[1] + 1), np.float32)
    splits = np.array([[0, mid, n]])
    tree_fit.split_nodes(0, 1, splits, order, node.examples, penalties, rounds, nodes)
    assert sorted(order) == list(range(n))
    zeta = np.ones(n, np.int8)
    zeta[order[:mid]] = -1
    return nodes[mid].astype(np.float64), zeta


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("penalties", [[16.0, 0.1], [0.25, 0.1]])
def test_the_split_is_a_local_optimum_above_the_first_one(
    seed: int, penalties: list[float]
) -> None:
    node = make(n_classes=31 + seed, seed=seed, noise=1.0)
    penalty, n_right = np.array(penalties), len(node.zeta) - len(node.zeta) // 2
    theta, zeta = split(node, penalty, rounds=100)
    assert (zeta == 1).sum() == n_right
    again = zeta.copy()
    assert not tree_fit.halve(
        np.arange(len(node.zeta)), node.offsets, node.sums, theta, n_right, again
    )
    reached = float(node._replace(zeta=zeta).truth(theta, penalty))

    first = np.empty(5)
    tree_fit.principal_direction(np.arange(len(node.zeta)), node.sums, first)
    tree_fit.halve(np.arange(len(node.zeta)), node.offsets, node.sums, first, n_right, again)
    begun = node._replace(zeta=again)
    best_first = float(begun.truth(newton(begun, first, penalty), penalty))
    assert reached >= best_first - 1e-4 * abs(best_first)


def test_alternation_does_something() -> None:
    gains = []
    for seed in range(8):
        node, penalty = make(n_classes=40, seed=seed, noise=1.0), np.array([1.0, 0.1])
        values = []
        for rounds in (0, 100):
            theta, zeta = split(node, penalty, rounds)
            values.append(float(node._replace(zeta=zeta).truth(theta, penalty)))
        gains.append((values[1] - values[0]) / abs(values[0]))
    assert min(gains) > -1e-4
    assert np.mean(gains) > 0.01


def test_refit_moves_to_the_maximum_under_other_penalties() -> None:
    node = make(n_classes=6, seed=4)
    order, mid = np.array([3, 0, 5, 1, 2, 4]), 3
    nodes = np.zeros((6, 5), np.float32)
    penalty = np.array([0.5, 0.1])
    splits = np.array([[0, mid, 6]])
    tree_fit.refit_nodes(0, 1, splits, order, node.examples, penalty, nodes)
    zeta = np.ones(6, np.int8)
    zeta[order[:mid]] = -1
    node = node._replace(zeta=zeta)
    best = float(node.truth(newton(node, np.zeros(5), penalty), penalty))
    assert float(node.truth(nodes[mid].astype(np.float64), penalty)) == pytest.approx(best, 1e-4)


def test_a_cap_takes_an_even_weighted_subsample() -> None:
    node = make(n_classes=9, seed=5)
    classes = np.array([7, 2, 4, 8])
    total = sum(node.offsets[c + 1] - node.offsets[c] for c in classes)
    for cap in (NO_CAP, total, 20, 7, 1):
        rows, owner, weight = tree_fit.gather(classes, 0, len(classes), node.offsets, cap)
        assert len(rows) == len(owner) <= cap
        assert len(rows) * weight == pytest.approx(total)
        assert (np.diff(owner) >= 0).all()
        assert np.array_equal(classes[owner], node.owner[rows])
        columns = tree_fit.transposed(node.z, rows)
        assert np.array_equal(columns[:, : len(rows)].T, node.z[rows])
        whole, whole_owner, _ = tree_fit.gather(classes, 0, len(classes), node.offsets, NO_CAP)
        stride = -(-total // cap)
        assert np.array_equal(rows, whole[::stride])
        assert np.array_equal(owner, whole_owner[::stride])


def test_held_out_likelihood_of_two_classes_by_their_frequency() -> None:
    # λ_w is so hard that only the bias is left: each side has its share of the kept examples.
    node = make(n_classes=2, seed=0)
    node = node._replace(z=node.z[:1].repeat(50, 0), offsets=np.array([0, 30, 50]))
    nodes, out = np.zeros((2, 5), np.float32), np.empty((1, 2))
    splits, penalties = np.array([[0, 1, 2]]), np.array([[1e12, 1e-9]])
    tree_fit.held_out_likelihood(0, 1, splits, np.arange(2), node.examples, penalties, nodes, out)
    # Every fifth of 30 and of 20 is held out, which leaves 24 and 16.
    assert out[0, 1] == 10
    assert out[0, 0] == pytest.approx(6 * np.log(24 / 40) + 4 * np.log(16 / 40), abs=0.01)
