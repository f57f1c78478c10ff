"""Weights of classes, beside those of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import ArgumentError
from extremax.rows import DenseRows
from extremax.training.class_weight import weigh_classes
from extremax.training.data import Examples
from extremax.training.holdout import holdout

X, Y = clustered(4000, 20, 6, seed=0)
NAMES = np.array([f"class {y}" for y in range(20)])[Y]


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 3, "n_jobs": 1, "random_state": 0} | parameters)


def weights_of(class_weight: Any, labels: Any, sample_weight: Any = None, **more: Any) -> Any:
    examples = Examples.pair(DenseRows(X[: len(labels)]), labels, sample_weight)
    weigh_classes(examples, class_weight, **more)
    return examples.weights


@pytest.mark.parametrize("labels", [Y, NAMES], ids=["numbers", "strings"])
def test_weights_are_those_of_scikit_learn(labels: np.ndarray) -> None:
    some = dict.fromkeys(labels[:5].tolist(), 3.5)
    for given in ("balanced", some):
        expected = compute_sample_weight(given, labels)
        np.testing.assert_allclose(weights_of(given, labels), expected, rtol=1e-5)
        own = np.random.default_rng(0).random(len(labels))
        if given != "balanced":
            np.testing.assert_allclose(weights_of(given, labels, own), own * expected, rtol=1e-5)


def test_balanced_weights_count_by_the_weights_of_rows() -> None:
    own = np.random.default_rng(0).integers(0, 4, len(Y))
    repeated = np.repeat(Y, own)
    each = compute_class_weight("balanced", classes=np.unique(repeated), y=repeated)
    expected = own * each[np.searchsorted(np.unique(repeated), Y)]
    np.testing.assert_allclose(weights_of("balanced", Y, own), expected, rtol=1e-5)


def test_every_label_of_a_row_has_its_weight() -> None:
    lists = [["a", "b"], ["b"], ["a", "c"]]
    assert weights_of({"a": 2.0, "c": 0.5}, lists).tolist() == [2.0, 1.0, 1.0, 2.0, 0.5]
    np.testing.assert_allclose(weights_of("balanced", lists) * 3, [2.5, 2.5, 2.5, 2.5, 5.0])


def test_a_model_is_that_of_the_same_weights_of_rows() -> None:
    ours = small(class_weight="balanced").fit(X, NAMES)
    weights = compute_sample_weight("balanced", NAMES)
    theirs = small().fit(X, NAMES, sample_weight=weights)
    assert torch.equal(ours.model_.head.weight, theirs.model_.head.weight)
    table = dict(zip(NAMES.tolist(), weights.tolist(), strict=True))
    partial = small(class_weight=table).partial_fit(X, NAMES).partial_fit(X[:99], NAMES[:99])
    expected = small().partial_fit(X, NAMES, sample_weight=weights)
    expected.partial_fit(X[:99], NAMES[:99], sample_weight=weights[:99])
    assert torch.equal(partial.model_.head.weight, expected.model_.head.weight)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_balanced_weights_find_rare_classes(kind: str) -> None:
    random = np.random.default_rng(0)
    # Nine in ten are of the first class, and a feature says which one a row is, half of the time.
    labels = np.where(random.random(6000) < 0.9, 0, random.integers(1, 6, 6000))
    told = np.where(random.random(6000) < 0.5, labels, random.integers(0, 6, 6000))
    rows: Any = np.eye(6, dtype=np.float32)[told]
    rows = rows if kind == "dense" else sparse.csr_matrix(rows)
    recalls = []
    for class_weight in (None, "balanced"):
        model = small(class_weight=class_weight, calibrate=kind == "dense").fit(rows, labels)
        recalls.append(model.evaluate(rows, labels).by_class.macro_recall[0])
    # By Bayes' rule: with equal frequencies, what is told is likeliest.
    told_right = np.mean([(told == c)[labels == c].mean() for c in range(6)])
    assert recalls[0] < 0.3
    assert recalls[1] == pytest.approx(told_right, abs=0.02)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "class_weight must be None, 'balanced' or a dictionary"),
        ({0: -1.0}, "class_weight must be None, 'balanced' or a dictionary from labels to numbers"),
        ({0: float("nan")}, "class_weight must be"),
        ({0: "2"}, "class_weight must be"),
        ({0: 1.0, 77: 2.0}, "class_weight has the label 77, which y does not have"),
        (dict.fromkeys(range(20), 0.0), "above zero for some row"),
        (dict.fromkeys(range(20), 1e300), "must be finite in float32"),
    ],
)
def test_weights_that_make_no_sense_are_refused(class_weight: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small(class_weight=class_weight).fit(X, Y)


def test_labels_that_a_part_of_the_rows_lacks_are_no_mistake() -> None:
    every = dict.fromkeys(range(30), 2.0)
    assert weights_of(every, Y).tolist() == [2.0] * len(Y)
    assert weights_of({99: 2.0}, Y, partly=True).tolist() == [1.0] * len(Y)
    with pytest.raises(ArgumentError, match="'balanced' needs all rows at once"):
        small(class_weight="balanced").partial_fit(X, Y)


@pytest.mark.parametrize(
    ("class_weight", "labels"),
    [
        (None, Y),
        ("balanced", Y),
        ({"class 3": 2.0}, NAMES),
        ({(1, "a"): 2, 5: np.float32(0.5)}, [(1, "a") if y == 3 else int(y) for y in Y]),
    ],
    ids=["none", "balanced", "strings", "mixed"],
)
def test_it_is_saved(class_weight: Any, labels: Any, tmp_path: Path) -> None:
    small(class_weight=class_weight).fit(X, labels).save(tmp_path / "model")
    assert ExtremeClassifier.load(tmp_path / "model").class_weight == class_weight


def test_held_out_figures_that_decide_are_weighted() -> None:
    model = small(class_weight="balanced", epochs=1, objective="exact").fit(X, Y)
    held_out = holdout(Y, 0.1, seed=0)[1]
    log_p = model.predict_log_proba(X[held_out], Y[held_out])
    weights = compute_sample_weight("balanced", Y)[held_out]
    kept = max(record["log_likelihood"] for record in (*model.evaluations_, *model.history_))
    assert kept == pytest.approx(np.average(log_p, weights=weights), rel=1e-5)
    # Those of the finished model are what `evaluate` would say.
    assert model.validation_["log_likelihood"] == pytest.approx(log_p.mean(), rel=1e-5)
