"""Texts of classes that come later, by calls with rows of nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.errors import ExtremaxError
from extremax.labels import ClassLabels
from extremax.storage.models import model_folder

N_CLASSES, N_LATE = 60, 12


def titles(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Six words, two of which say the class, more or less."""
    random = np.random.default_rng(seed)
    y = random.integers(N_CLASSES, size=n)
    guess = np.where(random.random(n) < 0.7, y, random.integers(N_CLASSES, size=n))
    words = np.stack([guess % 10, guess // 10, *random.integers(30, size=(4, n))], 1)
    return [" ".join(f"{'abcdef'[i]}{w}" for i, w in enumerate(row)) for row in words], y


X, Y = titles(4_000, 0)
TEST, TRUTH = titles(1_500, 1)
# A fifth of the classes, none of which has words of its own.
IS_LATE = Y % 5 == 2
WAS_LATE = TRUTH % 5 == 2


SEED = {"random_state": 0, "n_jobs": 1}


def old_model(**parameters: object) -> ExtremeClassifier:
    model = ExtremeClassifier(**{"objective": "sampled_softmax"} | SEED | parameters)
    return model.fit([x for x, late in zip(X, IS_LATE, strict=True) if not late], Y[~IS_LATE])


def taught(model: ExtremeClassifier, calls: int = 1) -> ExtremeClassifier:
    for rows in np.array_split(np.flatnonzero(IS_LATE), calls):
        model.partial_fit([X[i] for i in rows], Y[rows])
    return model


def accuracies(model: ExtremeClassifier) -> np.ndarray:
    """On test rows of old and of late classes."""
    correct = model.predict(TEST) == TRUTH
    return np.array([correct[~WAS_LATE].mean(), correct[WAS_LATE].mean()])


@pytest.fixture(scope="module")
def of_everything() -> np.ndarray:
    return accuracies(ExtremeClassifier("sampled_softmax", **SEED).fit(X, Y))


@pytest.mark.parametrize("calls", [1, 4])
def test_late_classes_land_and_old_ones_stay(calls: int, of_everything: np.ndarray) -> None:
    model = taught(old_model(), calls)
    assert (accuracies(model) >= 0.9 * of_everything).all()
    assert model.model_.noise.n_late_ == 0
    np.testing.assert_allclose(model.predict_proba(TEST[:20]).sum(1), 1.0, rtol=1e-4)


def test_late_classes_of_little_data_land() -> None:
    """Where the head was solved for, and has a weight for every word and class."""
    everything = accuracies(ExtremeClassifier(**SEED).fit(X, Y))
    model = old_model(objective=None)
    assert "penalty" in model.history_[0]
    assert (accuracies(taught(model)) >= 0.9 * everything).all()


def test_where_no_rows_are_kept_old_classes_stay() -> None:
    model = old_model(similar_rows=False)
    before = accuracies(model)[0]
    model = taught(model)
    assert accuracies(model)[0] >= 0.9 * before
    assert model.model_.noise.n_late_ == N_LATE
    # Late classes are told from each other all the same.
    late = np.flatnonzero(WAS_LATE)
    best = model.predict_topk([TEST[i] for i in late], 1, among=np.unique(Y[IS_LATE])).labels[:, 0]
    assert np.mean(best == TRUTH[late]) > 0.5


def test_a_model_with_late_classes_is_saved_and_goes_on(tmp_path: Path) -> None:
    model = taught(old_model(epochs=2), 2)
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path)
    assert loaded.model_.labels.n_first == N_CLASSES - N_LATE
    for each in (model, loaded):
        each.partial_fit(X[:200], [f"new {y % 3}" for y in Y[:200]])
    assert np.array_equal(model.predict_proba(TEST[:50]), loaded.predict_proba(TEST[:50]))


def test_a_model_saved_before_late_classes_had_a_number_loads(tmp_path: Path) -> None:
    model = old_model(epochs=1)
    model.save(tmp_path)
    assert "n_first" not in model_folder(tmp_path).read_settings()["labels"]
    assert not ExtremeClassifier.load(tmp_path).model_.labels.is_late.any()


@pytest.mark.parametrize("n_first", [-1, N_CLASSES + 1])
def test_a_number_of_first_classes_out_of_range_is_refused(n_first: int) -> None:
    labels = taught(old_model(epochs=1)).model_.labels
    settings = json.loads(json.dumps(labels.settings())) | {"n_first": n_first}
    with pytest.raises(ExtremaxError, match="n_first"):
        ClassLabels.restore(settings, labels.state())


def test_one_class_and_one_row_more() -> None:
    model = ExtremeClassifier(random_state=0, n_jobs=1).partial_fit(["a b", "a c"] * 20, ["x"] * 40)
    model.partial_fit(["d c"], ["y"])
    model.partial_fit(["d b"] * 5, ["z"] * 5)
    np.testing.assert_allclose(model.predict_proba(["a b", "d b", "?"]).sum(1), 1.0, rtol=1e-4)
    assert model.predict(["a b"])[0] == "x"
