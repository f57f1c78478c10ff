"""Marginal probabilities from shares: the map, what the classifier makes of it, and its fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from extremax import ExtremeClassifier
from extremax.diagnostics import reliability
from extremax.errors import ArgumentError, ModelFileError
from extremax.labels import ClassLabels, LabelIndex
from extremax.prediction.marginals import N_BEST, Marginals, features, log_frequency
from extremax.training.data import Examples
from extremax.training.marginals import fit_marginals, fit_weights

MAP = Marginals((0.5, 1.2, -0.4, 0.3, -0.2), (-6.0, -2.0), 1.5)
# Groups of rows, and the probability of every label in each: the truth of a small problem.
N_GROUPS, N_LABELS = 40, 30
ETA = np.random.default_rng(1).beta(0.3, 1.5, size=(N_GROUPS, N_LABELS))
ETA = np.minimum(4.0 * ETA / ETA.sum(1, keepdims=True), 0.95)


def ranked_shares(n: int, n_classes: int) -> torch.Tensor:
    logits = 3.0 * torch.randn(n, n_classes, generator=torch.Generator().manual_seed(0))
    return logits.log_softmax(1).sort(1, descending=True)[0]


# The map


def test_the_map_is_its_formula() -> None:
    log_p = ranked_shares(7, 50)
    log_f = torch.linspace(-8.0, -1.0, 50).expand(7, 50)
    got = MAP.of(log_p[:, 3:9], log_f[:, 3:9], log_p[:, :N_BEST]).numpy()
    p, f = log_p.double().exp().numpy(), np.clip(log_f.numpy(), -6.0, -2.0)
    s = p[:, :N_BEST].sum(1, keepdims=True)
    logit = 0.5 + 1.2 * np.log(p) - 0.4 * np.log(s) - 0.3 * np.log(1 - s) - 0.2 * f
    np.testing.assert_allclose(got, expit(logit)[:, 3:9], rtol=1e-6)


def test_labels_of_one_frequency_keep_their_order_and_no_share_is_no_chance() -> None:
    log_p = ranked_shares(7, 50)
    log_p[2, 10:] = -math.inf
    got = MAP.of(log_p, torch.full((7, 50), -4.0), log_p[:, :N_BEST])
    assert (got[:, 1:] <= got[:, :-1]).all()
    assert (got[2, 10:] == 0.0).all()
    assert got.isfinite().all()


def test_without_held_out_rows_the_odds_are_shares_of_the_mean_number_of_labels() -> None:
    log_p = ranked_shares(7, 15)
    start = Marginals.start(2.5)
    got = start.of(log_p, torch.randn(7, 15), log_p).numpy()
    odds = 2.5 * log_p.double().exp().numpy()
    np.testing.assert_allclose(got, odds / (1 + odds), rtol=1e-6)


def test_expected_labels_are_the_sum_of_all_marginals() -> None:
    log_p = ranked_shares(7, N_BEST + 30)
    best, rest = log_p[:, :N_BEST], log_p[:, N_BEST:]
    log_f = torch.full(best.shape, -4.0)
    expected = MAP.of(best, log_f, best).sum(1) + 1.5 * rest.double().exp().sum(1)
    torch.testing.assert_close(MAP.expected(best, log_f), expected, rtol=1e-5, atol=1e-5)


def test_a_class_without_rows_has_a_frequency() -> None:
    np.testing.assert_allclose(log_frequency(np.array([0, 9]), 40).exp(), [1 / 40, 10 / 40])


@pytest.mark.parametrize(
    "damage",
    [
        {"weights": [0.0, 1.0]}, {"weights": [0.0, 0.0, 0.0, 0.0, 0.0]},
        {"weights": [0.0, math.nan, 0.0, 0.0, 0.0]}, {"weights": [1e300, 1.0, 0.0, 0.0, 0.0]},
        {"frequencies": [0.0]}, {"frequencies": [1.0, 0.0]}, {"frequencies": [math.nan, 0.0]},
        {"others": -1.0}, {"others": math.inf},
    ],
)  # fmt: skip
def test_a_damaged_map_is_refused(damage: dict[str, Any]) -> None:
    settings = json.loads(json.dumps(MAP.settings()))
    assert Marginals.restore(**settings) == MAP
    with pytest.raises(ArgumentError, match="damaged"):
        Marginals.restore(**settings | damage)


# The fit


def test_the_fit_is_the_penalized_maximum_and_near_the_truth() -> None:
    log_p = ranked_shares(3000, 40)[:, :N_BEST]
    random = np.random.default_rng(0)
    log_f = torch.from_numpy(random.uniform(-6.0, -2.0, size=log_p.shape))
    found = random.random(log_p.shape) < MAP.of(log_p, log_f, log_p).numpy()
    f = features(log_p, log_f, log_p).numpy().reshape(-1, 5)
    start = np.array(Marginals.start(1.0).weights)
    w = fit_weights(f, found.ravel(), start)
    # log f is taken around its mean.
    centered = f - [0.0, 0.0, 0.0, 0.0, f[:, 4].mean()]

    def loss(v: np.ndarray) -> float:
        p = expit(centered @ v)
        log_likelihood = np.log(np.where(found.ravel(), p, 1.0 - p)).sum()
        return float(5.0 * np.square(v - start).sum() - log_likelihood)

    best = minimize(loss, start, method="BFGS").x
    np.testing.assert_allclose(f @ w, centered @ best, atol=2e-3)
    assert np.abs(f @ w - f @ np.array(MAP.weights)).mean() < 0.1


def test_few_rows_hardly_move_the_start() -> None:
    f = features(*[torch.tensor([[-1.0, -2.0]])] * 3).numpy().reshape(-1, 5)
    start = np.array(Marginals.start(2.0).weights)
    assert np.abs(fit_weights(f, np.array([False, True]), start) - start).max() < 0.3


def test_the_slope_stays_above_zero() -> None:
    log_p = ranked_shares(500, 40)[:, :N_BEST]
    f = features(log_p, torch.zeros(log_p.shape), log_p).numpy()
    # The worst classes are the labels.
    found = np.arange(N_BEST)[None].repeat(500, 0) >= 15
    w = fit_weights(f.reshape(-1, 5), found.ravel(), np.array(Marginals.start(2.0).weights))
    assert 0.0 < w[1] < 0.1


def test_the_fit_does_not_read_the_counts_of_held_out_labels(several: ExtremeClassifier) -> None:
    X, y = problem(600, seed=5)
    model = several.model_
    rows = model.encoder.transform(X)
    examples = Examples.pair(rows, y, None)
    examples.labels = model.labels.encode(examples.labels)
    held_out = np.flatnonzero(examples.owner < 300)
    train = np.flatnonzero(examples.owner >= 300)
    once = fit_marginals(model, examples, train, held_out, 2**29)
    wrong = model.labels.with_counts(model.labels.counts[::-1] * 7)
    again = fit_marginals(replace(model, labels=wrong), examples, train, held_out, 2**29)
    assert once == again != model.marginals


# The classifier


def problem(n: int, seed: int, binary: bool = True) -> tuple[Any, list[list[str]]]:
    """Rows that show their group, and labels drawn independently of each other."""
    random = np.random.default_rng(seed)
    group = random.integers(N_GROUPS, size=n)
    drawn = random.random((n, N_LABELS)) < ETA[group]
    drawn[~drawn.any(1), 0] = True
    x = np.eye(N_GROUPS, dtype=np.float32)[group]
    names = np.array([f"label {i}" for i in range(N_LABELS)])
    return (x if binary else sparse.csr_matrix(x)), [names[row].tolist() for row in drawn]


@pytest.fixture(scope="module")
def several() -> ExtremeClassifier:
    X, y = problem(6_000, seed=0)
    return ExtremeClassifier(random_state=0, epochs=4, n_jobs=1).fit(X, y)


def true_marginals(model: ExtremeClassifier) -> np.ndarray:
    """(groups, classes) in the model's order; the first label also fills rows without one."""
    eta = ETA.copy()
    eta[:, 0] += np.prod(1.0 - ETA, axis=1)
    return eta[:, [int(name.split()[1]) for name in model.classes_]]


