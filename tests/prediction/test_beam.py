"""Beam search against a score of every class, on heads and trees made by hand."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from extremax.data.synthetic import clustered
from extremax.head import LinearHead
from extremax.kernels.cpu.threads import limit
from extremax.noise import FrequencyNoise, TreeNoise, UniformNoise
from extremax.objectives import NegativeSampling
from extremax.prediction import beam, blocks
from extremax.prediction.blocks import Scorer

LARGE = 1 << 30


class Plain(NegativeSampling):
    """An objective whose scores are logits already."""

    adds_log_q = False


def problem(n_classes: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    return clustered(n, n_classes, 6, seed=1)


def scorer_of(n_classes: int, spread: float = 0.0, late: int = 0) -> tuple[Scorer, np.ndarray]:
    """A fitted tree beneath random scores of this size; 0 leaves the tree as it is."""
    features, labels = problem(n_classes)
    noise = TreeNoise(n_components=4).fit(features, labels, n_classes)
    noise.extend(n_classes + late)
    head = LinearHead(n_classes + late, 6, 1.0, scale=1.3)
    generator = torch.Generator().manual_seed(0)
    head.weight.normal_(std=max(spread, 1e-12), generator=generator)
    head.bias.normal_(std=max(spread, 1e-12), generator=generator)
    return Scorer(head, noise, NegativeSampling()), features


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges so small that a hundred classes have tiers of them."""
    monkeypatch.setattr(beam, "_RANGE", 4)
    monkeypatch.setattr(beam, "_STEP", 2)
    monkeypatch.setattr(beam, "_FIRST", 1)


