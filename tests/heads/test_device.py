"""Copies of heads on a device against the heads; without a GPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.heads import DEVICE_HEADS, BagHead, DeviceHead, Head, HeadOptions, LinearHead
from extremax.rows import DenseRows, Rows, SparseRows

pytest.importorskip("triton")

pytestmark = pytest.mark.extras

N, WIDTH, N_CLASSES = 11, 6, 40
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def linear(accumulators: str) -> tuple[Head, Rows]:
    rng = np.random.default_rng(0)
    head = LinearHead(N_CLASSES, WIDTH, 0.5, 0.7, accumulators)
    head.weight.copy_(torch.from_numpy(rng.standard_normal((N_CLASSES, WIDTH))))
    head.bias.copy_(torch.from_numpy(rng.standard_normal(N_CLASSES)))
    return head, DenseRows(rng.standard_normal((30, WIDTH), dtype=np.float32))


def bag(accumulators: str) -> tuple[Head, Rows]:
    rng = np.random.default_rng(0)
    options = HeadOptions(0.5, 0.7, 8, 0.0, 0, accumulators)
    head = BagHead(N_CLASSES, 20, options)
    head.classes.weight.copy_(torch.from_numpy(rng.standard_normal((N_CLASSES, 8))))
    head.bias.copy_(torch.from_numpy(rng.standard_normal(N_CLASSES)))
    return head, SparseRows.of(sparse.random(30, 20, 0.2, "csr", np.float32, rng))


MAKERS: dict[str, Callable[[str], tuple[Head, Rows]]] = {"linear": linear, "bag": bag}
CASES = [(name, form) for name in MAKERS for form in ("weight", "row")]


class Both:
    """A head, a copy of an equal head on the device, and a batch for each."""

    def __init__(self, name: str, accumulators: str) -> None:
        self.head, self.rows = MAKERS[name](accumulators)
        host, _ = MAKERS[name](accumulators)
        self.twin: DeviceHead = DEVICE_HEADS[type(host)](host, DEVICE)
        rng = np.random.default_rng(1)
        self.numbers = rng.permutation(30)[:N]
        self.classes = torch.from_numpy(rng.integers(0, N_CLASSES, (N, 4)))
        self.gradient = torch.from_numpy(rng.standard_normal((N, 4)).astype(np.float32))
        self.inputs = self.head.inputs(self.rows, self.numbers)
        (self.sent,) = self.twin.rows(self.rows).batches(self.numbers, N)

    def assert_same(self) -> None:
        self.twin.fetch()
        for name, value in self.head.state().items():
            found = self.twin.host.state()[name]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_scores_and_a_step_are_those_of_the_head(case: tuple[str, str]) -> None:
    both = Both(*case)
    scores = both.twin.scores(both.sent, both.classes.to(DEVICE)).cpu()
    expected = both.head.scores(both.inputs, both.classes)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    both.head.step(both.inputs, both.classes, both.gradient, 0.3)
    rate: Any = torch.tensor(0.3, device=DEVICE)
    both.twin.step(both.sent, both.classes.to(DEVICE), both.gradient.to(DEVICE), rate)
    both.assert_same()


@pytest.mark.parametrize("accumulators", ["weight", "row"])
def test_steps_on_shared_classes_leave_out_those_below_zero(accumulators: str) -> None:
    both = Both("linear", accumulators)
    shared, none = torch.tensor([3, 17, 0, 29]), torch.empty((N, 0), dtype=torch.int64)
    scores = both.twin.scores_shared(both.sent, shared.to(DEVICE)).cpu()
    expected = both.head.scores_shared(both.inputs, none, shared)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    both.head.step_shared(both.inputs, none, shared, both.gradient, 0.3)
    padded = torch.cat([shared, torch.tensor([-1, -1])]).to(DEVICE)
    gradient = torch.cat([both.gradient, torch.ones(N, 2)], 1).to(DEVICE)
    both.twin.step_shared(both.sent, padded, gradient, 0.3)
    both.assert_same()


@pytest.mark.parametrize("accumulators", ["weight", "row"])
def test_an_exact_step_and_decay(accumulators: str) -> None:
    both = Both("linear", accumulators)
    truth, weights = both.classes[:, 0], torch.linspace(0.5, 2.0, N)
    expected = both.head.exact_step(both.inputs, truth, weights, 0.01, 0.2)
    found = both.twin.exact_step(both.sent, truth.to(DEVICE), weights.to(DEVICE), 0.01, 0.2)
    assert float(found.double().sum()) == pytest.approx(expected, rel=1e-4)
    both.assert_same()
    both.head.decay(0.5)
    both.twin.decay(0.5)
    both.assert_same()


@pytest.mark.parametrize("name", list(MAKERS))
def test_rankings_and_scores_of_all_classes(name: str) -> None:
    both = Both(name, "weight")
    rows, labels = both.rows[both.numbers], both.classes.numpy()
    expected, expected_log_p = both.head.rank_and_score(rows, labels, 3, 1.5, 2**20)
    found, log_p = both.twin.rank_and_score(rows, labels, 3, 1.5, 2**20)
    assert torch.equal(found.labels, expected.labels)
    torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(log_p, expected_log_p, rtol=1e-3, atol=1e-3)
    scores = both.twin.scores_all(rows)
    torch.testing.assert_close(scores, both.head.scores_all(rows), rtol=1e-4, atol=1e-4)


def test_a_copy_is_kept_recalled_and_sent_anew() -> None:
    both = Both("linear", "weight")
    assert both.twin.keep()
    both.twin.step(both.sent, both.classes.to(DEVICE), both.gradient.to(DEVICE), 0.3)
    both.twin.recall()
    both.assert_same()
    both.twin.host.load_state({k: v + 1.0 for k, v in both.head.state().items()})
    both.twin.send()
    torch.testing.assert_close(both.twin.bias.cpu(), both.head.bias + 1.0)


def test_rows_that_do_not_fit_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    from extremax.heads import device_rows

    _, rows = linear("weight")
    monkeypatch.setattr(device_rows, "free_bytes", lambda device: 0)
    streamed = device_rows.DenseOnDevice(rows.dense(), DEVICE)
    assert not streamed.is_resident
    array, numbers = rows.dense().array, np.array([7, 2, 29, 2])
    for expected in (numbers, numbers[:3], numbers[:0]):
        # What comes may be what was announced, or not.
        streamed.expect(expected)
        found = streamed.batches(numbers, 3)
        parts = [batch.features[batch.rows].cpu().numpy() for batch in found]
        np.testing.assert_array_equal(np.concatenate(parts), array[numbers])
        assert [len(part) for part in parts] == [3, 1]