def test_marginals_are_the_chances_of_labels_and_shares_are_not(
    several: ExtremeClassifier,
) -> None:
    X, y = problem(2_000, seed=4)
    new = several.predict_topk(X, 8)
    rows = zip(new.labels, y, strict=True)
    hits = np.array([np.isin(best, labels) for best, labels in rows]).ravel()
    assert reliability(new.marginals.ravel(), hits).error < 0.05
    assert reliability(np.exp(new.log_probs).ravel(), hits).error > 0.2
    eye, eta = np.eye(N_GROUPS), true_marginals(several)
    found = several.predict_topk(eye, 8)
    numbers = several.model_.labels.encode(found.labels.ravel()).reshape(found.labels.shape)
    truth = np.take_along_axis(eta, numbers, 1)
    # They are right on average over rows that look alike to the map, so single ones may be off.
    assert np.abs(found.marginals - truth).mean() < 0.08
    assert np.abs(np.exp(found.log_probs) - truth).mean() > 0.2
    shares = np.take_along_axis(eta / eta.sum(1, keepdims=True), numbers, 1)
    assert np.abs(np.exp(found.log_probs) - shares).mean() < 0.02
    expected = several.expected_labels(eye)
    np.testing.assert_allclose(expected.mean(), eta.sum(1).mean(), rtol=0.1)


def test_marginals_do_not_depend_on_how_many_classes_are_asked_for(
    several: ExtremeClassifier,
) -> None:
    X = problem(20, seed=2)[0]
    many = several.predict_topk(X, 30)
    few = several.predict_topk(X, 2)
    np.testing.assert_allclose(few.marginals, many.marginals[:, :2], rtol=1e-5)
    without = several.predict_topk(X, 2, exclude=many.labels[:, 0])
    among = several.predict_topk(X, 30, among=several.classes_, renormalize=True)
    np.testing.assert_allclose(among.marginals, many.marginals, rtol=1e-4)
    best = dict(zip(many.labels[0], many.marginals[0], strict=True))
    for label, marginal in zip(without.labels[0], without.marginals[0], strict=True):
        assert marginal == pytest.approx(best[label], rel=1e-5)


