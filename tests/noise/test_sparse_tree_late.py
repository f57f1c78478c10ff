"""Late classes get a tree of their own, grafted on: against the three trees fitted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.errors import ExtremaxError
from extremax.noise import sparse_tree_shape
from extremax.noise.sparse_tree import SparseTreeNoise
from extremax.random import Stream
from extremax.tensors import Tensors

N_OLD, N_LATE = 30, 7


def titles(n: int) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Rows of five words, of which about half belong to their class."""
    random = np.random.default_rng(0)
    labels = random.integers(N_OLD + N_LATE, size=n)
    own = random.integers(60, size=(N_OLD + N_LATE, 5))
    words = np.where(random.random((n, 5)) < 0.5, own[labels], random.integers(60, size=(n, 5)))
    row = np.repeat(np.arange(n), 5)
    return sparse.csr_matrix((np.ones(5 * n, np.float32), (row, words.ravel())), (n, 60)), labels


ROWS, LABELS = titles(900)
IS_LATE = LABELS >= N_OLD
LEVEL = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(params=[3, 8], ids=["deep", "flat"], autouse=True)
def halvings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three halvings per level, the old classes have two levels and the late ones one."""
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", request.param)


def made() -> SparseTreeNoise:
    return SparseTreeNoise(0.3, prune=0.0)


def old_tree() -> SparseTreeNoise:
    return made().fit(ROWS[~IS_LATE], LABELS[~IS_LATE], N_OLD)


def with_late(rows: sparse.csr_matrix = ROWS, labels: np.ndarray = LABELS) -> SparseTreeNoise:
    noise = old_tree()
    noise.extend(N_OLD + N_LATE)
    noise.learn_late(rows, labels)
    return noise


def all_log_q(noise: SparseTreeNoise) -> torch.Tensor:
    return noise.log_prob_all(noise.context(ROWS))


def test_q_is_that_of_a_gate_times_that_of_the_tree_behind_it() -> None:
    late = made().fit(ROWS[IS_LATE], LABELS[IS_LATE] - N_OLD, N_LATE)
    gate = all_log_q(made().fit(ROWS, IS_LATE.astype(np.int64), 2))
    expected = torch.cat([all_log_q(old_tree()) + gate[:, :1], all_log_q(late) + gate[:, 1:]], 1)
    torch.testing.assert_close(all_log_q(with_late()), expected, **LEVEL)


@pytest.mark.parametrize("seed", range(4))
def test_the_gate_is_right_whatever_order_its_children_have(seed: int) -> None:
    noise = SparseTreeNoise(0.3, prune=0.0, seed=seed).fit(ROWS[~IS_LATE], LABELS[~IS_LATE], N_OLD)
    noise.extend(N_OLD + N_LATE)
    noise.learn_late(ROWS, LABELS)
    share = all_log_q(noise)[:, N_OLD:].exp().sum(1).numpy()
    assert share[IS_LATE].mean() > share[~IS_LATE].mean() + 0.1


def test_old_classes_keep_their_proportions() -> None:
    before, after = all_log_q(old_tree()), all_log_q(with_late())[:, :N_OLD]
    torch.testing.assert_close(after.log_softmax(1), before, **LEVEL)


def test_levels_weights_draws_and_searches_agree_with_q() -> None:
    noise = with_late()
    context, log_q = noise.context(ROWS), all_log_q(noise)
    labels = torch.arange(N_OLD + N_LATE).repeat(len(ROWS.indptr) - 1, 1)
    levels = noise.level_log_probs(context, labels)
    assert levels.shape[2] == noise.n_levels == old_tree().n_levels
    torch.testing.assert_close(levels.sum(2), log_q, **LEVEL)
    weights = np.array([0.4, 1.3][: noise.n_levels])
    weighted = noise.weighted_log_probs(context, weights)
    torch.testing.assert_close(weighted, levels @ torch.from_numpy(weights).float(), **LEVEL)
    found = noise.search(context, 5, 40, weights)
    torch.testing.assert_close(found.log_q, log_q.topk(5).values, **LEVEL)
    torch.testing.assert_close(found.weighted, weighted.gather(1, found.labels), **LEVEL)
    draw = noise.sample(context, 200, Stream.of(0, rows=np.arange(len(IS_LATE))))
    torch.testing.assert_close(draw.log_q, log_q.gather(1, draw.labels), **LEVEL)
    drawn = (draw.labels >= N_OLD).double().mean()
    assert abs(drawn - log_q[:, N_OLD:].double().exp().sum(1).mean()) < 0.01
    truth = torch.from_numpy(LABELS)[:, None]
    others = noise.sample_others(context, truth, 20, Stream.of(1, rows=np.arange(len(IS_LATE))))
    assert not (others.labels == truth).any()


def test_late_classes_that_come_in_two_calls_are_fitted_together() -> None:
    some = LABELS < N_OLD + 3
    noise = old_tree()
    noise.extend(N_OLD + 3)
    noise.learn_late(ROWS[some], LABELS[some])
    noise.extend(N_OLD + N_LATE)
    assert noise.n_late_ == N_LATE - 3
    noise.learn_late(ROWS, LABELS)
    assert noise.n_late_ == 0
    assert torch.equal(all_log_q(noise), all_log_q(with_late()))


def test_few_more_examples_are_not_worth_another_fit() -> None:
    noise = with_late()
    before = noise.tree_
    more = np.append(np.arange(len(LABELS)), np.flatnonzero(IS_LATE)[:3])
    noise.learn_late(ROWS[more], LABELS[more])
    assert noise.tree_ is before
    noise.learn_late(sparse.vstack([ROWS, ROWS], "csr"), np.tile(LABELS, 2))
    assert noise.tree_ is not before


def test_classes_without_an_example_stay_beside_the_tree() -> None:
    noise = with_late()
    noise.extend(N_OLD + N_LATE + 2)
    log_q = all_log_q(noise)
    torch.testing.assert_close(log_q.exp().sum(1), torch.ones(len(log_q)), **LEVEL)
    assert torch.allclose(log_q[:, -2:].exp(), torch.tensor(1.0 / (N_OLD + N_LATE + 2)))


def saved(noise: SparseTreeNoise) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in noise.state().items()}


def test_a_saved_tree_is_the_same_and_learns_on() -> None:
    state = saved(with_late())
    loaded = made()
    loaded.validate(Tensors(state, "noise"), N_OLD + N_LATE, ROWS.shape[1])
    loaded.load_state(state)
    assert torch.equal(all_log_q(loaded), all_log_q(with_late()))
    assert "parts" not in old_tree().state()
    twice = sparse.vstack([ROWS, ROWS], "csr"), np.tile(LABELS, 2)
    other = with_late()
    for noise in (loaded, other):
        noise.learn_late(*twice)
    assert torch.equal(all_log_q(loaded), all_log_q(other))


@pytest.mark.parametrize(
    "parts",
    [[N_OLD, N_LATE + 1, 9], [0, N_OLD + N_LATE, 9], [N_OLD + 1, N_LATE - 1, 9], [N_OLD, N_LATE]],
)
def test_damaged_parts_are_refused(parts: list[int]) -> None:
    state = saved(with_late()) | {"parts": torch.tensor(parts)}
    with pytest.raises(ExtremaxError):
        made().validate(Tensors(state, "noise"), N_OLD + N_LATE, ROWS.shape[1])


def test_an_order_that_mixes_the_parts_is_refused() -> None:
    state = saved(with_late())
    state["order"] = state["order"].flip(0)
    with pytest.raises(ExtremaxError, match="mixes"):
        made().validate(Tensors(state, "noise"), N_OLD + N_LATE, ROWS.shape[1])
