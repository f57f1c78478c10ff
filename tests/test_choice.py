"""What "auto" chooses."""

from __future__ import annotations

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.choice import choose_noise, choose_objective
from extremax.data.synthetic import clustered
from extremax.noise import MixtureNoise, TreeNoise, UniformNoise
from extremax.objectives import ExactSoftmax, NegativeSampling


def chosen(n_rows: int, n_classes: int, max_seconds: float | None = None) -> str:
    return choose_objective(n_rows, n_classes, 256, epochs=10, max_seconds=max_seconds)


def test_exact_where_it_is_affordable() -> None:
    assert chosen(10_000, 1_000) == "exact"
    assert chosen(500_000, 200_000) == "negative_sampling"


def test_more_time_never_leaves_exact() -> None:
    choices = [chosen(100_000, 10_000, seconds) for seconds in (1.0, 60.0, 3600.0, 1e6)]
    assert choices == sorted(choices, reverse=True)
    assert {"exact", "negative_sampling"} == set(choices)


def test_noise_is_bounded_where_an_objective_divides_by_it() -> None:
    assert choose_noise(adds_log_q=True) == "tree"
    assert choose_noise(adds_log_q=False) == "mixture"


@pytest.mark.parametrize(
    ("objective", "seconds", "kinds"),
    [
        ("auto", None, (ExactSoftmax, UniformNoise)),
        ("auto", 1e-6, (NegativeSampling, TreeNoise)),
        ("sampled_softmax", None, (None, MixtureNoise)),
    ],
)
def test_the_classifier_takes_it(objective: str, seconds: float | None, kinds: tuple) -> None:
    features, labels = clustered(300, 5, 6, seed=0)
    model = ExtremeClassifier(objective, "auto", epochs=1, max_seconds=seconds, random_state=0).fit(
        features, labels
    )
    assert kinds[0] is None or isinstance(model.objective_, kinds[0])
    assert isinstance(model.noise_, kinds[1])
    assert np.isfinite(model.log_likelihood(features, labels))


def test_wrong_names_are_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="objective must be one of"):
        ExtremeClassifier("sotfmax").fit(np.zeros((3, 2)), [0, 1, 2])
    with pytest.raises(ValueError, match="Use sampled_softmax or nce"):
        ExtremeClassifier("negative_sampling", "quadratic").fit(np.zeros((3, 2)), [0, 1, 2])