def test_a_threshold_is_one_on_marginals(several: ExtremeClassifier) -> None:
    X = problem(40, seed=3)[0]
    every = several.predict_topk(X, N_LABELS)
    kept = several.predict_topk(X, N_LABELS, threshold=0.3)
    expected = np.where(every.marginals >= 0.3, every.marginals, 0.0)
    np.testing.assert_array_equal(kept.marginals, expected)
    np.testing.assert_array_equal(np.isneginf(kept.log_probs), expected == 0.0)


def test_predict_gives_the_labels_that_are_likely_or_the_best_one(
    several: ExtremeClassifier,
) -> None:
    eye = np.eye(N_GROUPS)
    every = several.predict_topk(eye, N_LABELS)
    sizes = set()
    for threshold in (None, 0.5, 0.2, 0.999, 0.001):
        answer = several.predict(eye, threshold) if threshold else several.predict(eye)
        for labels, names, marginals in zip(answer, every.labels, every.marginals, strict=True):
            likely = set(names[marginals >= (threshold or 0.5)])
            assert set(labels) == (likely or {names[marginals.argmax()]})
            order = [marginals[names.tolist().index(label)] for label in labels]
            assert order == sorted(order, reverse=True)
            sizes.add(len(labels))
    assert 1 in sizes
    assert max(sizes) > N_BEST


def test_one_label_per_row_has_marginals_that_are_shares() -> None:
    X, y = problem(600, seed=0)
    single = ExtremeClassifier(random_state=0, epochs=1).fit(X, [labels[0] for labels in y])
    assert single.model_.marginals is None
    found = single.predict_topk(X[:5], 3, exclude=["label 0"], renormalize=True)
    np.testing.assert_allclose(found.marginals, np.exp(found.log_probs), rtol=1e-6)
    assert single.expected_labels(X[:5]).tolist() == [1.0] * 5
    assert single.predict(X[:5]).shape == (5,)
    with pytest.raises(ArgumentError, match="threshold is for models of several labels"):
        single.predict(X[:5], 0.5)


@pytest.mark.parametrize("threshold", [0.0, 1.5, -1, "a", math.nan, True])
def test_a_threshold_that_makes_no_sense_is_refused(
    several: ExtremeClassifier, threshold: Any
) -> None:
    with pytest.raises(ArgumentError, match="threshold must be above 0 and at most 1"):
        several.predict(np.eye(N_GROUPS), threshold)


def test_rows_too_few_to_hold_any_out_get_the_start() -> None:
    X, y = problem(20, seed=0, binary=False)
    model = ExtremeClassifier(random_state=0, epochs=1).fit(X, y)
    mean = sum(map(len, y)) / 20
    assert model.model_.marginals == Marginals.start(mean)
    assert all(len(labels) for labels in model.predict(X))
    later = ExtremeClassifier(random_state=0).partial_fit(X, y)
    assert later.model_.marginals == Marginals.start(mean)
    assert later.partial_fit(*problem(20, seed=1, binary=False)).predict(X)


def test_one_class_is_always_the_label() -> None:
    model = ExtremeClassifier(random_state=0, epochs=1).fit(np.ones((200, 2)), [["a"]] * 200)
    assert [labels.tolist() for labels in model.predict(np.ones((2, 2)))] == [["a"], ["a"]]
    assert model.expected_labels(np.ones((2, 2))) == pytest.approx(1.0, abs=0.6)


def test_marginals_are_saved(several: ExtremeClassifier, tmp_path: Any) -> None:
    several.save(tmp_path / "model")
    loaded = ExtremeClassifier.load(tmp_path / "model")
    assert loaded.model_.marginals == several.model_.marginals is not None
    eye = np.eye(N_GROUPS)
    ours, theirs = several.predict_topk(eye, 5), loaded.predict_topk(eye, 5)
    np.testing.assert_array_equal(ours.marginals, theirs.marginals)


def test_a_model_of_several_labels_needs_its_map(several: ExtremeClassifier, tmp_path: Any) -> None:
    model = several.model_
    several.model_.marginals, kept = None, model.marginals
    try:
        several.save(tmp_path / "model")
    finally:
        model.marginals = kept
    with pytest.raises(ModelFileError, match="map to marginal probabilities; train it anew"):
        ExtremeClassifier.load(tmp_path / "model")


def test_counts_can_be_replaced() -> None:
    labels = ClassLabels(LabelIndex.of(np.array(["a", "b"])))
    other = labels.with_counts(np.array([3, 4]))
    assert other.counts.tolist() == [3, 4]
    assert labels.counts.tolist() == [0, 0]
