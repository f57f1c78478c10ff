"""The noise and the objective that CONTRIBUTING shows keep their contract; its recipe trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.errors import ArgumentError
from extremax.heads import LinearHead
from extremax.objectives import Pairs
from extremax.random import Stream
from extremax.recipes import RECIPES
from extremax.rows import DenseRows
from extremax.training.start import STARTS

_PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
_RECIPE = re.compile(
    r"^```python\n(?P<code>from [^`]*?\bMyHead\b.*?)^```$", re.MULTILINE | re.DOTALL
)
_MODULE = re.compile(r"^```python\n(?P<code>\"\"\".*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "contributing"}
    for match in _MODULE.finditer(_PAGE.read_text(encoding="utf-8")):
        exec(compile(match["code"], str(_PAGE), "exec", dont_inherit=True), found)
    return found


def test_the_noise_draws_what_its_log_prob_says(names: dict[str, Any]) -> None:
    X, y = clustered(2_000, 30, 8, seed=0)
    noise = names["ZipfNoise"](exponent=1.5).fit(X, y, 30)
    draw = noise.sample(noise.context(X), 20, Stream.of(0, rows=np.arange(len(X))))
    q = noise.log_prob_all(noise.context(X))[0].double().exp().numpy()
    torch.testing.assert_close(draw.log_q, noise.log_prob(noise.context(X), draw.labels))
    observed = np.bincount(draw.labels.reshape(-1).numpy(), minlength=30)
    assert stats.chisquare(observed, observed.sum() * q / q.sum()).pvalue > 1e-4
    with pytest.raises(ArgumentError, match="exponent must be a number >= 0"):
        names["ZipfNoise"](exponent=float("nan")).fit(X, y, 30)
    model = ExtremeClassifier(noise=names["ZipfNoise"](), epochs=2, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.5


def test_the_objective_has_the_gradient_of_its_loss(names: dict[str, Any]) -> None:
    objective = names["RankingNCE"](regularization=0.1)
    scores = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    log_q = torch.randn(5, 4, dtype=torch.float64)
    pairs = Pairs(scores, log_q, torch.zeros(5, 3, dtype=torch.bool), torch.empty(5, 0))
    (expected,) = torch.autograd.grad(objective.loss(pairs).sum(), scores)
    actual = objective.gradient(pairs._replace(scores=scores.detach()))
    torch.testing.assert_close(actual, expected)


def test_the_recipe_trains_another_head(monkeypatch: pytest.MonkeyPatch) -> None:
    class MyHead(LinearHead):
        pass

    monkeypatch.setitem(RECIPES, DenseRows, RECIPES[DenseRows])
    monkeypatch.setitem(STARTS, MyHead, {})
    [recipe] = _RECIPE.finditer(_PAGE.read_text(encoding="utf-8"))
    exec(compile(recipe["code"], str(_PAGE), "exec", dont_inherit=True), {"MyHead": MyHead})
    X, y = clustered(2_000, 30, 8, seed=0)
    model = ExtremeClassifier(noise="uniform", epochs=3, random_state=0).fit(X, y)
    assert type(model.model_.head) is MyHead
    assert model.score(X, y) > 0.5
