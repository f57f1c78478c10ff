"""How sure to be of a row: the map against a plain loop, its fit against other weights and against
rows whose true probabilities are known, and the same probabilities in every answer of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax

from extremax import ExtremeClassifier, SessionRecommender
from extremax.data import clustered
from extremax.errors import ArgumentError, ModelFileError
from extremax.evaluation.reliability import reliability
from extremax.prediction.confidence import MOST, N_BEST, Confidence
from extremax.training.confidence import fitted_to

C = 60
EVERYWHERE = (-100.0,) * 4, (100.0,) * 4


def plain(log_p: np.ndarray, counts: np.ndarray, w: Any, v: Any) -> np.ndarray:
    """log p' of every class of one row, from its definition."""
    order = np.argsort(-log_p)
    first, second = np.exp(log_p[order[:2]])
    numbers = [1.0, np.log(first), -np.log(max(1.0 - first, 1e-4)), np.log(first / second)]
    numbers.append(np.log1p(counts[order[0]]))
    beta = np.exp(np.clip(np.dot(w, numbers), -MOST, MOST))
    t = max(np.log(1 / 128), log_p[order[N_BEST - 1]])
    raised = np.array([lp + (beta - 1.0) * (lp - t) if lp > t else lp for lp in log_p])
    lead = raised[order[0]] - raised[order[1]]
    raised[order[0]] -= min(np.clip(np.dot(v, numbers), -MOST, MOST), 0.98 * lead)
    return raised - np.log(np.exp(raised).sum())


