"""A search through clusters of class vectors, against the scores of every class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.errors import ArgumentError
from extremax.heads import LinearHead
from extremax.kernels.cpu import beam
from extremax.kernels.cpu.threads import limit
from extremax.labels import Prior
from extremax.prediction.rest import log_sums
from extremax.rows import as_rows
from extremax.search import VectorSearcher, clusters, vectors
from extremax.search.base import Candidates

NONE = np.empty(0)


def identity(scores: torch.Tensor) -> torch.Tensor:
    return scores


def head_of(n_classes: int, width: int = 6) -> LinearHead:
    head = LinearHead(n_classes, width, 1.0, scale=1.3)
    generator = torch.Generator().manual_seed(n_classes)
    head.weight.normal_(generator=generator)
    head.bias.normal_(generator=generator)
    return head


def rows_of(n: int, width: int = 6) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, width), np.float32)


@pytest.fixture(params=["flat", "in groups"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All clusters scored, or only those of the best groups."""
    if request.param == "in groups":
        monkeypatch.setattr(vectors, "_MOST_CLUSTERS", 1)
        monkeypatch.setattr(vectors, "_GROUPS", 3)
        monkeypatch.setattr(clusters, "_LARGEST_GROUP", 40)
    return request.param


def found(head: LinearHead, features: np.ndarray, k: int, width: int) -> Candidates:
    (block,) = VectorSearcher(head).candidates(as_rows(features), k, width, NONE, identity)
    return block


def classes_of(block: Candidates) -> torch.Tensor:
    return block.classes(torch.arange(block.sums.shape[1]).expand(block.sums.shape))


@pytest.mark.parametrize("n_classes", [1, 2, 9, 500])
def test_candidates_have_the_scores_of_the_head_once_each(layout: str, n_classes: int) -> None:
    head, features = head_of(n_classes), rows_of(30)
    every = head.scores_all(as_rows(features))
    for k, width in ((1, 1), (min(7, n_classes), 2), (n_classes, 1)):
        block = found(head, features, k, width)
        classes = classes_of(block)
        for row in range(len(features)):
            used = ~block.sums[row].isneginf()
            assert used.sum() >= k
            assert len(set(classes[row][used].tolist())) == used.sum()
            torch.testing.assert_close(
                block.sums[row][used], every[row, classes[row][used]], rtol=1e-4, atol=1e-4
            )


def test_a_search_of_everything_finds_the_best_classes(layout: str) -> None:
    head, features = head_of(300), rows_of(40)
    block = found(head, features, 300, 300)
    best = block.classes(block.sums.topk(5, dim=1).indices)
    assert torch.equal(best, head.scores_all(as_rows(features)).topk(5, dim=1).indices)


def test_what_stands_for_the_rest_is_no_candidate(layout: str) -> None:
    """Mean scores of clusters times their sizes are below what the classes have (Jensen), and
    not by much for clusters of nearly equal vectors."""
    head, features = head_of(400), rows_of(40)
    head.weight.copy_(head.weight[:40].repeat(10, 1))
    head.bias.copy_(head.bias[:40].repeat(10))
    every = head.scores_all(as_rows(features)).exp().sum(1)
    block = found(head, features, 1, 3)
    left = every - block.sums.exp().sum(1)
    stands = block.scores.exp().sum(1)
    error = (stands / left).log().abs()
    assert error.median() < 0.5
    everything = found(head, features, 400, 400)
    assert (everything.scores.isneginf()).all()


def test_most_best_classes_of_a_trained_head_are_found() -> None:
    x, y = clustered(6_000, 600, 16, seed=0)
    model = ExtremeClassifier("exact", epochs=3, random_state=0).fit(x, y)
    width = 24  # A fifth of the classes.
    best = model.predict_topk(x[:1000], 1, search="beam", width=width).labels
    exact = model.predict_topk(x[:1000], 1, search="exact").labels
    assert np.mean(best == exact) > 0.97


