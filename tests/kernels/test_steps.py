"""Many steps in one kernel against one step at a time, and against itself with other threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extremax.heads import LinearHead
from extremax.kernels.cpu import atomics
from extremax.kernels.cpu.threads import limit
from extremax.objectives import NCE, NegativeSampling, Objective, OneVsEach, Pairs
from extremax.objectives.sampled_softmax import SampledSoftmax
from extremax.rows import DenseRows

OBJECTIVES = [NegativeSampling(0.01), NegativeSampling(0.0), NCE(0.0), NCE(0.02)]


class Run:
    """A head and some batches: the same for the same seed."""

    def __init__(
        self,
        n: int,
        m: int,
        n_features: int,
        n_classes: int,
        seed: int,
        accumulators: str = "weight",
    ) -> None:
        rng = np.random.default_rng(seed)
        self.head = LinearHead(n_classes, n_features, 0.5, 0.8, accumulators)
        self.head.weight.copy_(torch.from_numpy(0.3 * rng.standard_normal((n_classes, n_features))))
        self.head.bias.copy_(torch.from_numpy(rng.standard_normal(n_classes)))
        self.features = rng.standard_normal((n + 3, n_features), dtype=np.float32)
        self.rows = rng.integers(0, n + 3, n)
        self.classes = torch.from_numpy(rng.integers(0, n_classes, (n, 1 + m)))
        self.log_q = torch.from_numpy(-3 * rng.random((n, 1 + m), dtype=np.float32))
        self.weights = rng.random(n, dtype=np.float32)

    def at_once(
        self, objective: Objective, size: int, rates: np.ndarray, weighted: bool
    ) -> np.ndarray:
        logistic = objective.logistic(self.classes.shape[1] - 1)
        assert logistic is not None
        form = (*logistic, float(objective.adds_log_q), objective.regularization)
        weights = self.weights if weighted else None
        inputs = self.head.inputs(DenseRows(self.features), self.rows)
        return self.head.logistic_steps(
            inputs, self.classes, self.log_q, weights, form, size, rates
        )

    def one_by_one(
        self, objective: Objective, size: int, rates: np.ndarray, weighted: bool
    ) -> np.ndarray:
        losses = []
        for i, rate in enumerate(rates):
            part = slice(i * size, (i + 1) * size)
            rows, classes = self.rows[part], self.classes[part]
            inputs = self.head.inputs(DenseRows(self.features), rows)
            scores = self.head.scores(inputs, classes)
            hits = classes[:, 1:] == classes[:, :1]
            pairs = Pairs(scores, self.log_q[part], hits, torch.empty(0))
            weights = torch.from_numpy(self.weights[part]) if weighted else torch.ones(len(rows))
            losses.append(objective.loss(pairs) * weights)
            gradient = objective.gradient(pairs) * weights[:, None]
            self.head.step(inputs, classes, gradient, float(rate))
        return torch.cat(losses).numpy()


@settings(deadline=None, max_examples=60)
@given(
    objective=st.sampled_from(OBJECTIVES),
    sizes=st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(1, 70)),
    n_classes=st.sampled_from([1, 2, 7, 500]),
    size=st.integers(1, 30),
    weighted=st.booleans(),
    seed=st.integers(0, 10**6),
    accumulators=st.sampled_from(["weight", "row"]),
)
def test_steps_at_once_equal_steps_one_by_one(
    objective: Objective,
    sizes: tuple[int, int, int],
    n_classes: int,
    size: int,
    weighted: bool,
    seed: int,
    accumulators: str,
) -> None:
    ours, theirs = (Run(*sizes, n_classes, seed, accumulators) for _ in range(2))
    rates = np.linspace(0.5, 0.1, -(-sizes[0] // size))
    loss = ours.at_once(objective, size, rates, weighted)
    expected = theirs.one_by_one(objective, size, rates, weighted)
    np.testing.assert_allclose(loss, expected, rtol=2e-4, atol=2e-4)
    for name, tensor in ours.head.state().items():
        torch.testing.assert_close(tensor, theirs.head.state()[name], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("accumulators", ["weight", "row"])
def test_bits_do_not_depend_on_the_number_of_threads(accumulators: str) -> None:
    states = []
    for n_threads in (1, 2, 3):
        run = Run(4000, 3, 40, 3000, seed=1, accumulators=accumulators)
        with limit(n_threads):
            loss = run.at_once(NegativeSampling(), 700, np.full(6, 0.3), weighted=True)
        states.append({"loss": torch.from_numpy(loss), **run.head.state()})
    for other in states[1:]:
        assert [name for name in other if not torch.equal(other[name], states[0][name])] == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_ends_the_run(bad: float) -> None:
    run, good = (Run(n=90, m=1, n_features=20, n_classes=1000, seed=2) for _ in range(2))
    run.rows[:] = np.where(run.rows == 0, 1, run.rows)
    run.rows[45] = 0
    run.features[0, 7] = bad
    before = run.head.weight[run.classes[45]].clone()
    loss = run.at_once(NegativeSampling(), 30, np.full(3, 0.2), weighted=False)
    # The second of three steps is the bad one.
    assert not np.isfinite(loss[45])
    assert np.isfinite(np.delete(loss, 45)).all()
    assert (loss[60:] == 0.0).all()
    for tensor in run.head.state().values():
        assert tensor.isfinite().all()
    assert torch.equal(run.head.weight[run.classes[45]], before)
    # Classes of the third step that no other has are as they were.
    others = set(run.classes[:60].ravel().tolist())
    untouched = [c for c in run.classes[60:].ravel().tolist() if c not in others]
    assert len(untouched) > 30
    assert torch.equal(run.head.weight[untouched], good.head.weight[untouched])


def test_a_subclass_that_changes_a_formula_inherits_no_kernel() -> None:
    class Doubled(NegativeSampling):
        def surrogate(self, pairs: Pairs) -> torch.Tensor:
            return 2 * super().surrogate(pairs)

    class Renamed(NegativeSampling):
        pass

    assert Doubled().logistic(1) is None
    assert Renamed().logistic(2) == NegativeSampling().logistic(2)
    assert SampledSoftmax().logistic(1) is None
    assert OneVsEach().logistic(1) is None


def test_counters_lose_no_count() -> None:
    from numba import njit

    @njit(nogil=True)
    def count(counters: np.ndarray, n: int) -> None:
        for _ in range(n):
            atomics.add_one(counters, 3)
            atomics.give_way() if atomics.read(counters, 3) % 1000 == 0 else None

    counters = np.zeros(8, np.int64)
    count(counters, 0)
    threads = [threading.Thread(target=count, args=(counters, 20_000)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters[3] == 60_000
    assert counters.sum() == 60_000
