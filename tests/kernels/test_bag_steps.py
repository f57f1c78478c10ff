"""Many steps of a bag head in one kernel against one step at a time, and with other threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from extremax.heads import BagHead, HeadOptions
from extremax.kernels.cpu.threads import limit
from extremax.objectives import Pairs
from extremax.objectives.sampled_softmax import SampledSoftmax
from extremax.random import Stream
from extremax.rows import SparseRows


class Run:
    """A head and some batches: the same for the same seed."""

    def __init__(
        self,
        n: int,
        m: int,
        width: int,
        n_classes: int,
        seed: int,
        dropout: float = 0.3,
        accumulators: str = "weight",
    ) -> None:
        rng = np.random.default_rng(seed)
        n_features = 40
        options = HeadOptions(0.5, 0.8, width, dropout, seed, accumulators)
        self.head = BagHead(n_classes, n_features, options)
        vectors = rng.standard_normal((n_classes, width)).astype(np.float32)
        self.head.classes.weight.copy_(torch.from_numpy(0.3 * vectors))
        self.head.bias.copy_(torch.from_numpy(rng.standard_normal(n_classes)))
        # Some rows are empty.
        self.rows = SparseRows.of(sparse.random(n + 3, n_features, 0.1, "csr", np.float32, rng))
        self.numbers = rng.integers(0, n + 3, n)
        self.classes = torch.from_numpy(rng.integers(0, n_classes, (n, 1 + m)))
        self.log_q = torch.from_numpy(-3 * rng.random((n, 1 + m), dtype=np.float32))
        # log q of the true class is not known to this objective.
        self.log_q[:, 0] = torch.nan
        self.weights = rng.random(n, dtype=np.float32)

    def dropout(self, numbers: np.ndarray) -> Stream:
        return Stream.of(3, 1, rows=numbers)

    def at_once(self, size: int, rates: np.ndarray, weighted: bool) -> np.ndarray:
        return self.head.softmax_steps(
            self.rows, self.numbers, self.dropout(self.numbers), self.classes, self.log_q,
            self.weights if weighted else None, size, rates,
        )  # fmt: skip

    def one_by_one(self, size: int, rates: np.ndarray, weighted: bool) -> np.ndarray:
        losses, objective = [], SampledSoftmax()
        for i, rate in enumerate(rates):
            part = slice(i * size, (i + 1) * size)
            numbers, classes = self.numbers[part], self.classes[part]
            inputs = self.head.inputs(self.rows, numbers, self.dropout(numbers))
            hits = classes[:, 1:] == classes[:, :1]
            scores = self.head.scores(inputs, classes)
            pairs = Pairs(scores, self.log_q[part], hits, torch.empty(0))
            weights = torch.from_numpy(self.weights[part]) if weighted else torch.ones(len(classes))
            losses.append(objective.loss(pairs) * weights)
            gradient = objective.gradient(pairs) * weights[:, None]
            self.head.step(inputs, classes, gradient, float(rate))
        return torch.cat(losses).numpy()


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(1, 40)),
    n_classes=st.sampled_from([1, 2, 7, 500]),
    size=st.integers(1, 30),
    weighted=st.booleans(),
    dropout=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10**6),
    accumulators=st.sampled_from(["weight", "row"]),
)
def test_steps_at_once_equal_steps_one_by_one(
    sizes: tuple[int, int, int],
    n_classes: int,
    size: int,
    weighted: bool,
    dropout: float,
    seed: int,
    accumulators: str,
) -> None:
    ours, theirs = (Run(*sizes, n_classes, seed, dropout, accumulators) for _ in range(2))
    rates = np.linspace(0.5, 0.1, -(-sizes[0] // size))
    loss = ours.at_once(size, rates, weighted)
    expected = theirs.one_by_one(size, rates, weighted)
    np.testing.assert_allclose(loss, expected, rtol=2e-4, atol=2e-4)
    for name, tensor in ours.head.state().items():
        torch.testing.assert_close(tensor, theirs.head.state()[name], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("accumulators", ["weight", "row"])
def test_bits_do_not_depend_on_the_number_of_threads(accumulators: str) -> None:
    states = []
    for n_threads in (1, 2, 5):
        run = Run(n=4000, m=3, width=40, n_classes=3000, seed=1, accumulators=accumulators)
        with limit(n_threads):
            loss = run.at_once(700, np.full(6, 0.3), weighted=True)
        states.append({"loss": torch.from_numpy(loss), **run.head.state()})
    for other in states[1:]:
        assert [name for name in other if not torch.equal(other[name], states[0][name])] == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_ends_the_run(bad: float) -> None:
    run = Run(n=90, m=1, width=20, n_classes=1000, seed=2, dropout=0.0)
    run.classes[45] = torch.tensor([998, 999])
    run.classes[np.arange(90) != 45] %= 998
    run.head.classes.weight[999] = bad
    before = {name: tensor.clone() for name, tensor in run.head.state().items()}
    loss = run.at_once(30, np.full(3, 0.2), weighted=False)
    # The second of three steps is the bad one.
    assert not np.isfinite(loss[45])
    assert np.isfinite(np.delete(loss, 45)).all()
    assert (loss[60:] == 0.0).all()
    # Classes of the bad pair are as they were, and all others are finite.
    after = run.head.state()
    for tables in (after, before):
        tables["classes.table"][999] = 0.0
    assert torch.equal(after["classes.table"][998:], before["classes.table"][998:])
    assert all(t.isfinite().all() for t in (after["classes.table"][:998], after["features.table"]))
    # Classes of the third step that no other has are as they were.
    others = set(run.classes[:60].ravel().tolist())
    untouched = [c for c in run.classes[60:].ravel().tolist() if c not in others]
    assert len(untouched) > 30
    assert torch.equal(after["classes.table"][untouched], before["classes.table"][untouched])


def test_a_subclass_that_changes_the_formula_inherits_no_kernel() -> None:
    class Doubled(SampledSoftmax):
        def surrogate(self, pairs: Pairs) -> torch.Tensor:
            return 2 * super().surrogate(pairs)

    assert SampledSoftmax().is_softmax_of_draws
    assert not Doubled().is_softmax_of_draws
    assert not SampledSoftmax(absolute=True).is_softmax_of_draws
    assert not SampledSoftmax(regularization=0.1).is_softmax_of_draws
