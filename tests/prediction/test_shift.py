"""Other class frequencies: against the softmax over all classes of log p + log π'/π."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.special import log_softmax, logsumexp

from extremax import ExtremeClassifier, SessionRecommender
from extremax.data import clustered
from extremax.diagnostics import diagnose
from extremax.errors import ArgumentError
from extremax.labels import Prior
from extremax.noise import sparse_tree_search, sparse_tree_shape, tree_search
from extremax.prediction.shift import shifted

C = 60
X, Y = clustered(1500, C, 12, seed=0, noise=0.5)
TRAIN, TEST = slice(0, 1200), slice(1200, 1500)
ROWS: dict[str, Any] = {"dense": X, "sparse": sparse.csr_matrix(np.maximum(X, 0))}
close = {"rtol": 1e-4, "atol": 2e-5}


def fitted(kind: str, **parameters: Any) -> ExtremeClassifier:
    parameters = {
        "epochs": 2, "n_negatives": 5, "bag_size": 8, "random_state": 0, "n_jobs": 1,
    } | parameters  # fmt: skip
    return ExtremeClassifier(**parameters).fit(ROWS[kind][TRAIN], Y[TRAIN])


@pytest.fixture(scope="module")
def models() -> dict[str, ExtremeClassifier]:
    return {
        "dense": fitted("dense", calibrate=True),
        "sparse": fitted("sparse"),
        # p is no softmax of the logits.
        "probit": fitted("dense", objective="augment_reduce_probit", noise="uniform"),
        # The head ranks by itself where nothing is added to its scores.
        "exact": fitted("dense", objective="exact"),
    }


def reference(model: ExtremeClassifier, rows: Any, after: np.ndarray) -> np.ndarray:
    """log p' of every class."""
    counts = np.maximum(model.model_.labels.counts, 1)
    with np.errstate(divide="ignore"):
        shift = np.log(after) - np.log(counts)
    return log_softmax(model.predict_log_proba(rows).astype(np.float64) + shift, axis=1)


def some_prior(n: int) -> np.ndarray:
    shares = np.random.default_rng(3).gamma(0.5, size=n)
    shares[::7] = 0.0
    return shares


@pytest.mark.parametrize("name", ["dense", "sparse", "probit", "exact"])
def test_every_prediction_has_the_new_frequencies(
    models: dict[str, ExtremeClassifier], name: str
) -> None:
    model, rows = models[name], ROWS["sparse" if name == "sparse" else "dense"][TEST]
    classes, counts = model.classes_, np.maximum(model.model_.labels.counts, 1)
    plain, shares = model.predict_log_proba(rows), some_prior(len(classes))
    by_label = dict(zip(classes.tolist(), shares.tolist(), strict=True))
    for view, after in (
        (model.with_prior(shares), shares),
        (model.with_prior(by_label), shares),
        (model.with_prior(tau=0.7), counts**0.3),
        # A view of a view starts again from the frequencies in training.
        (model.with_prior(tau=0.7).with_prior(tau=0.0), counts),
    ):
        expected = reference(model, rows, after)
        np.testing.assert_allclose(view.predict_log_proba(rows), expected, **close)
        found = view.predict_topk(rows, 4, search="exact")
        np.testing.assert_allclose(found.log_probs, -np.sort(-expected, axis=1)[:, :4], **close)
        truth = view.predict_log_proba(rows, Y[TEST])
        at = expected[np.arange(300), np.searchsorted(classes, Y[TEST])]
        np.testing.assert_allclose(truth, at, **close)
    np.testing.assert_array_equal(model.predict_log_proba(rows), plain)


def test_a_class_that_does_not_occur_is_never_answered(
    models: dict[str, ExtremeClassifier],
) -> None:
    for name in ("dense", "sparse"):
        model, rows = models[name], ROWS[name][TEST]
        shares = np.ones(len(model.classes_))
        usual = model.predict(rows[:1])[0]
        shares[model.classes_ == usual] = 0
        view = model.with_prior(shares)
        for search in ("exact", "beam"):
            found = view.predict_topk(rows, len(shares), search=search)
            assert not any(usual in labels for labels in found.lists())
        assert view.predict_log_proba(rows[:1], [usual])[0] == -np.inf


def test_other_methods_of_a_view(models: dict[str, ExtremeClassifier]) -> None:
    model, rows, truth = models["dense"], X[TEST], Y[TEST]
    view = model.with_prior(tau=1.0)
    expected = reference(model, rows, np.ones(len(model.classes_)))
    at = expected[np.arange(300), np.searchsorted(model.classes_, truth)]
    assert view.log_likelihood(rows, truth) == pytest.approx(at.mean(), rel=1e-5)
    assert view.evaluate(rows, truth).accuracy == np.mean(
        model.classes_[expected.argmax(1)] == truth
    )
    explained = view.explain(rows[0], int(truth[0]))
    assert explained.log_prob == pytest.approx(at[0], rel=1e-5)
    # The temperature that diagnose fits is one of the same probabilities.
    diagnosis = diagnose(view, rows, truth)
    assert diagnosis.outcomes.log_likelihood == pytest.approx(at.mean(), rel=1e-5)
    assert diagnosis.tempered.log_likelihood >= diagnosis.outcomes.log_likelihood - 1e-6
    # Rare classes gain, as their recall counts as much as that of others.
    before, after = model.evaluate(rows, truth), view.evaluate(rows, truth)
    assert after.by_class.macro_recall[0] > before.by_class.macro_recall[0]


