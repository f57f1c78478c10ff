"""The one evaluator: figures on labeled rows, for one label per row or several."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, log_loss, ndcg_score, top_k_accuracy_score

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.evaluation import (
    Evaluation,
    class_lists,
    evaluate,
    is_correct,
    outcomes,
    reliability,
)
from extremax.labels import LabelLists

N_TRAIN, N_CLASSES = 700, 20
X, Y = clustered(1000, N_CLASSES, 6, seed=0, noise=0.5)
TEST, TRUTH = X[N_TRAIN:], Y[N_TRAIN:]
# Every second row has a second label, the next class; a third of the others none at all.
INDICATOR = np.zeros((1000, N_CLASSES), np.int64)
INDICATOR[np.arange(1000), Y] = 1
INDICATOR[np.arange(0, 1000, 2), (Y[::2] + 1) % N_CLASSES] = 1
INDICATOR[1::6] = 0
LISTS = [np.flatnonzero(row).tolist() for row in INDICATOR]
KINDS: dict[str, Any] = {
    "dense indicator": INDICATOR,
    "sparse indicator": sparse.csr_matrix(INDICATOR),
    "lists": LISTS,
}


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 3, "random_state": 0, "n_jobs": 1} | parameters)


@pytest.fixture(scope="module")
def single() -> ExtremeClassifier:
    return small().fit(X[:N_TRAIN], Y[:N_TRAIN])


@pytest.fixture(scope="module")
def multilabel() -> ExtremeClassifier:
    return small().fit(X[:N_TRAIN], INDICATOR[:N_TRAIN])


@pytest.fixture(scope="module")
def on_sparse_rows() -> ExtremeClassifier:
    rows = sparse.csr_matrix(np.maximum(X, 0))
    return small(bag_size=8).fit(rows[:N_TRAIN], Y[:N_TRAIN])


def assert_close(a: Evaluation, b: Evaluation) -> None:
    assert (a.rows, a.labels, a.unseen) == (b.rows, b.labels, b.unseen)
    assert a.log_prob == pytest.approx(b.log_prob, rel=1e-5)
    for name in ("precision", "recall", "ndcg", "scored_precision"):
        np.testing.assert_allclose(getattr(a.ranking, name), getattr(b.ranking, name), rtol=1e-12)
    np.testing.assert_allclose(a.marginals.brier, b.marginals.brier, rtol=1e-4)


# One label per row


def test_figures_are_those_of_scikit_learn(single: ExtremeClassifier) -> None:
    result = single.evaluate(TEST, TRUTH)
    assert (result.rows, result.labels, result.unseen) == (300, 300, 0)
    predicted = single.predict_topk(TEST, 1, search="exact").labels[:, 0]
    assert result.accuracy == np.mean(predicted == TRUTH)
    p = single.predict_proba(TEST).astype(np.float64)
    p /= p.sum(1, keepdims=True)
    columns = np.arange(N_CLASSES)
    assert result.log_likelihood == pytest.approx(-log_loss(TRUTH, p, labels=columns), rel=1e-5)
    assert single.log_likelihood(TEST, TRUTH) == result.log_likelihood
    assert result.top5_accuracy == top_k_accuracy_score(TRUTH, p, k=5, labels=columns)
    for k in range(1, 6):
        expected = top_k_accuracy_score(TRUTH, p, k=k, labels=columns)
        assert result.ranking.recall[k - 1] == pytest.approx(expected)
        assert result.ranking.precision[k - 1] == pytest.approx(expected / k)


def test_accuracy_on_sparse_rows_is_that_of_exact_prediction(
    on_sparse_rows: ExtremeClassifier,
) -> None:
    rows = sparse.csr_matrix(np.maximum(TEST, 0))
    result = on_sparse_rows.evaluate(rows, TRUTH)
    predicted = on_sparse_rows.predict_topk(rows, 1, search="exact").labels[:, 0]
    assert result.accuracy == pytest.approx(np.mean(predicted == TRUTH))
    log_p = on_sparse_rows.predict_log_proba(rows, TRUTH)
    assert result.log_likelihood == pytest.approx(log_p.mean(), rel=1e-5)


def test_score_is_the_accuracy_of_predict(
    single: ExtremeClassifier, on_sparse_rows: ExtremeClassifier
) -> None:
    weights = np.random.default_rng(0).random(300)
    weights[:100] = 0
    for classifier, rows in ((single, TEST), (on_sparse_rows, sparse.csr_matrix(TEST.clip(0)))):
        predicted = classifier.predict(rows)
        assert classifier.score(rows, TRUTH) == accuracy_score(TRUTH, predicted)
        expected = accuracy_score(TRUTH, predicted, sample_weight=weights)
        assert classifier.score(rows, TRUTH, weights) == pytest.approx(expected)
        assert classifier.score(rows, TRUTH, weights.tolist()) == pytest.approx(expected)


def test_blocks_add_up(single: ExtremeClassifier, multilabel: ExtremeClassifier) -> None:
    for classifier, truth in ((single, Y), (multilabel, INDICATOR)):
        model = classifier.model_
        rows, lists = model.encoder.transform(TEST), class_lists(model, truth[N_TRAIN:], 300)
        whole = evaluate(model, rows, lists, 2**29)
        parts = [slice(0, 1), slice(1, 180), slice(180, 180), slice(180, 300)]
        blocks = [evaluate(model, rows[part], lists[part], 2**29) for part in parts]
        assert_close(sum(blocks, Evaluation()), whole)
        # In blocks of a few rows within one call, too.
        assert_close(evaluate(model, rows, lists, 16 * N_CLASSES * 7), whole)


def test_unseen_labels_are_counted_and_left_out_of_the_log_likelihood(
    single: ExtremeClassifier,
) -> None:
    truth = TRUTH.copy()
    truth[:60] = 1000
    result, known = single.evaluate(TEST, truth), single.evaluate(TEST[60:], TRUTH[60:])
    assert (result.rows, result.labels, result.unseen) == (300, 300, 60)
    assert result.log_likelihood == pytest.approx(known.log_likelihood, rel=1e-5)
    # An unseen label is never predicted.
    assert result.accuracy == pytest.approx(known.accuracy * 240 / 300)
    assert single.score(TEST, truth) == pytest.approx(result.accuracy)
    nothing = single.evaluate(TEST[:5], truth[:5])
    assert (nothing.accuracy, nothing.log_likelihood) == (0.0, -math.inf)


def test_an_empty_evaluation_has_no_rows() -> None:
    empty = Evaluation()
    assert (empty.rows, empty.labels, empty.accuracy, empty.top5_accuracy) == (0, 0, 0.0, 0.0)
    assert empty.log_likelihood == -math.inf
    assert empty + empty == empty


def test_fewer_classes_than_ranks() -> None:
    classifier = small(noise="uniform").fit(X, Y % 3)
    result = classifier.evaluate(X, Y % 3)
    assert result.top5_accuracy == result.ranking.recall[2] == 1.0
    assert result.ranking.precision[4] == pytest.approx(1 / 5)


def test_an_unfitted_classifier_says_so() -> None:
    for method in (small().evaluate, small().score):
        with pytest.raises(NotFittedError):
            method(TEST, TRUTH)


def test_rows_and_labels_must_match(single: ExtremeClassifier) -> None:
    for method in (single.evaluate, single.score):
        with pytest.raises(ValueError, match="X has 10 rows but y has 9"):
            method(TEST[:10], TRUTH[:9])
        with pytest.raises(ValueError, match="X has 10 rows, but y has 9"):
            method(TEST[:10], LISTS[:9])


# Several labels per row


@pytest.mark.parametrize("fitted", KINDS)
def test_every_kind_of_multilabel_targets_trains_the_same_model(
    fitted: str, multilabel: ExtremeClassifier
) -> None:
    classifier = small().fit(X[:N_TRAIN], KINDS[fitted][:N_TRAIN])
    assert classifier.model_.labels.multilabel
    assert np.array_equal(classifier.classes_, np.arange(N_CLASSES))
    assert np.array_equal(classifier.model_.labels.counts, INDICATOR[:N_TRAIN].sum(0))
    assert classifier.model_.labels.n_rows == N_TRAIN
    assert np.array_equal(classifier.predict_proba(TEST), multilabel.predict_proba(TEST))


@pytest.mark.parametrize("asked", KINDS)
def test_figures_of_several_labels_are_those_of_scikit_learn(
    asked: str, multilabel: ExtremeClassifier
) -> None:
    truth = INDICATOR[N_TRAIN:]
    result = multilabel.evaluate(TEST, KINDS[asked][N_TRAIN:])
    labeled = truth.any(1)
    assert 0 < labeled.sum() < 300
    assert (result.rows, result.labels, result.unseen) == (labeled.sum(), truth.sum(), 0)
    p = multilabel.predict_proba(TEST).astype(np.float64)[labeled]
    truth = truth[labeled]
    # The best classes by share, in the order of their marginals.
    found = multilabel.predict_topk(TEST[labeled], N_CLASSES, search="exact")
    order, eta = multilabel.model_.labels.encode(found.labels), np.zeros_like(p)
    np.put_along_axis(eta, order, found.marginals.astype(np.float64), 1)
    assert (np.diff(found.marginals, axis=1) <= 0).all()
    assert result.accuracy == pytest.approx(truth[np.arange(len(p)), order[:, 0]].mean())
    assert multilabel.score(TEST, KINDS[asked][N_TRAIN:]) == pytest.approx(result.accuracy)
    assert result.log_likelihood == pytest.approx(np.log(p)[truth == 1].mean(), rel=1e-5)
    hits = np.take_along_axis(truth, order[:, :5], axis=1).cumsum(1)
    np.testing.assert_allclose(result.ranking.precision, hits.mean(0) / np.arange(1, 6))
    np.testing.assert_allclose(result.ranking.recall, (hits / truth.sum(1)[:, None]).mean(0))
    for k in range(1, 6):
        assert result.ranking.ndcg[k - 1] == pytest.approx(ndcg_score(truth, eta, k=k))


def test_brier_score_and_calibration_are_those_of_marginals(
    single: ExtremeClassifier, multilabel: ExtremeClassifier
) -> None:
    labeled = INDICATOR[N_TRAIN:].any(1)
    rows, several = TEST[labeled], INDICATOR[N_TRAIN:][labeled]
    one = np.eye(N_CLASSES, dtype=np.int64)[TRUTH[labeled]]
    for classifier, truth in ((single, one), (multilabel, several)):
        tally = classifier.evaluate(rows, truth).marginals
        found = classifier.predict_topk(rows, 5, search="exact")
        hit = np.take_along_axis(truth, classifier.model_.labels.encode(found.labels), 1)
        for k in range(1, 6):
            eta, true = found.marginals[:, :k].ravel(), hit[:, :k].ravel()
            assert tally.brier[k - 1] == pytest.approx(np.square(eta - true).mean(), rel=1e-4)
            # Equal probabilities stay in one bin of the tally, and 250 rows are few for 15 bins.
            expected = reliability(eta, true).error
            assert tally.calibration_error[k - 1] == pytest.approx(expected, abs=0.04)


def test_rows_without_labels_have_no_effect(multilabel: ExtremeClassifier) -> None:
    labeled = INDICATOR[N_TRAIN:].any(1)
    truth, rows = INDICATOR[N_TRAIN:][labeled], TEST[labeled]
    expected = multilabel.evaluate(rows, truth)
    assert_close(multilabel.evaluate(TEST, INDICATOR[N_TRAIN:]), expected)
    model = multilabel.model_
    lists = class_lists(model, INDICATOR[N_TRAIN:], 300)
    result = outcomes(model, model.encoder.transform(TEST), lists, 2**29)
    assert result.accuracy == pytest.approx(expected.accuracy)
    assert result.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-5)
    weights = np.random.default_rng(0).random(300)
    assert multilabel.score(TEST, INDICATOR[N_TRAIN:], weights) == pytest.approx(
        multilabel.score(rows, truth, weights[labeled])
    )


def test_unseen_labels_among_several(multilabel: ExtremeClassifier) -> None:
    plain = multilabel.evaluate(TEST[:50], [[0, 3]] * 50)
    result = multilabel.evaluate(TEST[:50], [[0, 3, 99]] * 50)
    assert (result.rows, result.labels, result.unseen) == (50, 150, 50)
    assert result.log_likelihood == pytest.approx(plain.log_likelihood)
    np.testing.assert_allclose(result.ranking.precision, plain.ranking.precision)
    np.testing.assert_allclose(result.ranking.recall, plain.ranking.recall * 2 / 3)
    # A column that training never saw is an unseen label as well.
    wider = np.zeros((50, N_CLASSES + 4), np.int64)
    wider[:, [0, 3, N_CLASSES + 2]] = 1
    assert_close(multilabel.evaluate(TEST[:50], wider), result)


def test_labels_of_any_kind() -> None:
    names = np.array([f"class {i}" for i in range(N_CLASSES)], object)
    named = [[names[label] for label in labels] for labels in LISTS]
    classifier = small().fit(X[:N_TRAIN], named[:N_TRAIN])
    result = classifier.evaluate(TEST, named[N_TRAIN:])
    best = classifier.predict_topk(TEST, 1, search="exact").labels[:, 0]
    labeled = [i for i in range(300) if named[N_TRAIN + i]]
    expected = np.mean([best[i] in named[N_TRAIN + i] for i in labeled])
    assert result.accuracy == classifier.score(TEST, named[N_TRAIN:]) == pytest.approx(expected)


def test_a_multilabel_model_takes_single_labels_and_the_other_way_around(
    single: ExtremeClassifier, multilabel: ExtremeClassifier
) -> None:
    lists = [[label] for label in TRUTH]
    for classifier in (single, multilabel):
        assert_close(classifier.evaluate(TEST, TRUTH), classifier.evaluate(TEST, lists))
        assert classifier.score(TEST, TRUTH) == classifier.score(TEST, lists)


def test_a_row_is_correct_if_its_best_class_is_any_of_its_labels() -> None:
    truth = LabelLists(np.array([3, 5, 1, -1, 2]), np.array([0, 2, 2, 4, 5]))
    assert is_correct(np.array([5, 0, 1, 4]), truth).tolist() == [True, False, True, False]