def test_threads_and_other_rows_do_not_matter(layout: str) -> None:
    head, features = head_of(500), rows_of(64)
    answers = []
    for n_jobs in (1, 3):
        with limit(n_jobs):
            block = found(head, features, 3, 4)
            answers.append((block.sums, classes_of(block)))
    assert all(torch.equal(a, b) for a, b in zip(*answers, strict=True))
    alone = found(head, features[:1], 3, 4)
    torch.testing.assert_close(alone.sums[0], answers[0][0][0])
    assert torch.equal(classes_of(alone)[0], answers[0][1][0])


@pytest.mark.parametrize("change", ["train", "write", "grow"])
def test_it_follows_a_head_that_changes(change: str) -> None:
    head, features = head_of(120), rows_of(50)
    searcher = VectorSearcher(head)
    index = searcher.index
    assert searcher.index is index
    if change == "train":
        labels = torch.arange(100).reshape(50, 2)
        head.step(head.inputs(as_rows(features)), labels, torch.full((50, 2), 0.7), 3.0)
    elif change == "write":
        head.weight.neg_()
    else:
        head.grow(130)
    (block,) = searcher.candidates(as_rows(features), 1, 2, NONE, identity)
    assert searcher.index is not index
    assert torch.equal(block.sums, found(head, features, 1, 2).sums)


def test_other_class_frequencies_guide_the_search_and_leave_scores_alone() -> None:
    head, features = head_of(200), rows_of(30)
    before, after = np.full(200, 1 / 200), np.full(200, 1e-9)
    after[7] = 1.0 - 199e-9
    searcher = VectorSearcher(head, Prior(before, after))
    (block,) = searcher.candidates(as_rows(features), 1, 1, NONE, identity)
    classes = classes_of(block)
    assert (classes == 7).any(1).all()
    sums = block.sums[classes == 7]
    torch.testing.assert_close(sums, head.scores_all(as_rows(features))[:, 7], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("weights", "link"), [([1.0], identity), ([], torch.abs)])
def test_logits_that_are_not_scores_are_refused(weights: list[float], link: object) -> None:
    searcher = VectorSearcher(head_of(20))
    with pytest.raises(ArgumentError, match=r"logits are ξ alone; use search="):
        next(searcher.candidates(as_rows(rows_of(3)), 1, 8, np.array(weights), link))


# Kernels ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.integers(1, 200), st.booleans(), st.integers(0, 2**31))
def test_choose_takes_the_best_up_to_a_bin(n: int, width: int, ties: bool, seed: int) -> None:
    width = min(width, n)
    random = np.random.default_rng(seed)
    scores = random.standard_normal((3, n)).astype(np.float32)
    if ties:
        scores = np.round(scores)
    before, more = scores.copy(), random.standard_normal(n).astype(np.float32)
    chosen = np.full((3, width), -1, np.int64)
    beam.choose(0, 3, scores, more, chosen)
    for i in range(3):
        assert (np.diff(chosen[i]) > 0).all()
        left = np.setdiff1d(np.arange(n), chosen[i])
        assert np.isneginf(scores[i, chosen[i]]).all()
        np.testing.assert_allclose(scores[i, left], before[i, left] + more[left], rtol=1e-5)
        if len(left):
            bin_width = np.ptp(before[i]) / 1000
            assert before[i, chosen[i]].min() >= before[i, left].max() - bin_width


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 70), st.floats(0.1, 30.0), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_log_sums_are_those_of_torch(n: int, spread: float, unused: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = torch.from_numpy(spread * random.standard_normal((4, n)).astype(np.float32))
    values[torch.from_numpy(random.random((4, n)) < unused)] = -torch.inf
    used = ~values.isneginf()
    whole, half, mean = log_sums(values).unbind(1)
    double = values.double()
    expected = double.masked_fill(~used, 0.0).sum(1) / used.sum(1).clamp(min=1)
    torch.testing.assert_close(whole.double(), double.logsumexp(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(half.double(), 2 * (double / 2).logsumexp(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mean.double(), expected, rtol=1e-4, atol=1e-4)