def test_recommendations() -> None:
    sessions = [["a", "b", "c"], ["b", "c", "a"], ["a", "b", "c"], ["c", "b"]] * 20
    model = SessionRecommender(epochs=1, random_state=0, n_jobs=1).fit(sessions)
    view = model.with_prior({"a": 1, "b": 0, "c": 5})
    assert isinstance(view, SessionRecommender)
    assert "b" not in view.recommend(["a"], k=3).items[:2]
    log_p = view.predict_log_proba([["a"]])
    np.testing.assert_allclose(log_p, reference(model, [["a"]], np.array([1, 0, 5])), **close)


# A search


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_wide_search_is_exact(
    models: dict[str, ExtremeClassifier], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_tree_search, "_CANDIDATES", C)
    model, rows = models[kind], ROWS[kind][TEST]
    for view in (model.with_prior(some_prior(len(model.classes_))), model.with_prior(tau=1.5)):
        exact = view.predict_topk(rows, 5, search="exact")
        found = view.predict_topk(rows, 5, search="beam", width=C)
        np.testing.assert_array_equal(found.labels, exact.labels)
        np.testing.assert_allclose(found.log_probs, exact.log_probs, rtol=1e-3, atol=1e-3)
        assert np.isnan(found.standard_error).all()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_narrow_search_looks_for_what_is_frequent_now(
    models: dict[str, ExtremeClassifier], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_search, "RANGE_SIZE", 2)
    monkeypatch.setattr(sparse_tree_search, "_CANDIDATES", 4)
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 3)
    model, rows = fitted(kind), ROWS[kind][TEST]
    rare = np.argsort(model.model_.labels.counts)[:20]
    shares = np.full(len(model.classes_), 1e-4)
    shares[rare] = 1.0
    view = model.with_prior(shares)
    exact = view.predict_topk(rows, 1, search="exact").labels[:, 0]
    found = view.predict_topk(rows, 1, search="beam", width=2).labels[:, 0]
    usual = model.predict_topk(rows, 2, search="beam", width=2).labels
    assert np.mean(found == exact) > 0.8
    # These are not the candidates of the usual search.
    assert np.mean((usual == exact[:, None]).any(1)) < 0.5


def test_candidates_of_two_searches_by_hand() -> None:
    rng = np.random.default_rng(0)
    n, n_classes = 40, 12
    before, after = rng.dirichlet(np.ones(n_classes)), rng.dirichlet(np.ones(n_classes))
    after[2] = 0.0
    after /= after.sum()
    logits = rng.normal(size=(n, n_classes)).astype(np.float32)
    first = np.array([rng.permutation(n_classes)[:4] for _ in range(n)])
    second = np.array([rng.permutation(n_classes)[:5] for _ in range(n)])
    found, more = (np.take_along_axis(logits, classes, 1) for classes in (first, second))
    # Unused places, with a class that the other search may have found and used.
    found[:, 3] = more[:, 0] = -np.inf
    log_z = logsumexp(logits, axis=1)
    given = [torch.from_numpy(a) for a in (found, first, more, second, log_z)]
    result = shifted(Prior(before, after), (given[0], given[1]), (given[2], given[3]), given[4])
    for i in range(n):
        candidates = {*first[i, :3].tolist(), *second[i, 1:].tolist()}
        others = [c for c in range(n_classes) if c not in candidates]
        weights = np.exp(logits[i].astype(np.float64))
        inside = sum(weights[c] * after[c] / before[c] for c in candidates)
        outside = weights[others].sum() * after[others].sum() / before[others].sum()
        assert float(result.log_z[i]) == pytest.approx(np.log(inside + outside), abs=1e-4)
        used = ~result.logits[i].isneginf().numpy()
        kept = result.classes[i].numpy()[used]
        # Each once, without the class that does not occur any more.
        assert sorted(kept) == sorted(candidates - {2})
        with np.errstate(divide="ignore"):
            expected = logits[i, kept] + np.log(after / before)[kept]
        np.testing.assert_allclose(result.logits[i].numpy()[used], expected, rtol=1e-4, atol=1e-5)


def test_nothing_found_that_occurs() -> None:
    prior = Prior(np.array([0.5, 0.25, 0.25]), np.array([0.0, 0.0, 1.0]))
    found = torch.zeros((1, 2)), torch.tensor([[0, 1]])
    # The candidates have all of Z.
    result = shifted(prior, found, found, found[0].logsumexp(1))
    assert result.logits.isneginf().all()
    assert result.log_z.isfinite().all()


# A view is no model of its own


def test_a_view_is_neither_trained_nor_saved(
    models: dict[str, ExtremeClassifier], tmp_path: Path
) -> None:
    view = models["dense"].with_prior(tau=1.0)
    with pytest.raises(ArgumentError, match="with_prior cannot be saved"):
        view.save(tmp_path / "m")
    with pytest.raises(ArgumentError, match="with_prior cannot be trained further"):
        view.partial_fit(X[:10], Y[:10])
    assert not list(tmp_path.iterdir())
    # Trained from scratch, it is a model of its own, and the other one stays as it was.
    before = models["dense"].predict_log_proba(X[TEST])
    view.set_params(epochs=1).fit(X[:300], Y[:300])
    view.save(tmp_path / "m")
    np.testing.assert_array_equal(models["dense"].predict_log_proba(X[TEST]), before)


def test_a_view_of_a_model_that_has_grown_says_so() -> None:
    model = fitted("dense", noise="uniform", epochs=1)
    view = model.with_prior(tau=1.0)
    model.partial_fit(X[:5], np.full(5, 1000))
    with pytest.raises(ArgumentError, match="call with_prior again"):
        view.predict(X[:2])
    assert model.with_prior(tau=1.0).predict_proba(X[:2]).sum() == pytest.approx(2.0)


def test_an_unfitted_model_has_no_view() -> None:
    with pytest.raises(Exception, match="not fitted"):
        ExtremeClassifier().with_prior(tau=1.0)
