"""Draws among the other classes where the noise is all but sure of the label."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import sparse, stats

from extremax.data.synthetic import clustered
from extremax.heads import LinearHead
from extremax.noise import (
    FrequencyNoise,
    MixtureNoise,
    Noise,
    SoftmaxNoise,
    SparseTreeNoise,
    TreeNoise,
    sparse_tree_shape,
)
from extremax.random import Stream
from extremax.rows import as_rows

N = 4000


def frequencies(*counts: int) -> FrequencyNoise:
    noise = FrequencyNoise()
    noise.load_state({"counts": torch.tensor(counts)})
    return noise


def assert_follows(labels: torch.Tensor, expected: np.ndarray) -> None:
    observed = np.bincount(labels.ravel(), minlength=len(expected))
    possible = expected > 0
    assert not observed[~possible].any()
    expected = expected[possible] / expected.sum() * labels.numel()
    assert stats.chisquare(observed[possible], expected).pvalue > 1e-4


def draw(noise: Noise, context: object, label: int, m: int = 3) -> tuple[torch.Tensor, np.ndarray]:
    """Draws for N rows, and their log q of each class, which must be the same in every row."""
    labels = torch.full((N, 1), label)
    found = noise.sample_others(context, labels, m, Stream.of(1, rows=np.arange(N)))
    assert found.log_q.isfinite().all()
    log_q = np.full(noise.n_classes_, -np.inf)
    log_q[found.labels.numpy()] = found.log_q.numpy()
    np.testing.assert_array_equal(found.log_q.numpy(), log_q[found.labels.numpy()])
    return found.labels, log_q


@pytest.mark.parametrize("many", [9, 300, 10**9])
def test_rejection_and_what_follows_it_draw_the_same_distribution(many: int) -> None:
    # q_y from 0.6 to 1 − 6e-9: most draws take one round, several rounds, or the exact way.
    labels, log_q = draw(frequencies(1, 2, many, 3), torch.empty((N, 0)), 2)
    expected = np.array([1.0, 2.0, 0.0, 3.0]) / 6
    assert_follows(labels, expected)
    np.testing.assert_allclose(np.exp(log_q), expected, rtol=1e-4)


@pytest.mark.parametrize("size", [1.0, 50.0, 5000.0])
def test_a_tree_that_is_sure_of_the_label(size: float) -> None:
    features, labels = clustered(400, 6, 3, seed=0)
    noise = TreeNoise(3).fit(features, labels, 6)
    # The same odds at every node of the path to class 0, and even odds elsewhere.
    noise.nodes_.zero_()
    lo, hi, depth = 0, 6, 0
    leaf, shares = int(noise.position_[0]), np.zeros(6)
    while hi - lo > 1:
        mid = lo + (hi - lo) // 2
        noise.nodes_[mid, -1] = size if leaf >= mid else -size
        left = (lo, mid) if leaf >= mid else (mid, hi)
        weight = (1.0 / (1.0 + math.exp(-size))) ** depth
        # Even odds below: two or three classes.
        n = left[1] - left[0]
        shares[left[0] : left[1]] = [weight / n] * n if n < 3 else [weight / 2, *[weight / 4] * 2]
        lo, hi, depth = (mid, hi, depth + 1) if leaf >= mid else (lo, mid, depth + 1)
    noise.temper(1.0)
    found, log_q = draw(noise, noise.context(features[:1]).repeat(N, 1), 0)
    expected = (shares / shares.sum())[noise.position_.numpy()]
    assert_follows(found, expected)
    np.testing.assert_allclose(np.exp(log_q), expected, rtol=1e-5)
    others = torch.tensor([[c for c in range(6) if c]])
    again = noise.log_prob_others(
        noise.context(features[:1]), torch.zeros_like(others[:, :1]), others
    )
    np.testing.assert_allclose(again.exp()[0], expected[1:], rtol=2e-3)


@pytest.mark.parametrize("size", [5.0, 500.0])
def test_a_sparse_tree_that_is_sure_of_the_label(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 2)
    y = np.arange(400) % 16
    rows = as_rows(sparse.csr_matrix((np.ones(400, np.float32), (np.arange(400), y)), (400, 16)))
    noise = SparseTreeNoise().fit(rows, y, 16)
    assert noise.n_levels > 1
    # Rows without features have the biases only: even odds, except on the path to class 5.
    empty = as_rows(sparse.csr_matrix((N, 16), dtype=np.float32))
    tree = noise.tree_
    tree.bias[:] = 0.0
    node = 0
    while node >= 0:
        children = np.arange(tree.first[node], tree.first[node + 1])
        below = children[tree.position[children] <= tree.place[5]]
        tree.bias[below[-1]] = size
        node = tree.node[below[-1]]
    found, log_q = draw(noise, noise.context(empty), 5)
    q = noise.log_prob_all(noise.context(empty[:1]))[0].double()
    q[5] = -math.inf
    expected = q.softmax(0).numpy()
    assert_follows(found, expected)
    np.testing.assert_allclose(np.exp(log_q), expected, rtol=1e-3)


@pytest.mark.parametrize("method", ["inverse", "gumbel"])
def test_a_softmax_that_is_sure_of_the_label(method: str) -> None:
    head = LinearHead(5, 2, 1.0)
    head.bias.copy_(torch.tensor([0.0, 1.0, 0.5, -1.0, 900.0]))
    noise = SoftmaxNoise(method).fit(np.empty((0, 2)), np.empty(0, np.int64), 5)
    noise.attach(head.vectors)
    context = torch.zeros((N, 2))
    found, log_q = draw(noise, context, 4)
    expected = np.append(head.bias[:4].double().softmax(0), 0.0)
    assert_follows(found, expected)
    np.testing.assert_allclose(np.exp(log_q), expected, rtol=1e-5)
    # The sums that the draws leave behind are those over all classes.
    log_prob = noise.log_prob(context, torch.tensor([[4, 1]]).repeat(N, 1))
    torch.testing.assert_close(log_prob[0], torch.tensor([0.0, -899.0]))


def test_a_part_that_is_sure_of_the_label_still_makes_its_share() -> None:
    noise = MixtureNoise(("frequency", "frequency"), (0.5, 0.5))
    noise.fit(np.empty((3, 0)), np.arange(3), 3)
    noise.parts_ = [frequencies(10**6, 9, 1), frequencies(1, 1, 9)]
    found, log_q = draw(noise, noise.context(np.empty((N, 0))), 0, m=4)
    expected = np.array([0.0, 0.5 * 0.9 + 0.5 * 0.1, 0.5 * 0.1 + 0.5 * 0.9])
    np.testing.assert_allclose(np.exp(log_q), expected, rtol=1e-4)
    assert_follows(found[:, :2], np.array([0.0, 0.9, 0.1]))
    assert_follows(found[:, 2:], np.array([0.0, 0.1, 0.9]))
