"""Beam search through the tree against a score of every class, on heads and trees made by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from extremax.data.synthetic import clustered
from extremax.heads import LinearHead
from extremax.kernels.cpu.threads import limit
from extremax.noise import TreeNoise, tree_search
from extremax.noise.tree_search import TreeSearcher
from extremax.rows import as_rows

ONE = np.ones(1)


def identity(scores: torch.Tensor) -> torch.Tensor:
    return scores


class Ranking(NamedTuple):
    labels: torch.Tensor
    log_probs: torch.Tensor


def problem(n_classes: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    return clustered(n, n_classes, 6, seed=1)


def searcher_of(
    n_classes: int, spread: float = 0.0, late: int = 0
) -> tuple[TreeSearcher, np.ndarray]:
    """A fitted tree beneath random scores of this size; 0 leaves the tree as it is."""
    features, labels = problem(n_classes)
    noise = TreeNoise(n_components=4).fit(features, labels, n_classes)
    noise.extend(n_classes + late)
    head = LinearHead(n_classes + late, 6, 1.0, scale=1.3)
    generator = torch.Generator().manual_seed(0)
    head.weight.normal_(std=max(spread, 1e-12), generator=generator)
    head.bias.normal_(std=max(spread, 1e-12), generator=generator)
    return noise.searcher(head), features


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges so small that a hundred classes have tiers of them."""
    monkeypatch.setattr(tree_search, "RANGE_SIZE", 4)
    monkeypatch.setattr(tree_search, "TIER_STEP", 2)
    monkeypatch.setattr(tree_search, "FIRST_TIER", 1)


def topk(searcher: TreeSearcher, features: np.ndarray, k: int, width: int) -> Ranking:
    """The k best candidates, with log-probabilities normalized over all candidates."""
    labels, log_probs = [torch.empty((0, k), dtype=torch.int64)], [torch.empty((0, k))]
    for block in searcher.candidates(as_rows(features), k, width, ONE, identity):
        best, columns = block.sums.topk(k, dim=1)
        labels.append(block.classes(columns))
        log_probs.append(best - block.sums.logsumexp(1, keepdim=True))
    return Ranking(torch.cat(labels), torch.cat(log_probs))


