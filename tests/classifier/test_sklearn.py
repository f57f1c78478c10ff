"""The classifier as a scikit-learn estimator."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.features import Encoder
from extremax.noise import FrequencyNoise, TreeNoise
from extremax.objectives import NegativeSampling

X, Y = clustered(1500, 30, 8, seed=0)

_STOCHASTIC = (
    "a row of weight two is one step of twice the gradient, the same row twice is two steps with "
    "their own negatives: no stochastic-gradient estimator gives both the same weights"
)


def expected_failures(_: Any) -> dict[str, str]:
    return {
        "check_sample_weight_equivalence_on_dense_data": _STOCHASTIC,
        "check_sample_weight_equivalence_on_sparse_data": _STOCHASTIC,
    }


@parametrize_with_checks(
    [
        ExtremeClassifier(random_state=0, n_jobs=1),
        ExtremeClassifier(noise="frequency", random_state=0, n_jobs=1),
    ],
    expected_failed_checks=expected_failures,
)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 2, "n_jobs": 1, "random_state": 0} | parameters)


def test_clone_is_equal_and_unfitted() -> None:
    model = small(noise=TreeNoise(n_components=3), encoder=Encoder(n_components=7)).fit(X, Y)
    copy = clone(model)
    assert copy.noise.n_components == 3
    assert copy.encoder.n_components == 7
    assert copy.noise is not model.noise
    assert not hasattr(copy, "head_")
    assert np.array_equal(copy.fit(X, Y).predict_proba(X), model.predict_proba(X))


def test_parameters_can_be_set_deep_inside() -> None:
    model = small(
        noise=TreeNoise(), objective=NegativeSampling(), encoder=Encoder(), learning_rate=0.5
    )
    changes = {
        "learning_rate": 0.1,
        "noise__n_components": 2,
        "objective__regularization": 0.125,
        "encoder__n_components": 9,
    }
    assert changes.keys() <= model.get_params().keys()
    model.set_params(**changes)
    assert {k: v for k, v in model.get_params().items() if k in changes} == changes
    model.fit(X, Y)
    assert model.model_.noise.pca_.projection_.shape == (8, 2)
    assert model.model_.objective.regularization == 0.125
    with pytest.raises(ValueError, match="Invalid parameter"):
        model.set_params(noise__power=2)


def test_fit_leaves_the_given_objects_alone() -> None:
    noise, objective, encoder = FrequencyNoise(), NegativeSampling(), Encoder()
    model = small(noise=noise, objective=objective, encoder=encoder).fit(X, Y)
    assert vars(noise) == vars(FrequencyNoise())
    assert vars(objective) == vars(NegativeSampling())
    assert vars(encoder) == vars(Encoder())
    assert model.noise is noise


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
def test_a_pickled_model_predicts_trains_and_saves_the_same(noise: str, tmp_path: Path) -> None:
    model = small(noise=noise).fit(X, Y)
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))
    for each in (model, copy):
        each.partial_fit(X, Y)
    assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))
    # What would go to a file is what was trained, and not what was pickled.
    copy.save(tmp_path / "copy")
    loaded = ExtremeClassifier.load(tmp_path / "copy")
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_in_a_pipeline_with_cross_validation() -> None:
    scores = cross_val_score(make_pipeline(StandardScaler(), small()), X, Y, cv=3)
    guess = np.bincount(Y).max() / len(Y)
    assert scores.shape == (3,)
    assert scores.min() > 2 * guess


def test_in_a_grid_search_over_parts() -> None:
    grid = {"noise__n_components": np.array([1, 8])}
    search = GridSearchCV(small(noise=TreeNoise()), grid, cv=2, scoring="neg_log_loss").fit(X, Y)
    assert search.best_params_["noise__n_components"] in (1, 8)
    assert np.isfinite(search.best_score_)


def test_score_is_the_share_of_right_predictions() -> None:
    model = small().fit(X, Y)
    assert model.score(X, Y) == (model.predict(X) == Y).mean()
    assert model.score(X, Y) == pytest.approx(model.evaluate(X, Y).accuracy)


@pytest.mark.parametrize("noise", ["tree", "uniform"])
def test_digits_within_a_few_points_of_logistic_regression(noise: str) -> None:
    data, target = load_digits(return_X_y=True)
    train, test, y_train, y_test = train_test_split(
        data / 16, target, test_size=0.4, random_state=0, stratify=target
    )
    theirs = LogisticRegression(max_iter=2000).fit(train, y_train)
    # A hundred held-out rows would be too few to stop by.
    ours = small(noise=noise, epochs=100, learning_rate=1.0, validation_fraction=0.0)
    ours.fit(train, y_train)
    assert ours.score(test, y_test) > theirs.score(test, y_test) - 0.03
    log_loss = -theirs.predict_log_proba(test)[np.arange(len(test)), y_test].mean()
    assert -ours.log_likelihood(test, y_test) < log_loss + 0.1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"noise": "pink"}, "noise must be one of 'tree', 'sparse_tree', 'uniform'"),
        ({"objective": "hinge"}, "objective must be one of 'negative_sampling'"),
        ({"n_negatives": 0}, "n_negatives must be an integer from 1 to 1000000, got 0"),
        ({"n_negatives": 2.5}, "n_negatives must be an integer"),
        ({"epochs": 0}, "epochs must be an integer from 1"),
        ({"batch_size": 2**63}, "batch_size must be None or an integer from 1 to"),
        ({"patience": 0}, "patience must be None or an integer >= 1"),
        ({"learning_rate": 0.0}, "learning_rate must be > 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be > 0, from 1e-30 to 1e30, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must be a number from 0 to 1e6, got -1.0"),
        ({"accumulator_start": -1.0}, "accumulator_start must be > 0"),
        ({"schedule": "cosine"}, "schedule must be 'linear' or 'constant'"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be in \[0, 1\)"),
        ({"max_seconds": 0}, "max_seconds must be None or > 0"),
        ({"batch_size": 0}, "batch_size must be None or an integer from 1"),
        ({"n_jobs": 0}, "n_jobs must be an integer other than 0"),
        ({"random_state": "x"}, "random_state must be"),
        ({"random_state": -1}, "random_state must be"),
    ],
)
def test_a_bad_parameter_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**parameters).fit(X, Y)


def test_parameters_may_be_numbers_of_numpy() -> None:
    # RuntimeWarnings of the package are errors here; limits beyond float16 must not overflow.
    small(learning_rate=np.float16(0.1), max_seconds=np.float16(9), epochs=np.int8(1)).fit(X, Y)


def test_a_fit_that_fails_leaves_the_model_as_it_was() -> None:
    model = small().fit(X, Y)
    before = model.predict_proba(X)
    model.set_params(noise=TreeNoise(n_components=0))
    with pytest.raises(ValueError, match="n_components"):
        model.fit(X[:, :5], Y % 3)
    assert np.array_equal(model.predict_proba(X), before)
    with pytest.raises(ValueError, match="rows"):
        model.set_params(noise="tree").fit(X, Y[:-1])
    assert np.array_equal(model.predict_proba(X), before)
