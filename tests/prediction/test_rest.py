"""Probabilities of a search: candidates exactly, the rest by an estimate from held-out rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.errors import ArgumentError
from extremax.noise import sparse_tree_search, tree_search
from extremax.prediction.rest import N_NUMBERS, N_TERMS, Rest, terms
from extremax.search import VectorSearcher
from extremax.training import rest as fitting

C = 150


def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_FEW_CLASSES", 50)
    monkeypatch.setattr(sparse_tree_search, "_CANDIDATES", 12)
    monkeypatch.setattr(tree_search, "RANGE_SIZE", 4)
    monkeypatch.setattr(tree_search.TreeSearcher, "default_width", 4)
    monkeypatch.setattr(VectorSearcher, "default_width", 8)


def problem(dense: bool, n: int = 4000) -> tuple[Any, np.ndarray]:
    """Rows with some of the features of their class and many others."""
    random = np.random.default_rng(0)
    y = random.integers(C, size=n)
    features = random.integers(60, size=(C, 3))[y]
    others = random.integers(60, size=(n, 6))
    columns = np.concatenate([features, others], 1)
    x = sparse.csr_matrix((np.ones(columns.size), columns.ravel(), np.arange(n + 1) * 9), (n, 60))
    return (x.toarray() if dense else x), y


@pytest.mark.parametrize("given", ["sparse", "tree", "exact"])
def test_a_search_knows_how_much_it_leaves_out(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_candidates(monkeypatch)
    x, y = problem(dense=given != "sparse")
    # So little of it that most classes keep a part of the probability.
    exact = {"objective": "exact", "learning_rate": 0.1, "start": "zeros"}
    parameters = {"tree": {"noise": "tree"}, "exact": exact}.get(given, {})
    model = ExtremeClassifier(random_state=0, epochs=3, **parameters).fit(x[:3000], y[:3000])
    test = x[3000:]
    found = model.predict_topk(test, 1, search="beam")
    assert found.normalization == "over candidates and an estimate of all other classes"
    exact = model.predict_log_proba(test, found.labels)[:, 0]
    error = found.log_probs[:, 0] - exact
    model.model_.rest = None
    before = model.predict_topk(test, 1, search="beam")
    assert np.isnan(before.standard_error).all()
    error_before = before.log_probs[:, 0] - exact
    assert np.abs(error).mean() < 0.75 * np.abs(error_before).mean()
    assert abs(error.mean()) < 0.5 * abs(error_before.mean())
    # Errors are about as large as the model says.
    within = np.abs(error) < found.standard_error
    assert 0.5 < within.mean() < 0.95


def test_if_every_class_is_a_candidate_nothing_is_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_candidates(monkeypatch)
    x, y = problem(dense=False, n=3000)
    model = ExtremeClassifier(random_state=0, epochs=1).fit(x, y)
    found = model.predict_topk(x[:50], C, width=C)
    exact = model.predict_log_proba(x[:50], found.labels)
    np.testing.assert_allclose(found.log_probs, exact, atol=2e-4)


def test_few_rows_or_classes_leave_it_as_it_was() -> None:
    x, y = problem(dense=False, n=600)
    model = ExtremeClassifier(random_state=0, epochs=1).fit(x, y)
    assert model.model_.rest is None
    assert "tree" in model.predict_topk(x[:5], 1).normalization


def test_the_estimate_is_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    few_candidates(monkeypatch)
    x, y = problem(dense=False)
    model = ExtremeClassifier(random_state=0, epochs=1).fit(x, y)
    model.save(tmp_path / "model")
    loaded = ExtremeClassifier.load(tmp_path / "model")
    assert loaded.model_.rest == model.model_.rest is not None
    for one, other in zip(model.predict_topk(x[:9], 3), loaded.predict_topk(x[:9], 3), strict=True):
        assert np.array_equal(one, other)


def test_terms_are_the_numbers_and_their_products() -> None:
    numbers = torch.randn(5, N_NUMBERS, dtype=torch.float64)
    made = terms(numbers)
    assert made.shape == (5, N_TERMS)
    expected = [1.0, *numbers[2]]
    expected += [
        numbers[2, i] * numbers[2, j] for i in range(N_NUMBERS) for j in range(i, N_NUMBERS)
    ]
    torch.testing.assert_close(made[2], torch.tensor(expected, dtype=torch.float64))


REST = Rest((0, 3), (0.0,) * N_NUMBERS, (1.0,) * N_NUMBERS, (0.5,) * N_TERMS, 0.1)


@pytest.mark.parametrize(
    "damage",
    [
        {"classes": [0, 9]}, {"classes": [-1]}, {"classes": [0.5]},
        {"center": [0.0]}, {"center": [np.nan] * N_NUMBERS}, {"scale": [0.0] * N_NUMBERS},
        {"weights": [1e300] * N_TERMS}, {"weights": [1.0]}, {"error": np.inf},
    ],
)  # fmt: skip
def test_a_damaged_estimate_is_refused(damage: dict[str, Any]) -> None:
    settings = json.loads(json.dumps(REST.settings()))
    assert Rest.restore(settings, 9) == REST
    with pytest.raises(ArgumentError, match="damaged"):
        Rest.restore(settings | damage, 9)


def test_more_classes_leave_more() -> None:
    random = np.random.default_rng(0)
    lists = (tuple(random.random(n).tolist()) for n in (N_NUMBERS, N_NUMBERS, N_TERMS))
    rest = Rest((0, 1), *lists, error=0.1)
    numbers = torch.from_numpy(random.random((5, N_NUMBERS)))
    more = rest.grown(1.5).log_rest(numbers) - rest.log_rest(numbers)
    torch.testing.assert_close(more.exp(), torch.full((5,), 1.5, dtype=torch.float64))


def test_a_search_of_a_head_that_is_blended_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for other classes has neither a number of examples nor votes."""
    few_candidates(monkeypatch)
    x, y = problem(dense=True)
    model = ExtremeClassifier(random_state=0).fit(x[:3000], y[:3000])
    assert any(model.model_.blend.experts)
    assert model.model_.blend.prior
    found = model.predict_topk(x[3000:], 1, search="beam", width=12)
    exact = model.predict_log_proba(x[3000:], found.labels)[:, 0]
    assert np.abs(found.log_probs[:, 0] - exact).mean() < 0.1
