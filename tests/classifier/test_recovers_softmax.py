"""Sampling a few classes a step finds the same probabilities as exact softmax.

Eight discrete contexts, twelve classes: the linear model is saturated, so maximum likelihood is
the table of observed frequencies, and every probability can be looked up.

How close is close? The data themselves tell the truth only roughly. With N rows the observed
frequencies are on average 8·11/2N nat better on these rows than the probabilities that made
them (Wilks 1938), and about Σ √(2p/πn)/2 away in total variation. A model nearer than that to
the observed frequencies has nothing left to learn from the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from extremax import ExtremeClassifier
from extremax.objectives import NegativeSampling, fit_exact

N, CONTEXTS, CLASSES = 24_000, 8, 12
NAMES = np.array([f"class {i:02d}" for i in range(CLASSES)])
ONE_HOT = np.eye(CONTEXTS, dtype=np.float32)


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(context of each row, class of each row, observed p(class | context))."""
    rng = np.random.default_rng(0)
    truth = np.exp(1.5 * rng.standard_normal((CONTEXTS, CLASSES)))
    truth /= truth.sum(1, keepdims=True)
    context = rng.integers(CONTEXTS, size=N)
    y = (rng.random((N, 1)) < truth[context].cumsum(1)).argmax(1)
    observed = np.zeros((CONTEXTS, CLASSES))
    np.add.at(observed, (context, y), 1)
    return context, y, observed / observed.sum(1, keepdims=True)


@pytest.fixture(scope="module", params=["tree", "uniform", "frequency"])
def model(request: Any, problem: tuple[np.ndarray, ...]) -> ExtremeClassifier:
    context, y, _ = problem
    return ExtremeClassifier(
        NegativeSampling(regularization=0.0),
        request.param,
        epochs=40,
        learning_rate=2.0,
        validation_fraction=0.0,
        n_jobs=1,
        random_state=0,
    ).fit(ONE_HOT[context], NAMES[y])


def test_every_probability_is_the_observed_frequency(
    model: ExtremeClassifier, problem: tuple[np.ndarray, ...]
) -> None:
    context, _, observed = problem
    probabilities = model.predict_proba(ONE_HOT)
    distance = np.abs(probabilities - observed).sum(1) / 2
    rows = np.bincount(context)
    sampling_error = np.sqrt(2 * observed / (np.pi * rows[:, None])).sum(1) / 2
    assert (distance < sampling_error).all()
    # Not near by accident: the classes overall are several times further away.
    overall = rows @ observed / N
    assert (np.abs(overall - observed).sum(1) / 2 > 5 * sampling_error).all()


def test_the_log_likelihood_is_that_of_exact_softmax(
    model: ExtremeClassifier, problem: tuple[np.ndarray, ...]
) -> None:
    context, y, observed = problem
    features = torch.from_numpy(ONE_HOT[context])
    weights, biases = fit_exact(
        features, torch.from_numpy(y), CLASSES, learning_rate=8.0, n_epochs=150
    )
    log_p = torch.log_softmax(features @ weights.T + biases, 1).double()
    exact = float(log_p[torch.arange(N), torch.from_numpy(y)].mean())
    maximum = float(np.log(observed[context, y]).mean())
    overfit = CONTEXTS * (CLASSES - 1) / (2 * N)
    assert maximum - overfit < exact < maximum + 1e-6
    ours = model.log_likelihood(ONE_HOT[context], NAMES[y])
    assert maximum - overfit < ours < maximum + 1e-6
    assert ours == pytest.approx(exact, abs=overfit)


def test_rows_sum_to_one_and_agree_in_every_form(model: ExtremeClassifier) -> None:
    probabilities = model.predict_proba(ONE_HOT)
    assert probabilities.shape == (CONTEXTS, CLASSES)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(ONE_HOT)), probabilities)
    assert np.array_equal(model.classes_, NAMES)
    assert np.array_equal(model.predict(ONE_HOT), NAMES[probabilities.argmax(1)])
