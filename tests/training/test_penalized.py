"""Penalized softmax, solved: the optimum that scikit-learn finds, and the penalty of the best
held-out likelihood."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.heads import LinearHead, SupportHead
from extremax.heads.base import HeadOptions
from extremax.rows import as_rows
from extremax.training.data import Examples
from extremax.training.penalized import Problem, Sizes, _folds, suits

N, CLASSES, FEATURES = 120, 5, 7


def problem(is_sparse: bool, seed: int = 0) -> tuple[Problem, Examples]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((N, FEATURES)).astype(np.float32)
    y = (x @ random.standard_normal((FEATURES, CLASSES)) + random.gumbel(size=(N, CLASSES))).argmax(
        1
    )
    if is_sparse:
        x[random.random(x.shape) < 0.5] = 0.0
        x[:, 3] = 0.0  # A column that does not occur.
    weights = random.random(N).astype(np.float32)
    rows = as_rows(sparse.csr_matrix(x) if is_sparse else x)
    examples = Examples(rows, y.astype(np.int64), weights)
    return Problem(examples, CLASSES), examples


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_the_solution_is_that_of_scikit_learn(is_sparse: bool, strength: float) -> None:
    task, examples = problem(is_sparse)
    x = examples.rows.matrix.toarray() if is_sparse else examples.rows.array
    solved, _ = task.solve(np.arange(N), strength, None)
    kind = SupportHead if is_sparse else LinearHead
    head = kind.create(
        examples.rows, examples.labels, np.arange(N), CLASSES, HeadOptions(1.0, 0.37)
    )
    task.write(solved, head)
    found = head.scores_all(examples.rows).softmax(1).numpy()
    theirs = LogisticRegression(C=strength, max_iter=5_000, tol=1e-8)
    theirs.fit(x * task.scale, examples.labels, sample_weight=examples.weights)
    np.testing.assert_allclose(found, theirs.predict_proba(x * task.scale), atol=2e-3)


def test_strengths_are_tried_until_held_out_rows_lose_twice() -> None:
    task, _ = problem(False)
    numbers = np.random.default_rng(1).permutation(N)
    trials = list(task.choose_strength(numbers[40:], numbers[:40]))
    likelihoods = [trial.log_likelihood for trial in trials]
    best = int(np.argmax(likelihoods))
    assert len(trials) in (5, best + 3)
    for trial in trials[: best + 1]:
        solved, _ = task.solve(numbers[40:], trial.strength, None)
        assert task.held_out(solved, numbers[:40])[0] == pytest.approx(
            trial.log_likelihood, abs=0.02
        )


def test_folds_hold_every_example_out_once_and_never_a_whole_class() -> None:
    labels = np.repeat(np.arange(4), [1, 2, 7, 30])
    train = np.arange(len(labels))[::-1]
    seen = []
    for some, others in _folds(labels, train):
        assert not np.isin(some, others).any()
        assert set(labels[others]) <= set(labels[some])
        seen += others.tolist()
    # The class of one example is never held out.
    assert sorted(seen) == list(range(1, len(labels)))


def test_only_small_problems_are_solved() -> None:
    assert suits(Sizes(2_000, 64, 10, 64.0))
    assert not suits(Sizes(2_000_000, 64, 10, 64.0))
    assert not suits(Sizes(2_000, 10_000, 10_000, 20.0))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_default_on_little_data_is_solved_with_all_rows(is_sparse: bool) -> None:
    X, y = clustered(800, 12, 10, seed=0)
    X = sparse.csr_matrix(np.maximum(X, 0.0)) if is_sparse else X
    model = ExtremeClassifier(random_state=0).fit(X, y)
    assert {"penalty", "log_likelihood"} <= model.history_[0].keys()
    assert len(model.model_.experts[0].state()["labels" if not is_sparse else "rows"])
    best = max(model.history_, key=lambda record: record["log_likelihood"])
    examples = Examples(as_rows(X), model.model_.labels.encode(y))
    task, everything = Problem(examples, 12), np.arange(800)
    solved, _ = task.solve(everything, 1.0 / best["penalty"], None)
    expected, _ = task.held_out(solved, everything)
    log_p = model.model_.head.scores_all(examples.rows).log_softmax(1).numpy()
    # Of rows that trained: those that were held out once would be far less likely.
    assert log_p[everything, examples.labels].mean() == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    "parameters", [{"objective": "exact"}, {"epochs": 2}, {"noise": "uniform"}, {"n_models": 2}]
)
def test_what_the_user_asks_for_is_trained(parameters: dict) -> None:
    X, y = clustered(300, 6, 5, seed=0)
    model = ExtremeClassifier(random_state=0, **parameters).fit(X, y)
    assert all("penalty" not in record for record in model.history_)


def test_classes_of_one_example_each() -> None:
    X = np.eye(6, dtype=np.float32)
    model = ExtremeClassifier(random_state=0).fit(X, list("abcdef"))
    assert model.predict(X).tolist() == list("abcdef")
    assert "log_likelihood" not in model.history_[0]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_threads_change_no_bit(is_sparse: bool) -> None:
    X, y = clustered(900, 12, 10, seed=1)
    X = sparse.csr_matrix(np.maximum(X, 0.0)) if is_sparse else X
    one, two = (ExtremeClassifier(random_state=0, n_jobs=n).fit(X, y) for n in (1, 2))
    assert one.model_.blend == two.model_.blend
    for name, value in one.model_.head.state().items():
        assert torch.equal(value, two.model_.head.state()[name]), name


def test_a_solved_model_is_saved_and_pickled(tmp_path: Path) -> None:
    X, y = clustered(800, 12, 10, seed=0)
    model = ExtremeClassifier(random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    loaded, copied = ExtremeClassifier.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))
    for other in (loaded, copied):
        np.testing.assert_array_equal(other.predict_proba(X[:9]), model.predict_proba(X[:9]))