def searched(scorer: Scorer, features: np.ndarray, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes and logits of every candidate, −1 and −inf where a row has fewer."""
    index = beam._index(scorer.head, scorer.noise)
    found = index.search(scorer.head, scorer.noise, features, width)
    columns = torch.arange(found.logits.shape[1]).repeat(len(features), 1)
    classes = found.classes(columns)
    return torch.where(found.logits.isneginf(), -1, classes), found.logits


def dense_logits(scorer: Scorer, features: np.ndarray) -> torch.Tensor:
    return scorer.logits(features).double()


@pytest.mark.parametrize("n_classes", [1, 2, 3, 7, 33, 64, 101])
@pytest.mark.parametrize("late", [0, 5])
@pytest.mark.parametrize("k", [1, 6, 500])
@pytest.mark.parametrize("sharpness", [1.0, 0.3])
def test_a_beam_of_all_classes_is_the_exact_ranking(
    n_classes: int, late: int, k: int, sharpness: float
) -> None:
    scorer, features = scorer_of(n_classes, spread=1.0, late=late)
    scorer.noise.temper(sharpness)
    exact = blocks.topk(scorer, features, k, LARGE)
    found = beam.topk(scorer, features, k, width=n_classes + late)
    assert found.labels.shape == (len(features), min(k, n_classes + late))
    # With every class a candidate nothing is estimated: normalisation is exact, too.
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
    scorer, features = scorer_of(n_classes, spread=1.0, late=late)
    scorer.noise.temper(0.5)
    classes, logits = searched(scorer, features, width)
    expected = dense_logits(scorer, features).gather(1, classes.clamp(min=0))
    expected[classes < 0] = -torch.inf
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-4)
    for row in classes:
        some = row[row >= 0]
        assert len(some.unique()) == len(some) >= min(2 * width, n_classes) + late


def test_the_best_candidates_come_first_and_are_normalised_over_all_candidates(
    small_ranges: None,
) -> None:
    scorer, features = scorer_of(101, spread=1.0)
    classes, logits = searched(scorer, features, 4)
    best, at = logits.double().topk(3, dim=1)
    found = beam.topk(scorer, features, 3, width=4)
    assert torch.equal(found.labels, classes.gather(1, at))
    expected = best - logits.double().logsumexp(1, keepdim=True)
    torch.testing.assert_close(found.log_probs.double(), expected, atol=1e-5, rtol=1e-5)
    # Upper bounds: what was not looked at has some probability.
    exact = dense_logits(scorer, features).log_softmax(1).gather(1, found.labels)
    assert (found.log_probs.double() > exact).all()


def ranges_by_hand(n_classes: int, level: int) -> list[tuple[int, int]]:
    ranges = [(0, n_classes)]
    for _ in range(level):
        halves = [(lo, lo + (hi - lo) // 2, hi) for lo, hi in ranges]
        ranges = [half for lo, mid, hi in halves for half in ((lo, mid), (mid, hi))]
    return ranges


def test_the_ranges_kept_are_those_that_promise_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "_RANGE", 8)
    scorer, features = scorer_of(101, spread=1.0)
    features *= 0.7  # Rows shorter than the usual.
    noise, head, width = scorer.noise, scorer.head, 3
    order, ranges = noise.order_.numpy(), ranges_by_hand(101, 4)
    weight, bias = head.weight.double().numpy(), head.bias.double().numpy()
    log_q = noise.log_prob_all(noise.context(features)).double().numpy()
    x = 1.3 * features.astype(np.float64)
    length = np.sqrt((x**2).sum(1) / 6)
    promise = np.empty((len(x), len(ranges)))
    for r, (lo, hi) in enumerate(ranges):
        own = order[lo:hi]
        mean = weight[own].mean(0)
        apart = 0.4 * np.sqrt(6) * np.linalg.norm(weight[own] - mean, axis=1)
        tilt = np.exp(bias[own] + apart)
        # log mean exp(b + length · apart), by its value and its slope at length 1.
        value, slope = np.log(tilt.mean()), (tilt * apart).sum() / tilt.sum()
        promise[:, r] = x @ mean + value + (length - 1) * slope
        promise[:, r] += np.log(np.exp(log_q[:, own]).sum(1))
    classes, _ = searched(scorer, features, width)
    for row, here in zip(classes.numpy(), promise, strict=True):
        best = np.sort(here)[::-1]
        if best[width - 1] - best[width] < 1e-4:
            continue
        expected = [order[lo:hi] for (lo, hi), p in zip(ranges, here, strict=True) if p > best[3]]
        assert sorted(row[row >= 0]) == sorted(np.concatenate(expected))


def test_the_head_finds_what_the_tree_would_not(small_ranges: None) -> None:
    scorer, features = scorer_of(397)
    scorer.noise.nodes_.zero_()
    scorer.noise.temper(1.0)
    scorer.head.bias.zero_()
    # Classes with the direction of a row each, in the order of the tree: neighbours are alike.
    turn = torch.linspace(0, 6.0, 397)
    scorer.head.weight.zero_()
    scorer.head.weight[scorer.noise.order_, 0] = 9 * turn.cos()
    scorer.head.weight[scorer.noise.order_, 1] = 9 * turn.sin()
    exact = blocks.topk(scorer, features, 1, LARGE).labels
    found = beam.topk(scorer, features, 1, width=4).labels
    assert (found == exact).double().mean() > 0.95


def test_a_wider_beam_never_finds_worse(small_ranges: None) -> None:
    scorer, features = scorer_of(101, spread=1.0)
    exact = blocks.topk(scorer, features, 1, LARGE).labels
    shares = [
        float((beam.topk(scorer, features, 1, width).labels == exact).double().mean())
        for width in (1, 4, 12, 32)
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == 1.0


def test_the_beam_is_at_least_as_wide_as_what_is_asked_for(small_ranges: None) -> None:
    scorer, features = scorer_of(101, spread=1.0)
    narrow = beam.topk(scorer, features, 12, width=1)
    assert narrow.labels.shape == (len(features), 12)
    assert all(len(row.unique()) == 12 for row in narrow.labels)
    # Ranges of 3 and 4 classes: four of them hold 12 for sure.
    assert torch.equal(narrow.labels, beam.topk(scorer, features, 12, width=4).labels)


def test_classes_beside_the_tree_are_always_candidates() -> None:
    scorer, features = scorer_of(64, late=3)
    scorer.head.bias[65] = 50.0
    assert (beam.topk(scorer, features, 1, width=2).labels == 65).all()


@pytest.mark.parametrize("rows", [1, 37])
def test_blocks_of_rows_do_not_show(
    small_ranges: None, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    scorer, features = scorer_of(101, spread=1.0)
    whole = beam.topk(scorer, features, 3, width=5)
    monkeypatch.setattr(beam, "_ROWS", rows)
    parts = beam.topk(scorer, features.astype(np.float64), 3, width=5)
    assert torch.equal(whole.labels, parts.labels)
    assert torch.equal(whole.log_probs, parts.log_probs)


def test_threads_do_not_show(small_ranges: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "_PARALLEL_FLOATS", 0)
    found = []
    for n in (1, 2, 5):
        scorer, features = scorer_of(101, spread=1.0)
        with limit(n):
            found.append(beam.topk(scorer, features, 3, width=5))
    for other in found[1:]:
        assert torch.equal(found[0].labels, other.labels)
        assert torch.equal(found[0].log_probs, other.log_probs)


def test_no_rows_give_no_rows() -> None:
    scorer, features = scorer_of(64)
    assert beam.topk(scorer, features[:0], 3, width=9).labels.shape == (0, 3)


def step(head: LinearHead, features: np.ndarray) -> None:
    rows, classes = np.arange(100), torch.arange(200).reshape(100, 2) % head.n_classes
    head.step(features, rows, classes, torch.full((100, 2), 0.7), learning_rate=3.0)


@pytest.mark.parametrize("change", ["train", "write", "grow", "refit"])
def test_the_search_follows_a_head_or_tree_that_changes(small_ranges: None, change: str) -> None:
    scorer, features = scorer_of(101, spread=1.0)
    head, noise = scorer.head, scorer.noise
    before = beam.topk(scorer, features, 3, width=2)
    index = beam._index(head, noise)
    assert beam._index(head, noise) is index
    if change == "train":
        step(head, features)
    elif change == "write":
        head.weight.neg_()
    elif change == "grow":
        head.grow(104)
        noise.extend(104)
    else:
        noise.fit(features, problem(101)[1][::-1].copy(), 101)
    after = beam.topk(scorer, features, 3, width=2)
    # Another head object with the same numbers has no index of before.
    fresh = LinearHead(head.n_classes, 6, 1.0, scale=1.3)
    fresh.load_state(head.state())
    expected = beam.topk(Scorer(fresh, noise, scorer.objective), features, 3, width=2)
    assert torch.equal(after.labels, expected.labels)
    assert torch.equal(after.log_probs, expected.log_probs)
    assert not torch.equal(after.log_probs, before.log_probs)


def test_the_index_is_small_and_goes_with_its_head() -> None:
    scorer, features = scorer_of(600, spread=1.0)
    beam.topk(scorer, features, 1, width=2)
    index = weakref.ref(beam._index(scorer.head, scorer.noise))
    size = sum(tier.vectors.nbytes for tier in index().tiers)
    assert 0 < size <= scorer.head.weight.numpy().nbytes / 14
    del scorer
    gc.collect()
    assert index() is None


@pytest.mark.parametrize("noise", [UniformNoise(), FrequencyNoise()])
def test_other_noises_are_refused(noise: UniformNoise | FrequencyNoise) -> None:
    features, labels = problem(20)
    noise.fit(features, labels, 20)
    scorer = Scorer(LinearHead(20, 6, 1.0), noise, NegativeSampling())
    with pytest.raises(ValueError, match="beam search needs the tree noise"):
        beam.topk(scorer, features, 1, width=8)


def test_objectives_without_the_noise_in_their_logits_are_refused() -> None:
    scorer, features = scorer_of(20)
    scorer.objective = Plain()
    with pytest.raises(ValueError, match="an objective whose logits are ξ \\+ log q"):
        beam.topk(scorer, features, 1, width=8)
