"""The search for the temperature of the highest likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from extremax.training.temperature import best_temperature

N, N_CLASSES = 3000, 12


def log_likelihoods(logits: np.ndarray, labels: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    numbers = np.arange(len(labels))
    return np.array([log_softmax(logits / t, axis=1)[numbers, labels].sum() for t in temperatures])


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_it_is_the_one_of_the_highest_likelihood(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((N, N_CLASSES))
    p = np.exp(log_softmax(logits / temperature, axis=1))
    labels = (p.cumsum(1) < rng.random((N, 1))).sum(1).clip(max=N_CLASSES - 1)

    def loss(log_t: float) -> float:
        return -float(log_likelihoods(logits, labels, np.exp([log_t]))[0])

    best = np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    assert best_temperature(lambda t: log_likelihoods(logits, labels, t)) == pytest.approx(
        best, rel=2e-3
    )


def test_a_model_that_is_always_correct_gets_the_lowest_temperature() -> None:
    logits = np.random.default_rng(0).standard_normal((200, N_CLASSES))
    labels = logits.argmax(1)
    temperature = best_temperature(lambda t: log_likelihoods(logits, labels, t))
    assert 0.02 < temperature < 0.2


def test_constant_scores_keep_a_temperature_of_one() -> None:
    logits, labels = np.zeros((100, N_CLASSES)), np.arange(100) % N_CLASSES
    temperature = best_temperature(lambda t: log_likelihoods(logits, labels, t))
    assert temperature == pytest.approx(1.0)
