"""Top-k, probabilities and what they may cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.classifier import TopK
from extremax.data.synthetic import clustered
from extremax.errors import MemoryBudgetError
from extremax.noise import TreeNoise

N_CLASSES = 90
X, Y = clustered(4000, N_CLASSES, 12, seed=0)
NAMES = np.array([f"name {i:02d}" for i in range(N_CLASSES)])


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 3, "n_jobs": 1, "random_state": 0} | parameters)


@pytest.fixture(scope="module", params=["tree", "uniform", "frequency"])
def model(request: Any) -> ExtremeClassifier:
    return small(noise=request.param).fit(X, NAMES[Y])


@pytest.fixture(scope="module")
def tree() -> ExtremeClassifier:
    return small(noise=TreeNoise(n_components=8)).fit(X, NAMES[Y])


@pytest.mark.parametrize("k", [1, 5, N_CLASSES, N_CLASSES + 50])
def test_topk_is_the_sorted_table_of_probabilities(model: ExtremeClassifier, k: int) -> None:
    table = model.predict_log_proba(X[:200])
    order = np.argsort(-table, axis=1, kind="stable")[:, :k]
    found = model.predict_topk(X[:200], k)
    expected = np.take_along_axis(table, order, 1)
    np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)
    # Labels of equal probability may come in either order.
    apart = np.abs(np.diff(expected, axis=1)).min(1, initial=1.0) > 1e-4
    if k <= 5:
        assert apart.mean() > 0.9
    assert np.array_equal(found.labels[apart], model.classes_[order][apart])
    assert found.normalization == "exact"
    assert found.recall is None


def test_log_probabilities_are_normalized(model: ExtremeClassifier) -> None:
    everything = model.predict_topk(X[:50], N_CLASSES)
    np.testing.assert_allclose(np.exp(everything.log_probs).sum(1), 1.0, rtol=1e-5)
    assert (np.diff(everything.log_probs, axis=1) <= 0).all()
    for row in everything.labels:
        assert set(row) == set(NAMES)
    np.testing.assert_allclose(model.predict_proba(X[:50]).sum(1), 1.0, rtol=1e-5)


def test_predict_is_the_first_of_topk(model: ExtremeClassifier) -> None:
    labels, log_probs = model.predict_topk(X, 1)
    assert np.array_equal(model.predict(X), labels[:, 0])
    np.testing.assert_allclose(model.predict_log_proba(X, labels[:, 0]), log_probs[:, 0], atol=1e-5)


def test_topk_unpacks_as_two(model: ExtremeClassifier) -> None:
    result = model.predict_topk(X[:7], 3)
    labels, log_probs = result
    assert isinstance(result, TopK)
    assert labels is result.labels
    assert log_probs is result.log_probs
    assert labels.shape == log_probs.shape == (7, 3)


def test_recall_of_an_exact_search_is_one(model: ExtremeClassifier) -> None:
    assert model.predict_topk(X[:5], recall=True).recall == 1.0


def test_a_dense_request_over_the_budget_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small(memory_budget=20 * N_CLASSES).fit(X, Y)
    allowed = model.memory_budget // (4 * N_CLASSES)
    assert model.predict_proba(X[:allowed]).shape == (allowed, N_CLASSES)
    size = 4 * (allowed + 1) * N_CLASSES
    for call in (model.predict_proba, model.predict_log_proba):
        with pytest.raises(MemoryBudgetError, match=f"{size:,} bytes, over the memory budget"):
            call(X[: allowed + 1])
    # Nothing is scored, let alone allocated: a refusal costs nothing.
    monkeypatch.setattr(model.model_, "log_probs_all", None)
    with pytest.raises(MemoryBudgetError, match=f"4,000 rows × {N_CLASSES} classes"):
        model.predict_proba(X)
    assert issubclass(MemoryBudgetError, MemoryError)


def test_requests_that_stream_work_within_any_budget_for_one_row() -> None:
    ample, tight = small().fit(X, Y), small().fit(X, Y)
    tight.memory_budget = 16 * N_CLASSES
    np.testing.assert_allclose(
        ample.predict_log_proba(X[:40], Y[:40]), tight.predict_log_proba(X[:40], Y[:40]), atol=1e-5
    )
    assert np.array_equal(ample.predict(X[:40]), tight.predict(X[:40]))
    assert ample.evaluate(X, Y).accuracy == tight.evaluate(X, Y).accuracy
    tight.memory_budget -= 1
    with pytest.raises(MemoryBudgetError, match=f"one row .*needs {16 * N_CLASSES:,} bytes"):
        tight.predict(X[:1])


def test_requests_that_make_no_sense_are_refused(tree: ExtremeClassifier) -> None:
    with pytest.raises(ValueError, match="k must be an integer >= 1, got 0"):
        tree.predict_topk(X, 0)
    with pytest.raises(ValueError, match="search must be None, 'exact' or 'beam', got 'depth'"):
        tree.predict_topk(X, search="depth")


def test_beam_search_needs_a_tree() -> None:
    for noise in ("uniform", "frequency"):
        model = small(epochs=1, noise=noise).fit(X, Y)
        with pytest.raises(ValueError, match=r"offers no search; use search='exact'"):
            model.predict_topk(X, search="beam")


def test_a_beam_as_wide_as_all_classes_is_exact(tree: ExtremeClassifier) -> None:
    exact = tree.predict_topk(X[:300], 10)
    beam = tree.predict_topk(X[:300], 10, search="beam", width=N_CLASSES, recall=True)
    assert beam.recall == 1.0
    assert beam.normalization == "over candidates"
    np.testing.assert_allclose(beam.log_probs, exact.log_probs, atol=1e-4)
    assert (beam.labels == exact.labels).mean() > 0.999


def test_recall_is_the_share_of_rows_whose_best_class_was_found(tree: ExtremeClassifier) -> None:
    exact = tree.predict(X)
    shares = []
    for width in (1, 4, 16):
        beam = tree.predict_topk(X, 1, search="beam", width=width, recall=True)
        assert beam.recall == pytest.approx((beam.labels[:, 0] == exact).mean())
        assert tree.predict_topk(X, 1, search="beam", width=width).recall is None
        shares.append(beam.recall)
    assert shares == sorted(shares)
    assert shares[0] < 1.0
    assert shares[-1] > 0.95


def test_beam_labels_come_in_their_own_names(tree: ExtremeClassifier) -> None:
    labels, log_probs = tree.predict_topk(X[:20], 4, search="beam", width=2)
    assert labels.shape == log_probs.shape == (20, 4)
    assert set(labels.ravel()) <= set(NAMES)
    assert all(len(set(row)) == 4 for row in labels)


@pytest.mark.parametrize("renormalize", [False, True])
def test_the_best_among_some_labels(model: ExtremeClassifier, renormalize: bool) -> None:
    among = [*NAMES[[3, 5, 9, 11]], NAMES[5]]
    found = model.predict_topk(X[:40], 3, among=among, renormalize=renormalize)
    table = model.predict_proba(X[:40])[:, model.model_.labels.encode(NAMES[[3, 5, 9, 11]])]
    expected = np.sort(table / table.sum(1, keepdims=True) if renormalize else table, 1)[:, ::-1]
    np.testing.assert_allclose(np.exp(found.log_probs), expected[:, :3], rtol=1e-4, atol=1e-7)
    assert np.isin(found.labels, among).all()
    both = model.predict_topk(X[:40], 9, among=among, exclude=NAMES[[3, 5, 9]])
    assert [row.tolist() for row in both.lists()] == [[NAMES[11]]] * 40
    nothing = model.predict_topk(X[:4], 2, among=among, exclude=among, renormalize=renormalize)
    assert [row.tolist() for row in nothing.lists()] == [[]] * 4


@pytest.mark.parametrize("search", ["exact", "beam"])
def test_excluded_labels_are_not_answered(tree: ExtremeClassifier, search: str) -> None:
    everything = tree.predict_topk(X[:40], 6, search=search)
    exclude = [*np.unique(everything.labels[:, 0])[:3], "never seen"]
    found = tree.predict_topk(X[:40], 2, search=search, exclude=exclude)
    for i, row in enumerate(everything.labels):
        places = np.flatnonzero(~np.isin(row, exclude))[:2]
        assert found.labels[i].tolist() == row[places].tolist()
        np.testing.assert_allclose(found.log_probs[i], everything.log_probs[i, places], atol=1e-5)
    again = tree.predict_topk(X[:40], 2, search=search, exclude=exclude, renormalize=True)
    lost = np.exp(tree.predict_log_proba(X[:40], [exclude[:3]] * 40)).sum(1)
    gain = np.exp(again.log_probs[:, 0] - found.log_probs[:, 0])
    np.testing.assert_allclose(gain, 1 / (1 - lost), rtol=1e-3 if search == "exact" else 0.1)


def test_a_threshold_leaves_out_what_is_improbable(model: ExtremeClassifier) -> None:
    everything = model.predict_topk(X[:40], 5)
    found = model.predict_topk(X[:40], 5, threshold=0.2)
    for row, log_probs, kept in zip(*everything, found.lists(), strict=True):
        assert kept.tolist() == row[np.exp(log_probs) >= 0.2].tolist()
    assert {len(row) for row in found.lists()} != {5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 1.5}, "threshold must be a number from 0 to 1"),
        ({"threshold": float("nan")}, "threshold must be a number from 0 to 1"),
        ({"among": []}, "among is empty"),
        ({"among": ["never seen"]}, "among has .*never seen.*, which training never saw"),
        ({"among": "a text"}, "among must be a list of labels"),
        ({"exclude": "a text"}, "exclude must be a list of labels"),
        ({"exclude": 7}, "exclude must be a list of labels"),
        ({"among": [NAMES[0]], "search": "beam"}, "a beam may miss its labels"),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    model: ExtremeClassifier, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        model.predict_topk(X[:3], 2, **given)