def searched(
    searcher: TreeSearcher, features: np.ndarray, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes and sums of every candidate, −1 and −inf where a row has fewer."""
    (block,) = searcher.candidates(as_rows(features), 1, width, ONE, identity)
    columns = torch.arange(block.sums.shape[1]).repeat(len(features), 1)
    return torch.where(block.sums.isneginf(), -1, block.classes(columns)), block.sums


def dense_logits(searcher: TreeSearcher, features: np.ndarray) -> torch.Tensor:
    noise, head = searcher.noise, searcher.head
    return (
        head.scores_all(as_rows(features)) + noise.log_prob_all(noise.context(features))
    ).double()


def exact_topk(searcher: TreeSearcher, features: np.ndarray, k: int) -> Ranking:
    best, labels = dense_logits(searcher, features).log_softmax(1).topk(k, dim=1)
    return Ranking(labels, best.float())


@pytest.mark.parametrize("n_classes", [1, 2, 3, 7, 33, 64, 101])
@pytest.mark.parametrize("late", [0, 5])
@pytest.mark.parametrize("k", [1, 6, 500])
@pytest.mark.parametrize("sharpness", [1.0, 0.3])
def test_a_beam_of_all_classes_is_the_exact_ranking(
    n_classes: int, late: int, k: int, sharpness: float
) -> None:
    searcher, features = searcher_of(n_classes, spread=1.0, late=late)
    searcher.noise.temper(sharpness)
    k = min(k, n_classes + late)
    exact = exact_topk(searcher, features, k)
    found = topk(searcher, features, k, width=n_classes + late)
    # If every class is a candidate, nothing is estimated: normalization is exact, too.
    torch.testing.assert_close(found.log_probs, exact.log_probs, atol=1e-4, rtol=1e-4)
    gaps = torch.diff(exact.log_probs, dim=1).abs()
    apart = (gaps > 1e-3).all(1) if gaps.shape[1] else torch.ones(len(features), dtype=torch.bool)
    assert torch.equal(found.labels[apart], exact.labels[apart])


@pytest.mark.parametrize("n_classes", [5, 64, 101, 397])
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("late", [0, 2])
def test_candidates_are_different_classes_with_their_exact_logits(
    small_ranges: None, n_classes: int, width: int, late: int
) -> None:
    searcher, features = searcher_of(n_classes, spread=1.0, late=late)
    searcher.noise.temper(0.5)
    classes, logits = searched(searcher, features, width)
    expected = dense_logits(searcher, features).gather(1, classes.clamp(min=0))
    expected[classes < 0] = -torch.inf
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-4)
    for row in classes:
        used = row[row >= 0]
        assert len(used.unique()) == len(used) >= min(2 * width, n_classes) + late


def test_probabilities_normalized_over_candidates_are_upper_bounds(small_ranges: None) -> None:
    searcher, features = searcher_of(101, spread=1.0)
    found = topk(searcher, features, 3, width=4)
    exact = dense_logits(searcher, features).log_softmax(1).gather(1, found.labels)
    assert (found.log_probs.double() > exact).all()


def ranges_by_hand(n_classes: int, level: int) -> list[tuple[int, int]]:
    ranges = [(0, n_classes)]
    for _ in range(level):
        halves = [(lo, lo + (hi - lo) // 2, hi) for lo, hi in ranges]
        ranges = [half for lo, mid, hi in halves for half in ((lo, mid), (mid, hi))]
    return ranges


def test_the_ranges_kept_have_the_highest_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_search, "RANGE_SIZE", 8)
    searcher, features = searcher_of(101, spread=1.0)
    features *= 0.7  # Rows shorter than usual.
    noise, head, width = searcher.noise, searcher.head, 3
    order, ranges = noise.order_.numpy(), ranges_by_hand(101, 4)
    weight, bias = head.weight.double().numpy(), head.bias.double().numpy()
    log_q = noise.log_prob_all(noise.context(features)).double().numpy()
    x = 1.3 * features.astype(np.float64)
    length = np.sqrt((x**2).sum(1) / 6)
    estimates = np.empty((len(x), len(ranges)))
    for r, (lo, hi) in enumerate(ranges):
        members = order[lo:hi]
        mean = weight[members].mean(0)
        apart = 0.4 * np.sqrt(6) * np.linalg.norm(weight[members] - mean, axis=1)
        tilt = np.exp(bias[members] + apart)
        # log mean exp(b + length · apart), by its value and its slope at length 1.
        value, slope = np.log(tilt.mean()), (tilt * apart).sum() / tilt.sum()
        estimates[:, r] = x @ mean + value + (length - 1) * slope
        estimates[:, r] += np.log(np.exp(log_q[:, members]).sum(1))
    classes, _ = searched(searcher, features, width)
    for row, of_row in zip(classes.numpy(), estimates, strict=True):
        best = np.sort(of_row)[::-1]
        if best[width - 1] - best[width] < 1e-4:
            continue
        expected = [order[lo:hi] for (lo, hi), e in zip(ranges, of_row, strict=True) if e > best[3]]
        assert sorted(row[row >= 0]) == sorted(np.concatenate(expected))


def test_the_head_finds_what_the_tree_would_not(small_ranges: None) -> None:
    searcher, features = searcher_of(397)
    noise, head = searcher.noise, searcher.head
    noise.nodes_.zero_()
    noise.temper(1.0)
    head.bias.zero_()
    # Each class has a direction of its own, in the order of the tree: neighbors are alike.
    turn = torch.linspace(0, 6.0, 397)
    head.weight.zero_()
    head.weight[noise.order_, 0] = 9 * turn.cos()
    head.weight[noise.order_, 1] = 9 * turn.sin()
    exact = exact_topk(searcher, features, 1).labels
    found = topk(searcher, features, 1, width=4).labels
    assert (found == exact).double().mean() > 0.95


def test_a_wider_beam_never_finds_worse(small_ranges: None) -> None:
    searcher, features = searcher_of(101, spread=1.0)
    exact = exact_topk(searcher, features, 1).labels
    shares = [
        float((topk(searcher, features, 1, width).labels == exact).double().mean())
        for width in (1, 4, 12, 32)
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == 1.0


def test_the_beam_is_wide_enough_for_k(small_ranges: None) -> None:
    searcher, features = searcher_of(101, spread=1.0)
    narrow = topk(searcher, features, 12, width=1)
    assert all(len(row.unique()) == 12 for row in narrow.labels)
    # Ranges have 3 or 4 classes: four of them always hold 12.
    assert torch.equal(narrow.labels, topk(searcher, features, 12, width=4).labels)


def test_late_classes_are_always_candidates() -> None:
    searcher, features = searcher_of(64, late=3)
    searcher.head.bias[65] = 50.0
    assert (topk(searcher, features, 1, width=2).labels == 65).all()


@pytest.mark.parametrize("rows", [1, 37])
def test_results_do_not_depend_on_blocks_of_rows(
    small_ranges: None, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    searcher, features = searcher_of(101, spread=1.0)
    whole = topk(searcher, features, 3, width=5)
    monkeypatch.setattr(tree_search, "BLOCK_ROWS", rows)
    parts = topk(searcher, features.astype(np.float64), 3, width=5)
    assert torch.equal(whole.labels, parts.labels)
    assert torch.equal(whole.log_probs, parts.log_probs)


def test_results_do_not_depend_on_threads(
    small_ranges: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_search, "PARALLEL_FLOATS", 0)
    found = []
    for n in (1, 2, 5):
        searcher, features = searcher_of(101, spread=1.0)
        with limit(n):
            found.append(topk(searcher, features, 3, width=5))
    for other in found[1:]:
        assert torch.equal(found[0].labels, other.labels)
        assert torch.equal(found[0].log_probs, other.log_probs)


def test_no_rows_give_no_blocks() -> None:
    searcher, features = searcher_of(64)
    assert topk(searcher, features[:0], 3, width=9).labels.shape == (0, 3)


def step(head: LinearHead, features: np.ndarray) -> None:
    classes = torch.arange(200).reshape(100, 2) % head.n_classes
    head.step(head.inputs(as_rows(features[:100])), classes, torch.full((100, 2), 0.7), 3.0)


@pytest.mark.parametrize("change", ["train", "write", "grow", "refit"])
def test_the_search_follows_a_head_or_tree_that_changes(small_ranges: None, change: str) -> None:
    searcher, features = searcher_of(101, spread=1.0)
    head, noise = searcher.head, searcher.noise
    before = topk(searcher, features, 3, width=2)
    index = searcher.index
    assert searcher.index is index
    if change == "train":
        step(head, features)
    elif change == "write":
        head.weight.neg_()
    elif change == "grow":
        head.grow(104)
        noise.extend(104)
    else:
        noise.fit(features, problem(101)[1][::-1].copy(), 101)
    after = topk(searcher, features, 3, width=2)
    expected = topk(noise.searcher(head), features, 3, width=2)
    assert searcher.index is not index
    assert torch.equal(after.labels, expected.labels)
    assert torch.equal(after.log_probs, expected.log_probs)
    assert not torch.equal(after.log_probs, before.log_probs)


def test_the_index_is_small() -> None:
    searcher, _ = searcher_of(600, spread=1.0)
    size = sum(tier.vectors.vectors.nbytes for tier in searcher.index.tiers)
    assert 0 < size <= searcher.head.weight.numpy().nbytes / 14


@pytest.mark.parametrize(
    ("weights", "link"), [([], identity), ([0.5], identity), ([1.0], torch.abs)]
)
def test_logits_other_than_score_and_log_q_are_refused(weights: list[float], link: object) -> None:
    searcher, features = searcher_of(20)
    with pytest.raises(ValueError, match=r"an objective whose logits are ξ \+ log q; use search="):
        next(searcher.candidates(as_rows(features), 1, 8, np.array(weights), link))
