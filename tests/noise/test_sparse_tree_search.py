"""The search on sparse rows: what the tree proposes, scored by a head."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.heads import BagHead, Head, HeadOptions
from extremax.labels import Prior
from extremax.noise import SparseTreeNoise, sparse_tree_search, sparse_tree_shape
from extremax.rows import SparseRows, as_rows
from extremax.search.base import Candidates

N_CLASSES, N_LATE = 50, 4
close = {"rtol": 1e-4, "atol": 1e-4}


def identity(scores: torch.Tensor) -> torch.Tensor:
    return scores


@pytest.fixture
def rows() -> SparseRows:
    return as_rows(sparse.random(200, 40, 0.15, "csr", np.float32, np.random.default_rng(0)))


@pytest.fixture
def noise(rows: SparseRows, monkeypatch: pytest.MonkeyPatch) -> SparseTreeNoise:
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 3)
    labels = np.random.default_rng(1).integers(N_CLASSES, size=200)
    noise = SparseTreeNoise(0.1, prune=0.0).fit(rows, labels, N_CLASSES)
    noise.extend(N_CLASSES + N_LATE)
    return noise


@pytest.fixture
def head(rows: SparseRows) -> Head:
    n_classes, train = N_CLASSES + N_LATE, np.arange(200)
    head = BagHead.create(rows, train % n_classes, train, n_classes, HeadOptions(bag_size=8))
    generator = torch.Generator().manual_seed(0)
    for tensor in head.state().values():
        tensor.normal_(generator=generator)
    return head


def whole(blocks: Iterator[Candidates]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Classes, sums and log mass of all rows."""
    found = [
        (b.classes(torch.arange(b.sums.shape[1]).expand(b.sums.shape)), b.sums, b.log_mass)
        for b in blocks
    ]
    classes, sums, log_mass = (torch.cat(parts) for parts in zip(*found, strict=True))
    return classes, sums, log_mass


@pytest.mark.parametrize(
    ("weights", "link"),
    [([1.0, 1.0], identity), ([0.5, 1.7], identity), ([], identity), ([], torch.abs)],
)
def test_sums_are_linked_scores_plus_weighted_log_q(
    noise: SparseTreeNoise, head: Head, rows: SparseRows, weights: list[float], link: object
) -> None:
    searcher = noise.searcher(head)
    assert searcher.preferred
    classes, sums, log_mass = whole(searcher.candidates(rows, 3, 2, np.array(weights), link))
    expected = link(head.scores_all(rows))
    if weights:
        expected = expected + noise.weighted_log_probs(noise.context(rows), np.array(weights))
    used = classes >= 0
    expected = expected.gather(1, classes.clamp(min=0))
    torch.testing.assert_close(sums[used], expected[used], **close)
    assert sums[~used].isneginf().all()
    # Late classes are always candidates.
    assert torch.equal(
        classes[:, -N_LATE:], torch.arange(N_CLASSES, N_CLASSES + N_LATE).expand(200, -1)
    )
    # The mass of all candidates is that of the tree, whatever the weights.
    log_q = noise.log_prob(noise.context(rows), classes.clamp(min=0))
    mass = log_q.masked_fill(~used, -torch.inf).logsumexp(1, keepdim=True)
    torch.testing.assert_close(log_mass, mass.clamp(max=0.0), **close)


def test_results_do_not_depend_on_blocks_of_rows(
    noise: SparseTreeNoise, head: Head, rows: SparseRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = noise.searcher(head)
    together = whole(searcher.candidates(rows, 5, 2, np.ones(2), identity))
    monkeypatch.setattr(sparse_tree_search, "BLOCK_ROWS", 8)
    blocks = list(searcher.candidates(rows, 5, 2, np.ones(2), identity))
    assert [block.rows for block in blocks] == [slice(i, min(i + 8, 200)) for i in range(0, 200, 8)]
    for one, other in zip(together, whole(iter(blocks)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_narrow_search_is_wide_enough_for_k(
    noise: SparseTreeNoise, head: Head, rows: SparseRows
) -> None:
    for k in (1, 20, N_CLASSES + N_LATE):
        classes, _, _ = whole(noise.searcher(head).candidates(rows, k, 1, np.ones(2), identity))
        assert ((classes >= 0).sum(1) >= k).all()


def test_other_frequencies_change_what_is_found_and_not_what_it_scores(
    noise: SparseTreeNoise, head: Head, rows: SparseRows
) -> None:
    n = N_CLASSES + N_LATE
    shares = np.random.default_rng(2).dirichlet(np.full(n, 0.2), 2)
    weights = np.array([0.5, 1.7])
    searcher = noise.searcher(head, Prior(*shares))
    classes, sums, log_mass = whole(searcher.candidates(rows, 3, 2, weights, identity))
    expected = head.scores_all(rows) + noise.weighted_log_probs(noise.context(rows), weights)
    used = classes >= 0
    torch.testing.assert_close(sums[used], expected.gather(1, classes.clamp(min=0))[used], **close)
    assert sums[~used].isneginf().all()
    log_q = noise.log_prob(noise.context(rows), classes.clamp(min=0))
    mass = log_q.masked_fill(~used, -torch.inf).logsumexp(1, keepdim=True)
    torch.testing.assert_close(log_mass, mass.clamp(max=0.0), **close)
    usual, _, _ = whole(noise.searcher(head).candidates(rows, 3, 2, weights, identity))
    assert not torch.equal(usual.sort(1).values, classes.sort(1).values)


def test_the_tree_of_other_frequencies_follows_bayes_at_every_node(
    noise: SparseTreeNoise, head: Head, rows: SparseRows
) -> None:
    n = N_CLASSES + N_LATE
    before, after = np.random.default_rng(2).dirichlet(np.ones(n), 2)
    guide = noise.searcher(head, Prior(before, after)).guide
    context = noise.context(rows)
    q, shifted = (tree.log_prob_all(context).double().exp().numpy() for tree in (noise, guide))
    tree, shape = noise.tree_, sparse_tree_shape.tree_shape(N_CLASSES)
    assert shape.n_levels > 1
    for node in range(len(tree.first) - 1):
        begin, end = tree.first[node], tree.first[node + 1]
        stops = [*tree.position[begin + 1 : end], shape.stop[node]]
        ranges = [tree.order[a:b] for a, b in zip(tree.position[begin:end], stops, strict=True)]
        ratio = np.array([after[c].sum() / before[c].sum() for c in ranges])
        expected = np.stack([q[:, c].sum(1) for c in ranges], 1) * ratio
        found = np.stack([shifted[:, c].sum(1) for c in ranges], 1)
        expected /= expected.sum(1, keepdims=True)
        found /= found.sum(1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-3)
