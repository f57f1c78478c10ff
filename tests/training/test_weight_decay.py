"""Weight decay: fits reach the optimum of  mean loss + (λ/2)‖W‖², computed by others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit, log_softmax
from sklearn.linear_model import LogisticRegression

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.errors import ArgumentError
from extremax.heads import BagHead, LinearHead
from extremax.training.checkpoint import Checkpoint
from extremax.training.steps import Steps

N, C, K = 300, 6, 4
RNG = np.random.default_rng(0)
X = (3.0 * RNG.standard_normal((N, K))).astype(np.float32)
# Classes of very different frequency, and so drawn at very different rates.
Y = np.argmax(X @ RNG.standard_normal((K, C)) - np.arange(C) + 3.0 * RNG.gumbel(size=(N, C)), 1)
WEIGHTS = RNG.random(N) + 0.5
MANY, LABELS = clustered(3000, 200, 12, seed=0)
ROWS = np.arange(N)

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def probabilities(model: ExtremeClassifier, features: Any = X) -> np.ndarray:
    return np.exp(model.predict_log_proba(features))


# Exact softmax


@pytest.mark.parametrize("rows", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("weight_decay", [0.05, 1.0])
def test_exact_softmax_agrees_with_scikit_learn(
    rows: Any, weighted: bool, weight_decay: float
) -> None:
    weights = WEIGHTS if weighted else np.ones(N)
    # The head multiplies features by another number than one, and so has other weights.
    model = ExtremeClassifier(
        "exact", weight_decay=weight_decay, learning_rate=3.0, epochs=150, batch_size=N,
        validation_fraction=0, random_state=0,
    )  # fmt: skip
    model.fit(rows(X), Y, sample_weight=weights if weighted else None)
    theirs = LogisticRegression(C=1.0 / (weight_decay * weights.sum()), tol=1e-10, max_iter=10_000)
    expected = theirs.fit(X.astype(np.float64), Y, weights).predict_proba(X.astype(np.float64))
    assert np.abs(probabilities(model, rows(X)) - expected).max() < 1e-3
    free = LogisticRegression(C=1e6, tol=1e-10, max_iter=10_000).fit(X.astype(np.float64), Y)
    assert np.abs(expected - free.predict_proba(X.astype(np.float64))).max() > 0.01


# Sampled objectives: the reference minimizes the expectation over all draws.


def one_vs_each(scores: np.ndarray) -> tuple[float, np.ndarray]:
    gaps = scores - scores[ROWS, Y][:, None]
    gaps[ROWS, Y] = -np.inf
    gradient = expit(gaps)
    gradient[ROWS, Y] = -gradient.sum(1)
    return np.logaddexp(0.0, gaps).sum(), gradient


def softmax(scores: np.ndarray) -> tuple[float, np.ndarray]:
    log_p = log_softmax(scores, 1)
    gradient = np.exp(log_p)
    gradient[ROWS, Y] -= 1.0
    return -log_p[ROWS, Y].sum(), gradient


def negative_sampling(scores: np.ndarray) -> tuple[float, np.ndarray]:
    """Under uniform noise."""
    true = scores[ROWS, Y]
    gradient = expit(scores) / C
    gradient[ROWS, Y] -= expit(-true)
    return np.logaddexp(0.0, -true).sum() + np.logaddexp(0.0, scores).sum() / C, gradient


def optimum(loss: Loss, weight_decay: float) -> np.ndarray:
    """softmax of the scores at the optimum of the penalized mean loss, by L-BFGS in float64."""
    x = X.astype(np.float64)

    def penalized(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = parameters[: C * K].reshape(C, K), parameters[C * K :]
        value, gradient = loss(x @ w.T + b)
        on_w = gradient.T @ x / N + weight_decay * w
        penalty = 0.5 * weight_decay * (w**2).sum()
        return value / N + penalty, np.r_[on_w.ravel(), gradient.sum(0) / N]

    options = {"maxiter": 5000, "gtol": 1e-10, "ftol": 1e-15}
    start = np.zeros(C * K + C)
    best = minimize(penalized, start, jac=True, method="L-BFGS-B", options=options).x
    return np.exp(log_softmax(x @ best[: C * K].reshape(C, K).T + best[C * K :], 1))


@pytest.mark.parametrize(
    ("objective", "noise", "loss"),
    [
        ("one_vs_each", "uniform", one_vs_each),
        ("one_vs_each", "frequency", one_vs_each),
        ("augment_reduce", "uniform", softmax),
        # In one kernel, many steps at a time.
        ("negative_sampling(regularization=0)", "uniform", negative_sampling),
    ],
)
def test_sampled_objectives_reach_the_penalized_optimum(
    objective: str, noise: str, loss: Loss
) -> None:
    model = ExtremeClassifier(
        objective, noise, weight_decay=0.5, n_negatives=15, learning_rate=1.0, epochs=60,
        batch_size=30, validation_fraction=0, random_state=0,
    ).fit(X, Y)  # fmt: skip
    expected = optimum(loss, 0.5)
    error = np.abs(probabilities(model) - expected).mean()
    # What is left is the noise of the steps; without the penalty, the optimum is far off.
    assert error < 0.004
    assert np.abs(optimum(loss, 0.0) - expected).mean() > 8 * error


# When it is applied


@pytest.mark.parametrize("objective", ["one_vs_each", "negative_sampling", "exact"])
@pytest.mark.parametrize("n_negatives", [1, 20])
def test_all_steps_are_followed_by_their_decay(
    objective: str, n_negatives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    amounts: list[float] = []
    monkeypatch.setattr(Steps, "decay", lambda self, amount: amounts.append(amount))
    weights = np.random.default_rng(1).random(len(LABELS)).astype(np.float32)
    ExtremeClassifier(
        objective, "uniform", weight_decay=0.25, n_negatives=n_negatives, learning_rate=0.5,
        schedule="constant", epochs=2, batch_size=7, validation_fraction=0, random_state=0,
    ).fit(MANY, LABELS, sample_weight=weights)  # fmt: skip
    expected = 0.25 * 0.5 * 2 * weights.sum(dtype=np.float64)
    assert sum(amounts) == pytest.approx(expected, rel=1e-6)
    # At the end of each epoch, at most 64 times in it, and after four visits per class.
    n_columns = 200 if objective == "exact" else 1 + n_negatives
    most = min(64.0, 3000 * n_columns / (4 * 200))
    assert 0.9 * most <= len(amounts) / 2 <= most


def test_without_weight_decay_nothing_is_asked_of_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Steps, "decay", fail)
    monkeypatch.setattr(Steps, "rate_sum", fail)
    ExtremeClassifier("one_vs_each", "uniform", epochs=1).fit(MANY, LABELS)


def test_partial_fit_decays_too() -> None:
    plain, decayed = (
        ExtremeClassifier(weight_decay=weight_decay, random_state=0).partial_fit(MANY, LABELS)
        for weight_decay in (0.0, 10.0)
    )
    norms = [float(model.model_.head.weight.norm()) for model in (plain, decayed)]
    assert norms[1] < 0.2 * norms[0]


def test_a_noise_that_follows_the_head_sees_decayed_weights() -> None:
    model = ExtremeClassifier(
        "sampled_softmax", "quadratic", weight_decay=1.0, schedule="constant", epochs=1,
        validation_fraction=0, random_state=0,
    ).fit(MANY, LABELS)  # fmt: skip
    noise = model.model_.noise
    context, classes = noise.context(MANY[:5]), torch.arange(200).repeat(5, 1)
    # By sums over classes that the noise keeps.
    found = noise.log_prob(context, classes)
    noise.attach(model.model_.head.vectors)
    torch.testing.assert_close(found, noise.log_prob(context, classes), rtol=1e-4, atol=1e-4)


# The same to the bit


def test_threads_and_interruptions_change_no_bit(
    tmp_path: Path, at_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitted(n_jobs: int, **options: Any) -> LinearHead:
        model = ExtremeClassifier(
            weight_decay=0.01, epochs=3, n_negatives=1, batch_size=10, validation_fraction=0,
            n_jobs=n_jobs, random_state=0,
        ).fit(MANY, LABELS, **options)  # fmt: skip
        return model.model_.head  # type: ignore[return-value]

    whole = fitted(1).state()
    monkeypatch.setattr("extremax.heads.table._PARALLEL_FLOATS", 1)

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    # 350 steps are between two decays, which are 43 steps apart in an epoch of 300.
    at_step(355, stop)
    calls = count(1)
    monkeypatch.setattr(Checkpoint, "due", lambda self: next(calls) == 350)
    with pytest.raises(Stop):
        fitted(2, checkpoint=tmp_path)
    resumed = fitted(2, checkpoint=tmp_path).state()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


# Refusals


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e7, None, "0.1"])
def test_a_weight_decay_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="weight_decay must be a number from 0 to 1e6, got"):
        ExtremeClassifier(weight_decay=value).fit(X, Y)


def test_the_learned_bag_has_no_weights_to_decay() -> None:
    rows = sparse.csr_matrix(X)
    message = "weight_decay must be 0 with SampledSoftmax on sparse rows, whose BagHead"
    with pytest.raises(ArgumentError, match=message):
        ExtremeClassifier(weight_decay=0.1).fit(rows, Y)
    assert not BagHead.decays
