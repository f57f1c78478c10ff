"""Starts by name, and the start of absolute softmax, against class counts and the noise alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.errors import ArgumentError
from extremax.objectives import SampledSoftmax
from extremax.training.holdout import holdout

N_CLASSES = 60
X, Y = clustered(2000, N_CLASSES, 10, seed=2, noise=0.4)
TRAIN, HELD_OUT = holdout(Y, 0.1, seed=0)
SPARSE = sparse.csr_matrix(np.maximum(X, 0))


def fitted(objective: Any, noise: Any, start: str | None, x: Any = X) -> ExtremeClassifier:
    settings: dict[str, Any] = {"epochs": 1, "random_state": 0, "n_jobs": 1, "bag_size": 8}
    return ExtremeClassifier(objective, noise, start=start, **settings).fit(x, Y)


def at_start(model: ExtremeClassifier) -> float:
    return float(model.evaluations_[0]["log_likelihood"])


SAMPLED = [("nce", "frequency"), ("sampled_softmax", "quadratic"), ("negative_sampling", "uniform")]
every_pair = pytest.mark.parametrize(("objective", "noise"), [*SAMPLED, ("exact", None)])


@every_pair
def test_at_zero_all_classes_are_equally_likely(objective: str, noise: str | None) -> None:
    model = fitted(objective, noise, "zeros")
    assert at_start(model) == pytest.approx(-math.log(N_CLASSES), rel=1e-5)
    assert model.history_[0]["log_likelihood"] > at_start(model)


@every_pair
def test_at_the_frequencies_each_class_has_its_share(objective: str, noise: str | None) -> None:
    share = np.bincount(Y[TRAIN], minlength=N_CLASSES) / len(TRAIN)
    expected = np.log(share[Y[HELD_OUT]]).mean()
    assert at_start(fitted(objective, noise, "frequencies")) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("start", ["zeros", "frequencies"])
def test_at_zero_a_tree_speaks_alone_at_the_sharpness_that_is_likeliest(start: str) -> None:
    model = fitted("negative_sampling", "tree", start)
    noise, chosen = model.model_.noise, at_start(model)
    context = noise.context(X[HELD_OUT])
    likelihoods = []
    for sharpness in noise.sharpnesses():
        noise.temper(sharpness)
        log_q = noise.log_prob_all(context).numpy()
        likelihoods.append(log_q[np.arange(len(HELD_OUT)), Y[HELD_OUT]].mean())
    assert chosen == pytest.approx(max(likelihoods), rel=1e-4)


@pytest.mark.parametrize(("objective", "noise"), [("sampled_softmax", "uniform"), ("exact", None)])
def test_heads_of_sparse_rows_start_at_zero_too(objective: str, noise: str | None) -> None:
    model = fitted(objective, noise, "zeros", SPARSE)
    assert at_start(model) == pytest.approx(-math.log(N_CLASSES), rel=1e-5)
    assert model.history_[0]["log_likelihood"] > at_start(model)


def test_none_is_the_start_of_the_recipe() -> None:
    for objective, x, start in (
        ("nce", X, "class_means"),
        ("exact", X, "class_means"),
        ("sampled_softmax", SPARSE, "frequencies"),
        ("exact", SPARSE, "class_means"),
    ):
        noise = "frequency"
        named, usual = (fitted(objective, noise, name, x) for name in (start, None))
        assert at_start(named) == at_start(usual)


def test_a_start_that_the_head_does_not_have_is_refused() -> None:
    message = "start must be one of 'frequencies', 'zeros' .*BagHead has no other.*'class_means'"
    with pytest.raises(ArgumentError, match=message):
        fitted("sampled_softmax", "uniform", "class_means", SPARSE)
    with pytest.raises(ArgumentError, match="start must be None, 'class_means'"):
        fitted("nce", "uniform", "zero")


def test_partial_fit_starts_where_it_is_told() -> None:
    noise = "frequency"
    for start in ("zeros", "frequencies"):
        model = ExtremeClassifier("nce", noise, start=start, learning_rate=1e-9, random_state=0)
        log_p = model.partial_fit(X, Y).predict_log_proba(X[:1])[0]
        share = np.bincount(Y, minlength=N_CLASSES) / len(Y)
        expected = np.log(share) if start == "frequencies" else -math.log(N_CLASSES)
        np.testing.assert_allclose(log_p, np.broadcast_to(expected, N_CLASSES), rtol=1e-4)


@pytest.mark.parametrize("noise", ["quadratic", "quartic", "uniform"])
def test_absolute_softmax_starts_as_well_as_plain_softmax(noise: str) -> None:
    absolute, plain = (
        fitted(SampledSoftmax(absolute=absolute), noise, None) for absolute in (True, False)
    )
    assert at_start(plain) > -2.0
    assert at_start(absolute) >= at_start(plain) - 0.01
    # Even kernels draw as well as from a plain head.
    learned = (absolute.history_[0]["log_likelihood"], plain.history_[0]["log_likelihood"])
    assert learned[0] >= learned[1] - 0.05
