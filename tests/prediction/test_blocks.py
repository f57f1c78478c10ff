"""Rankings and likelihoods of a model in blocks of rows, against dense arithmetic in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from extremax.data import clustered
from extremax.errors import MemoryBudgetError
from extremax.evaluation import Outcomes, outcomes
from extremax.features import Encoder
from extremax.heads import LinearHead, Ranking
from extremax.heads.blocks import BYTES_PER_SCORE, row_slices
from extremax.labels import ClassLabels, LabelIndex, LabelLists, one_label_per_row
from extremax.model import Model
from extremax.noise import NOISES
from extremax.objectives import NegativeSampling, Objective, SampledSoftmax
from extremax.prediction import Blend
from extremax.rows import DenseRows

N, N_CLASSES, N_FEATURES = 130, 50, 6
ONE_ROW = BYTES_PER_SCORE * N_CLASSES
LARGE = 1 << 30


class Plain(NegativeSampling):
    """An objective whose scores are logits already."""

    adds_log_q = False


# Scores plus log q; scores; scores after a transformation.
OBJECTIVES: list[Objective] = [NegativeSampling(), Plain(), SampledSoftmax(absolute=True)]
every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=["log q", "plain", "link"])


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    return clustered(N, N_CLASSES, N_FEATURES, seed=2)


@pytest.fixture(params=sorted(NOISES))
def model(request: pytest.FixtureRequest, problem: tuple[np.ndarray, np.ndarray]) -> Model:
    head = LinearHead(N_CLASSES, N_FEATURES, accumulator_start=1.0, scale=1.7)
    generator = torch.Generator().manual_seed(0)
    head.weight.normal_(generator=generator)
    head.bias.normal_(generator=generator)
    noise = NOISES[request.param]().fit(*problem, N_CLASSES)
    labels = ClassLabels(LabelIndex(np.arange(N_CLASSES)))
    objective = NegativeSampling()
    model = Model(Encoder(), labels, head, noise, objective, Blend.start(objective, noise))
    model.attach()
    return model


def use(model: Model, objective: Objective) -> None:
    """Exchange the objective; no calibration has blended the noise with it."""
    model.objective = objective
    model.blend = Blend.start(objective, model.noise) if objective.adds_log_q else Blend()


def topk(model: Model, features: np.ndarray, k: int, budget: int = LARGE) -> Ranking:
    return model.topk(DenseRows(features), k, budget)


def likelihood(
    model: Model, features: np.ndarray, labels: np.ndarray, budget: int = LARGE
) -> Outcomes:
    return outcomes(model, DenseRows(features), one_label_per_row(labels), budget)


def dense(model: Model, features: np.ndarray) -> np.ndarray:
    """log p of every class, float64."""
    x, head = features.astype(np.float64), model.head
    assert isinstance(head, LinearHead)
    logits = 1.7 * x @ head.weight.double().numpy().T + head.bias.double().numpy()
    if model.objective.adds_log_q:
        logits = logits + model.noise.log_prob_all(model.noise.context(features)).double().numpy()
    if isinstance(model.objective, SampledSoftmax):
        logits = np.abs(logits)
    return log_softmax(logits, axis=1)


@every_objective
@pytest.mark.parametrize("k", [1, 4, N_CLASSES, N_CLASSES + 9])
def test_topk_is_that_of_a_dense_sort(
    model: Model, problem: tuple[np.ndarray, np.ndarray], objective: Objective, k: int
) -> None:
    use(model, objective)
    truth = dense(model, problem[0])
    ranking = topk(model, problem[0], k)
    k = min(k, N_CLASSES)
    assert ranking.labels.shape == ranking.log_probs.shape == (N, k)
    expected = -np.sort(-truth, axis=1)[:, :k]
    np.testing.assert_allclose(ranking.log_probs, expected, rtol=1e-5, atol=1e-4)
    ranked = np.take_along_axis(truth, ranking.labels.numpy(), 1)
    np.testing.assert_allclose(ranked, expected, rtol=1e-5, atol=1e-4)
    assert all(len(row.unique()) == k for row in ranking.labels)


@every_objective
def test_likelihood_is_that_of_dense_arithmetic(
    model: Model, problem: tuple[np.ndarray, np.ndarray], objective: Objective
) -> None:
    use(model, objective)
    features, labels = problem
    truth = dense(model, features)
    result = likelihood(model, features, labels)
    expected = truth[np.arange(N), labels]
    np.testing.assert_allclose(result.log_prob, expected, rtol=1e-5, atol=1e-4)
    assert np.array_equal(result.correct, truth.argmax(1) == labels)
    assert 0 < result.correct.sum() < N
    np.testing.assert_allclose(result.confidence, np.exp(truth.max(1)), rtol=1e-4, atol=1e-5)
    pairs = model.log_probs(DenseRows(features), np.stack([labels, labels[::-1]], 1), LARGE)
    np.testing.assert_allclose(pairs[:, 0], expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(pairs[:, 1], truth[np.arange(N), labels[::-1]], rtol=1e-5, atol=1e-4)
    every = model.log_probs_all(DenseRows(features))
    np.testing.assert_allclose(every, truth, rtol=1e-5, atol=1e-4)


def test_rows_may_have_several_labels_or_none(
    model: Model, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    truth = dense(model, problem[0][:4])
    lists = LabelLists(np.array([3, 9, -1, 9, 0]), np.array([0, 2, 2, 3, 5]))
    ranking, log_p = model.rank_and_score(DenseRows(problem[0][:4]), lists, 2, LARGE)
    expected = [truth[0, 3], truth[0, 9], -np.inf, truth[3, 9], truth[3, 0]]
    np.testing.assert_allclose(log_p, expected, rtol=1e-5, atol=1e-4)
    assert ranking.labels.shape == (4, 2)


def test_unknown_classes_have_no_likelihood(
    model: Model, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    labels = problem[1].copy()
    labels[::3] = -1
    result = likelihood(model, problem[0], labels)
    known = labels >= 0
    assert np.isneginf(result.log_prob[~known]).all()
    assert not result.correct[~known].any()
    assert np.isfinite(result.log_prob[known]).all()


@every_objective
def test_a_small_budget_gives_the_same_answers(
    model: Model, problem: tuple[np.ndarray, np.ndarray], objective: Objective
) -> None:
    use(model, objective)
    features, labels = problem
    whole, sure = topk(model, features, 5), likelihood(model, features, labels)
    for rows in (1, 7, N - 1):
        ranking = topk(model, features, 5, rows * ONE_ROW)
        assert torch.equal(ranking.labels, whole.labels)
        torch.testing.assert_close(ranking.log_probs, whole.log_probs, rtol=1e-5, atol=1e-5)
        result = likelihood(model, features, labels, rows * ONE_ROW)
        np.testing.assert_allclose(result.log_prob, sure.log_prob, rtol=1e-5, atol=1e-5)
        assert np.array_equal(result.correct, sure.correct)


def test_float64_and_read_only_features_are_fine(
    model: Model, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    whole = topk(model, problem[0], 3)
    frozen = problem[0].copy()
    frozen.flags.writeable = False
    for features in (problem[0].astype(np.float64), frozen, np.asfortranarray(problem[0])):
        assert torch.equal(topk(model, features, 3).labels, whole.labels)


def test_no_rows_give_no_rows(model: Model, problem: tuple[np.ndarray, np.ndarray]) -> None:
    assert topk(model, problem[0][:0], 3).labels.shape == (0, 3)
    assert likelihood(model, problem[0][:0], problem[1][:0]).log_prob.shape == (0,)


@every_objective
def test_one_row_over_the_budget_is_refused_with_both_numbers(
    model: Model, problem: tuple[np.ndarray, np.ndarray], objective: Objective
) -> None:
    use(model, objective)
    features, labels = problem
    for call in (
        lambda: topk(model, features, 3, ONE_ROW - 1),
        lambda: likelihood(model, features, labels, ONE_ROW - 1),
        lambda: model.log_probs(DenseRows(features), labels[:, None], ONE_ROW - 1),
    ):
        with pytest.raises(MemoryBudgetError, match=f"{ONE_ROW:,}.*{ONE_ROW - 1:,}"):
            call()


@pytest.mark.parametrize(("budget", "rows"), [(160, 10), (175, 10), (16, 1), (10**9, 4096)])
def test_slices_cover_the_rows_and_fit_the_budget(budget: int, rows: int) -> None:
    n_rows = 10_000 if rows > 100 else 43
    slices = list(row_slices(n_rows, 1, budget))
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(n_rows))
    assert max(s.stop - s.start for s in slices) == rows
    halved = list(row_slices(43, 1, 160, more=16))
    assert max(s.stop - s.start for s in halved) == 5