@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.1, 3.0))
def test_it_is_the_formula(seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    log_p = log_softmax(scale * random.standard_normal((4, C)), axis=1)
    counts = random.integers(0, 1000, C)
    w, v = (tuple(0.3 * random.standard_normal(5)) for _ in range(2))
    expected = np.stack([plain(row, counts, w, v) for row in log_p])
    confidence = Confidence(w, v, *EVERYWHERE)
    every = torch.from_numpy(log_p)
    log_counts = torch.from_numpy(np.log1p(counts))
    np.testing.assert_allclose(confidence.of_all(every, log_counts)(every), expected, atol=1e-9)
    best, classes = every.topk(N_BEST)
    from_best = confidence.of_best(best, log_counts[classes[:, 0]])
    np.testing.assert_allclose(from_best(every), expected, atol=1e-9)
    mapped = from_best(every).numpy()
    falling = np.take_along_axis(mapped, np.argsort(-log_p, axis=1), 1)
    assert (np.diff(falling, axis=1) <= 1e-12).all()
    # The best class stays the best.
    assert (falling[:, 0] > falling[:, 1]).all()


def test_rows_with_few_classes_or_none() -> None:
    nothing = -torch.inf
    best = torch.tensor([[0.0, nothing, nothing], [-1.0, -2.0, nothing], [nothing] * 3])
    confidence = Confidence((0.5, 0.1, 0.1, 0.1, 0.1), (0.3, 0.1, 0.0, 0.0, 0.0), *EVERYWHERE)
    mapped = confidence.of_best(best, torch.ones(3))(best)
    assert not mapped.isnan().any()
    assert torch.equal(mapped.isneginf(), best.isneginf())
    assert mapped[0, 0] == 0.0
    one = torch.tensor([[0.0]])
    assert confidence.of_best(one, torch.ones(1))(one)[0, 0] == 0.0


def distorted(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray]:
    """Rows whose labels follow a softmax, and what a model says that is too sure of sure rows:
    log p of its best classes, log counts, which is the label, and the true log p of the first."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal((n, C)) * random.uniform(0.5, 3.0, (n, 1))
    truth = log_softmax(logits, axis=1)
    label = (truth + random.gumbel(size=truth.shape)).argmax(1)
    beta = np.exp(0.3 + 0.3 * truth.max(1, keepdims=True))
    said = torch.from_numpy(log_softmax(2.0 * beta * logits, axis=1))
    best, classes = said.topk(N_BEST)
    first = np.take_along_axis(truth, classes[:, :1].numpy(), 1)[:, 0]
    return best, torch.zeros(n), classes == torch.from_numpy(label)[:, None], first


def test_probabilities_come_true_after_the_fit() -> None:
    best, counts, found, _ = distorted(8000, 0)
    confidence = fitted_to(best, counts, found)
    assert confidence is not None
    best, counts, found, truth = distorted(20_000, 1)
    mapped = confidence.of_best(best, counts)(best)[:, 0].exp().numpy()
    correct = found[:, 0].numpy()
    before, after = reliability(best[:, 0].exp().numpy(), correct), reliability(mapped, correct)
    assert before.above_chance > 0.1
    assert after.above_chance < 0.01
    # Row by row, too, and not only on average.
    error = np.abs(mapped - np.exp(truth)).mean()
    assert error < 0.25 * np.abs(best[:, 0].exp().numpy() - np.exp(truth)).mean()


def test_no_other_weights_are_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extremax.training.confidence._PULL", 1e-3)
    best, counts, found, _ = distorted(2000, 0)
    confidence = fitted_to(best, counts, found)
    assert confidence is not None
    is_label = found.numpy()

    def value(other: Confidence) -> float:
        mapped = other.of_best(best, counts)
        log_p, last = mapped(best).numpy(), best[:, -1:]
        likelihood = np.where(is_label, log_p, 0.0).sum(1)
        # A label that is not among the best has p in proportion to that of the last of them.
        outside = (mapped(last) - last).numpy()[:, 0]
        return float((likelihood + np.where(is_label.any(1), 0.0, outside)).mean())

    reached = value(confidence)
    for name in ("exponent", "lowered"):
        for place in range(4):
            for step in (-0.3, 0.3):
                weights = np.array(getattr(confidence, name))
                weights[place] += step
                assert value(replace(confidence, **{name: tuple(weights)})) < reached


# In a model ---------------------------------------------------------------------------------------

X, Y = clustered(9000, C, 12, seed=0, noise=1.0)
SPARSE = sparse.csr_matrix(np.maximum(X, 0))
TRAIN, TEST = slice(0, 7000), slice(7000, 9000)


def sessions() -> list[list[int]]:
    random = np.random.default_rng(0)
    return (5 * random.integers(12, size=(2500, 1)) + random.integers(5, size=(2500, 4))).tolist()


def trained(kind: str) -> tuple[ExtremeClassifier, Any, np.ndarray]:
    common: dict[str, Any] = {"random_state": 0, "n_jobs": 1, "epochs": 2, "bag_size": 8}
    if kind == "sessions":
        from extremax.data.sequences import Sequences

        recommender = SessionRecommender(**common).fit(sessions())
        return recommender, Sequences.of([[1, 2], [7], [11, 14, 13]]), np.array([3, 8, 12])
    if kind in ("texts", "ensemble"):
        n_models = 2 if kind == "ensemble" else 1
        model = ExtremeClassifier(n_models=n_models, **common).fit(SPARSE[TRAIN], Y[TRAIN])
        return model, SPARSE[TEST], Y[TEST]
    objective, rows = {
        "dense": ("negative_sampling", X), "exact": ("exact", X), "support": ("exact", SPARSE),
    }[kind]  # fmt: skip
    model = ExtremeClassifier(objective, calibrate=True, **common).fit(rows[TRAIN], Y[TRAIN])
    return model, rows[TEST], Y[TEST]


@pytest.mark.parametrize("kind", ["texts", "ensemble", "sessions", "dense", "exact", "support"])
def test_every_answer_has_it(kind: str, tmp_path: Path) -> None:
    model, rows, truth = trained(kind)
    confidence = Confidence((0.4, 0.2, -0.1, 0.1, 0.05), (0.2, 0.1, 0.0, 0.1, 0.0), *EVERYWHERE)
    model.model_.confidence = confidence
    close = {"rtol": 1e-4, "atol": 2e-5}
    log_p = model.predict_log_proba(rows)
    np.testing.assert_allclose(np.exp(log_p).sum(1), 1.0, rtol=1e-5)
    model.model_.confidence = None
    counts = model.model_.labels.counts
    before = torch.from_numpy(model.predict_log_proba(rows)).double()
    expected = confidence.of_all(before, torch.from_numpy(np.log1p(counts)))(before)
    model.model_.confidence = confidence
    np.testing.assert_allclose(log_p, expected, **close)
    found = model.predict_topk(rows, 4, search="exact")
    np.testing.assert_allclose(found.log_probs, expected.topk(4).values, **close)
    np.testing.assert_allclose(
        model.predict_log_proba(rows, found.labels), found.log_probs, **close
    )
    codes = model.model_.labels.encode(truth)[:, None]
    figures = model.outcomes(rows, truth)
    np.testing.assert_allclose(
        figures.log_prob, np.take_along_axis(expected.numpy(), codes, 1)[:, 0], **close
    )
    if model.model_.searcher is not None:
        searched = model.predict_topk(rows, C, search="beam", width=1000)
        order = np.argsort(model.model_.labels.encode(searched.labels.ravel()).reshape(-1, C), 1)
        by_class = np.take_along_axis(searched.log_probs, order, 1)
        np.testing.assert_allclose(by_class, expected, **close)
    prior = np.random.default_rng(1).gamma(1.0, size=len(model.classes_))
    shifted = model.with_prior(prior).predict_log_proba(rows)
    ratio = np.log(prior) - np.log(np.maximum(counts, 1))
    np.testing.assert_allclose(shifted, log_softmax(expected.numpy() + ratio, axis=1), **close)
    model.save(tmp_path / "model")
    again = type(model).load(tmp_path / "model")
    assert again.model_.confidence == confidence
    assert np.array_equal(again.predict_log_proba(rows), log_p)


def test_probabilities_that_are_right_stay_as_they_are() -> None:
    random = np.random.default_rng(0)
    said = torch.from_numpy(log_softmax(2.0 * random.standard_normal((5000, C)), axis=1))
    label = (said.numpy() + random.gumbel(size=said.shape)).argmax(1)
    best, classes = said.topk(N_BEST)
    found = classes == torch.from_numpy(label)[:, None]
    assert fitted_to(best, torch.zeros(len(best)), found) is None


def test_fit_learns_it_where_experts_are_blended_or_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned = Confidence((0.1,) * 5, (0.0,) * 5, *EVERYWHERE)
    monkeypatch.setattr("extremax.training.confidence.fitted_to", lambda *_: learned)
    for kind in ("texts", "ensemble", "sessions", "exact"):
        assert trained(kind)[0].model_.confidence is learned
    plain = ExtremeClassifier("exact", random_state=0, epochs=2).fit(X[TRAIN], Y[TRAIN])
    assert plain.model_.confidence is None


def test_too_few_held_out_rows_leave_probabilities_as_they_are() -> None:
    model = ExtremeClassifier(random_state=0, epochs=1, bag_size=4).fit(SPARSE[:1000], Y[:1000])
    assert model.model_.confidence is None


def test_recalibrate_fits_to_other_rows() -> None:
    """Half of the labels of the rows that the model meets are wrong."""
    model = ExtremeClassifier("exact", random_state=0, n_jobs=1).fit(X[:5000], Y[:5000])
    random = np.random.default_rng(0)
    labels = np.where(random.random(len(Y)) < 0.5, random.integers(C, size=len(Y)), Y)
    before = model.evaluate(X[TEST], labels[TEST])
    assert model.recalibrate(X[5000:7000], labels[5000:7000]) is model
    after = model.evaluate(X[TEST], labels[TEST])
    assert after.accuracy == before.accuracy
    assert after.log_likelihood > before.log_likelihood + 0.1
    found = model.predict_topk(X[TEST], 1)
    correct = found.labels[:, 0] == labels[TEST]
    assert reliability(np.exp(found.log_probs[:, 0]), correct).above_chance < 0.03


def test_recalibrate_fits_marginals_where_rows_have_several_labels() -> None:
    labels = [[int(y), (int(y) + 1) % C] for y in Y]
    model = ExtremeClassifier("exact", random_state=0, n_jobs=1, epochs=3)
    model.fit(X[:5000], labels[:5000])
    one = [[int(y)] for y in Y]
    model.recalibrate(X[5000:7000], one[5000:7000])
    assert model.model_.confidence is None
    assert model.expected_labels(X[TEST]).mean() == pytest.approx(1.0, abs=0.1)


def test_what_recalibrate_refuses() -> None:
    model = ExtremeClassifier("exact", random_state=0, epochs=1).fit(X[:2000], Y[:2000])
    with pytest.raises(ArgumentError, match="at least 500 labeled rows, got 10"):
        model.recalibrate(X[:10], Y[:10])
    with pytest.raises(ArgumentError, match="one label per row"):
        model.recalibrate(X[:600], [[0, 1]] * 600)
    with pytest.raises(ArgumentError, match="view made by with_prior"):
        model.with_prior(tau=1.0).recalibrate(X[:600], Y[:600])
    assert model.model_.confidence is None


@pytest.mark.parametrize(
    "damage",
    [
        {"exponent": [0.0] * 4},
        {"lowered": [1e30] + [0.0] * 4},
        {"low": [1.0] * 4, "high": [0.0] * 4},
        {"high": []},
    ],
)
def test_a_damaged_map_is_refused(damage: dict[str, Any]) -> None:
    settings = Confidence((0.0,) * 5, (0.0,) * 5, (0.0,) * 4, (1.0,) * 4).settings()
    assert Confidence.restore(**json.loads(json.dumps(settings))).settings() == settings
    with pytest.raises(ArgumentError, match="map of confidence"):
        Confidence.restore(**settings | damage)


def test_a_folder_with_a_damaged_map_is_refused(tmp_path: Path) -> None:
    model = ExtremeClassifier("exact", random_state=0, epochs=1).fit(X[:2000], Y[:2000])
    model.model_.confidence = Confidence((0.0,) * 5, (0.0,) * 5, (1.0,) * 4, (0.0,) * 4)
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="map of confidence"):
        ExtremeClassifier.load(tmp_path / "model")
