"""Top-k and likelihood in blocks, against dense arithmetic in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from extremax.data.synthetic import clustered
from extremax.errors import MemoryBudgetError
from extremax.head import LinearHead
from extremax.noise import NOISES
from extremax.objectives import NegativeSampling
from extremax.prediction.blocks import Scorer, blocks, likelihood, topk

N, N_CLASSES, N_FEATURES = 130, 50, 6
LARGE = 1 << 30


class Plain(NegativeSampling):
    """An objective whose scores are logits already."""

    adds_log_q = False


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    return clustered(N, N_CLASSES, N_FEATURES, seed=2)


@pytest.fixture(params=sorted(NOISES))
def scorer(request: pytest.FixtureRequest, problem: tuple[np.ndarray, np.ndarray]) -> Scorer:
    head = LinearHead(N_CLASSES, N_FEATURES, accumulator_start=1.0, scale=1.7)
    generator = torch.Generator().manual_seed(0)
    head.weight.normal_(generator=generator)
    head.bias.normal_(generator=generator)
    noise = NOISES[request.param]().fit(*problem, N_CLASSES)
    noise.attach(head)
    return Scorer(head, noise, NegativeSampling())


def dense(scorer: Scorer, features: np.ndarray) -> np.ndarray:
    """log p of every class, float64."""
    x, head = features.astype(np.float64), scorer.head
    logits = 1.7 * x @ head.weight.double().numpy().T + head.bias.double().numpy()
    if scorer.objective.adds_log_q:
        logits = logits + scorer.noise.log_prob_all(scorer.noise.context(features)).double().numpy()
    return log_softmax(logits, axis=1)


@pytest.mark.parametrize("objective", [NegativeSampling(), Plain()])
@pytest.mark.parametrize("k", [1, 4, N_CLASSES, N_CLASSES + 9])
def test_topk_is_that_of_a_dense_sort(
    scorer: Scorer, problem: tuple[np.ndarray, np.ndarray], objective: NegativeSampling, k: int
) -> None:
    scorer.objective = objective
    truth = dense(scorer, problem[0])
    ranking = topk(scorer, problem[0], k, LARGE)
    k = min(k, N_CLASSES)
    assert ranking.labels.shape == ranking.log_probs.shape == (N, k)
    expected = -np.sort(-truth, axis=1)[:, :k]
    np.testing.assert_allclose(ranking.log_probs, expected, rtol=1e-5, atol=1e-4)
    own = np.take_along_axis(truth, ranking.labels.numpy(), 1)
    np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-4)
    assert all(len(row.unique()) == k for row in ranking.labels)


@pytest.mark.parametrize("objective", [NegativeSampling(), Plain()])
def test_likelihood_is_that_of_dense_arithmetic(
    scorer: Scorer, problem: tuple[np.ndarray, np.ndarray], objective: NegativeSampling
) -> None:
    scorer.objective = objective
    features, labels = problem
    truth = dense(scorer, features)
    result = likelihood(scorer, features, labels, LARGE)
    np.testing.assert_allclose(result.log_prob, truth[np.arange(N), labels], rtol=1e-5, atol=1e-4)
    assert np.array_equal(result.correct, truth.argmax(1) == labels)
    assert 0 < result.correct.sum() < N


def test_unknown_classes_have_no_likelihood(
    scorer: Scorer, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    labels = problem[1].copy()
    labels[::3] = -1
    result = likelihood(scorer, problem[0], labels, LARGE)
    known = labels >= 0
    assert torch.isneginf(result.log_prob[~known]).all()
    assert not result.correct[~known].any()
    assert result.log_prob[known].isfinite().all()


def test_a_small_budget_gives_the_same_answers(
    scorer: Scorer, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    features, labels = problem
    whole, sure = topk(scorer, features, 5, LARGE), likelihood(scorer, features, labels, LARGE)
    for rows in (1, 7, N - 1):
        budget = rows * scorer.bytes_a_row()
        ranking = topk(scorer, features, 5, budget)
        assert torch.equal(ranking.labels, whole.labels)
        torch.testing.assert_close(ranking.log_probs, whole.log_probs, rtol=1e-5, atol=1e-5)
        result = likelihood(scorer, features, labels, budget)
        torch.testing.assert_close(result.log_prob, sure.log_prob, rtol=1e-5, atol=1e-5)
        assert torch.equal(result.correct, sure.correct)


def test_float64_and_read_only_features_are_fine(
    scorer: Scorer, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    whole = topk(scorer, problem[0], 3, LARGE)
    frozen = problem[0].copy()
    frozen.flags.writeable = False
    for features in (problem[0].astype(np.float64), frozen, np.asfortranarray(problem[0])):
        assert torch.equal(topk(scorer, features, 3, LARGE).labels, whole.labels)


def test_no_rows_give_no_rows(scorer: Scorer, problem: tuple[np.ndarray, np.ndarray]) -> None:
    assert topk(scorer, problem[0][:0], 3, LARGE).labels.shape == (0, 3)
    assert likelihood(scorer, problem[0][:0], problem[1][:0], LARGE).log_prob.shape == (0,)


def test_one_row_over_the_budget_is_refused_with_both_numbers(
    scorer: Scorer, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    need = scorer.bytes_a_row()
    assert need >= 2 * 4 * N_CLASSES  # At least the scores and log q.
    for call in (
        lambda: topk(scorer, problem[0], 3, need - 1),
        lambda: likelihood(scorer, *problem, need - 1),
    ):
        with pytest.raises(MemoryBudgetError, match=f"{need:,}.*{need - 1:,}"):
            call()


@pytest.mark.parametrize(("budget", "rows"), [(100, 10), (109, 10), (10, 1), (10**9, 4096)])
def test_blocks_cover_the_rows_and_fit_the_budget(budget: int, rows: int) -> None:
    features = np.zeros((10_000 if rows > 100 else 43, 2))
    slices = list(blocks(features, 10, budget))
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(len(features)))
    assert max(s.stop - s.start for s in slices) == rows
