"""Explanations, against predictions without each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, SessionRecommender
from extremax.data import clustered
from extremax.data.sequences import Sequences
from extremax.report import draw_explanation


def texts() -> tuple[list[str], list[str]]:
    random = np.random.default_rng(0)
    y = random.integers(5, size=300)
    fillers = random.integers(20, size=(300, 3))
    rows = [f"topic{c} w{a} w{b} w{d}" for c, (a, b, d) in zip(y, fillers, strict=True)]
    return rows, [f"class {c}" for c in y]


@pytest.fixture(scope="module")
def reader() -> ExtremeClassifier:
    return ExtremeClassifier(random_state=0, epochs=5).fit(*texts())


def test_the_word_that_decides_comes_first(reader: ExtremeClassifier) -> None:
    why = reader.explain("w3 topic2 w7")
    assert (why.label, why.parts[0]) == ("class 2", "topic2")
    assert why.contributions[0] > 0.5
    assert sorted(why.parts) == ["topic2", "w3", "w7"]
    without = reader.predict_log_proba(["w3 w7"], ["class 2"])[0]
    assert why.contributions[0] == pytest.approx(why.log_prob - without, abs=1e-5)
    against = reader.explain("w3 topic2 w7", "class 1")
    assert against.parts[0] == "topic2"
    assert against.contributions[0] < 0
    assert str(against).splitlines()[0].startswith("class 1: p = ")
    assert "−" in str(against).splitlines()[1]


@pytest.mark.parametrize("kind", ["row", "table", "sparse"])
def test_values_of_rows(kind: str) -> None:
    x, y = clustered(400, 6, 5, seed=0)
    x[:, 2] = 0.0
    given: Any = sparse.csr_matrix(x) if kind == "sparse" else x
    model = ExtremeClassifier(random_state=0, epochs=2).fit(given, y)
    one = x[0] if kind == "row" else given[:1]
    why = model.explain(one, y[0])
    assert sorted(why.parts) == [0, 1, 3, 4]
    for column, contribution in zip(why.parts, why.contributions, strict=True):
        changed = x[:1].copy()
        changed[0, column] = 0.0
        changed = sparse.csr_matrix(changed) if kind == "sparse" else changed
        expected = model.predict_log_proba(one.reshape(1, -1), y[:1])
        expected = expected - model.predict_log_proba(changed, y[:1])
        assert contribution == pytest.approx(expected[0], abs=1e-4)
    assert (np.diff(np.abs(why.contributions)) <= 0).all()
    assert model.explain(one).label == model.predict(one.reshape(1, -1))[0]


def test_items_of_a_session() -> None:
    sessions = [["tent", "stove", "lamp"], ["sofa", "chair", "table"]] * 60
    model = SessionRecommender(random_state=0, epochs=3).fit(sessions)
    why = model.explain(["sofa", "tent"], "stove")
    assert sorted(why.parts) == ["sofa", "tent"]
    by_part = dict(zip(why.parts, why.contributions, strict=True))
    lists = Sequences.of([["sofa", "tent"], ["tent"], ["sofa"]])
    whole, without_sofa, without_tent = model.predict_log_proba(lists, ["stove"] * 3)
    assert by_part["sofa"] == pytest.approx(whole - without_sofa, abs=1e-5)
    assert by_part["tent"] == pytest.approx(whole - without_tent, abs=1e-5)


def test_nothing_to_explain(reader: ExtremeClassifier) -> None:
    assert reader.explain("").parts == []


@pytest.mark.parametrize(
    ("x", "label", "message"),
    [("w1", "class 9", "none that training saw"), (7, "class 1", "x must be a text")],
)
def test_what_cannot_be_explained_is_refused(
    reader: ExtremeClassifier, x: Any, label: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reader.explain(x, label)


def test_several_rows_are_refused() -> None:
    x, y = clustered(60, 3, 4, seed=0)
    model = ExtremeClassifier(random_state=0, epochs=1).fit(x, y)
    with pytest.raises(ValueError, match="x must be one row"):
        model.explain(x[:2], y[0])


def test_a_picture(reader: ExtremeClassifier, tmp_path: Path) -> None:
    draw_explanation(reader.explain("w3 topic2 w7"), tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 5_000
