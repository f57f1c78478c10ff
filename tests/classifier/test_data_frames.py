"""Frames and columns of pandas and polars, in place of arrays and lists."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import ArgumentError, ModelFileError
from extremax.storage.folder import model_folder

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

X, Y = clustered(1200, 20, 4, seed=0)
NAMES = ["north", "east", "south", "west"]
FRAME = pd.DataFrame(X, columns=NAMES)
FRAMES = [FRAME, pl.DataFrame(X, schema=NAMES)]
WORDS = np.array([f"word{i}" for i in range(20)])
TEXTS = [f"{WORDS[y]} of {WORDS[i % 20]}" for i, y in enumerate(Y)]
ANSWERS = ("predict", "predict_proba", "predict_log_proba", "predict_topk", "decision_function")


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(**{"epochs": 2, "n_jobs": 1, "random_state": 0} | parameters)


@pytest.mark.parametrize("frame", FRAMES, ids=["pandas", "polars"])
def test_a_frame_is_its_array_with_names(frame: Any) -> None:
    model = small().fit(frame, Y)
    assert model.feature_names_in_.tolist() == NAMES
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(model.predict_proba(frame), small().fit(X, Y).predict_proba(X))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["east", "north", "south", "west"], "must be in the same order as they were in fit"),
        (["north", "east", "south", "up"], "unseen at fit time:\n- up\n.*now missing:\n- west"),
        (["north", "east", "south"], "now missing:\n- west"),
    ],
)
def test_other_columns_are_refused(columns: list[str], message: str) -> None:
    model = small().fit(FRAME, Y)
    other = FRAME.rename(columns={"west": "up"}) if "up" in columns else FRAME
    for name in ANSWERS:
        with pytest.raises(ArgumentError, match=f"(?s){message}"):
            getattr(model, name)(other[columns])
    for name in ("score", "evaluate", "outcomes", "partial_fit"):
        with pytest.raises(ArgumentError, match=f"(?s){message}"):
            getattr(model, name)(other[columns], Y)


def test_rows_with_and_without_names_are_warned_of() -> None:
    named, nameless = small().fit(FRAME, Y), small().fit(X, Y)
    with pytest.warns(UserWarning, match="does not have valid feature names, but ExtremeClass"):
        named.predict(X)
    with pytest.warns(UserWarning, match="X has feature names, but ExtremeClassifier was fitted"):
        nameless.predict(FRAME)
    assert not hasattr(nameless, "feature_names_in_")
    assert not hasattr(named.fit(X, Y), "feature_names_in_")


def test_names_of_mixed_types_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Feature names are only supported if all"):
        small().fit(FRAME.rename(columns={"west": 3}), Y)
    assert not hasattr(small().fit(FRAME.rename(columns=NAMES.index), Y), "feature_names_in_")


def test_names_come_with_the_first_partial_fit() -> None:
    model = small()
    with pytest.raises(ArgumentError, match="rows"):
        model.partial_fit(FRAME, Y[:-1])
    assert not hasattr(model, "feature_names_in_")
    model.partial_fit(FRAME, Y).partial_fit(FRAME, Y)
    assert model.feature_names_in_.tolist() == NAMES
    with pytest.raises(ArgumentError, match="same order"):
        model.partial_fit(FRAME[NAMES[::-1]], Y)


def test_a_fit_that_is_refused_leaves_the_names() -> None:
    model = small().fit(FRAME, Y)
    with pytest.raises(ArgumentError, match="rows"):
        model.fit(FRAME[NAMES[::-1]], Y[:-1])
    assert model.feature_names_in_.tolist() == NAMES


def test_names_are_saved(tmp_path: Path) -> None:
    small().fit(FRAME, Y).save(tmp_path / "model")
    model = ExtremeClassifier.load(tmp_path / "model")
    assert model.feature_names_in_.tolist() == NAMES
    assert model.feature_names_in_.dtype == object
    with pytest.raises(ArgumentError, match="same order"):
        model.predict(FRAME[NAMES[::-1]])
    small().fit(X, Y).save(tmp_path / "nameless")
    assert not hasattr(ExtremeClassifier.load(tmp_path / "nameless"), "feature_names_in_")
    assert "feature_names" not in model_folder(tmp_path / "nameless").read_settings()


def test_saved_names_must_fit_the_features(tmp_path: Path) -> None:
    model = small().fit(FRAME, Y)
    model.feature_names_in_ = model.feature_names_in_[:2]
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="2 names for 4 features"):
        ExtremeClassifier.load(tmp_path / "model")


def test_one_row_is_explained_without_a_warning() -> None:
    model = small().fit(FRAME, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in (FRAME.iloc[0], FRAME.iloc[[0]], X[0]):
            assert model.explain(row).label == model.predict(FRAME[:1])[0]
    with pytest.raises(ArgumentError, match="same order"):
        model.explain(FRAME[NAMES[::-1]].iloc[[0]])


@pytest.mark.parametrize(
    "texts",
    [
        pd.Series(TEXTS, index=range(7, 7 + len(TEXTS))),
        pd.Series(TEXTS, dtype=object),
        pd.Series(TEXTS, dtype="category"),
        pd.DataFrame({"text": TEXTS}),
        pl.Series(TEXTS),
        pl.DataFrame({"text": TEXTS}),
    ],
    ids=["str", "object", "category", "frame", "polars", "polars frame"],
)
def test_a_column_of_texts_is_a_list_of_texts(texts: Any) -> None:
    model, expected = small().fit(texts, Y), small().fit(TEXTS, Y)
    assert model.model_.encoder.input_kind == "text"
    assert np.array_equal(model.predict_proba(texts), expected.predict_proba(TEXTS))
    named = small().fit(texts, Y, label_texts={99: "word99"})
    assert 99 in named.classes_


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("kind", [pd.Series, pl.Series])
def test_a_missing_text_is_named(first: int, kind: Any) -> None:
    texts = TEXTS[:40].copy()
    texts[first] = None
    with pytest.raises(ArgumentError, match=f"the text of row {first} is (nan|None), expected"):
        small().fit(kind(texts), Y[:40])


def test_a_frame_of_texts_keeps_its_name(tmp_path: Path) -> None:
    model = small().fit(pd.DataFrame({"title": TEXTS}), Y)
    model.save(tmp_path / "model")
    loaded = ExtremeClassifier.load(tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == ["title"]
    with pytest.raises(ArgumentError, match="unseen at fit time"):
        loaded.predict(pd.DataFrame({"body": TEXTS}))


LABELS = [f"class {y}" for y in Y]


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(LABELS, index=range(3, 3 + len(Y))),
        pd.Series(LABELS, dtype="category"),
        pd.Categorical(LABELS),
        pl.Series(LABELS),
        pl.Series(LABELS, dtype=pl.Categorical),
    ],
)
def test_a_column_of_labels_is_a_list_of_labels(labels: Any) -> None:
    model, expected = small().fit(X, labels), small().fit(X, LABELS)
    assert model.classes_.tolist() == expected.classes_.tolist()
    assert model.score(X, labels) == expected.score(X, LABELS)


def test_columns_of_lists_are_several_labels_per_row() -> None:
    lists = [[label, "any"] for label in LABELS]
    expected = small().fit(X, lists)
    for column in (pd.Series(lists), pl.Series(lists)):
        model = small().fit(X, column)
        assert np.array_equal(model.predict_proba(X), expected.predict_proba(X))
        assert model.score(X, column) == expected.score(X, lists)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", None, "b"], "contains None, first in row 1; leave out rows without a label"),
        (pd.Series(["a", "b", None]), "contains NaN, first in row 2"),
        (pd.Series(["a", "b", None], dtype="category"), "contains NaN, first in row 2"),
        (pd.Series(["a", pd.NA, "b"], dtype=object), "contains <NA>, first in row 1"),
        (pd.Series([1, 2, None], dtype="Int64"), "contains NaN, first in row 2"),
        (pd.Series(pd.to_datetime(["2020", None, "2021"])), "contains NaT, first in row 1"),
        ([pd.NaT, "a", "b"], "contains NaT, first in row 0"),
        (pl.Series(["a", None, "b"]), "contains None, first in row 1"),
        (pl.Series([1, 2, None]), "contains NaN, first in row 2"),
        ([["a"], ["b", None], ["a"]], "contains None among the labels of row 1"),
        ([["a"], ["b"], [pd.NaT]], "contains NaT among the labels of row 2"),
    ],
)
def test_a_missing_label_is_named(labels: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small().fit(X[:3], labels)
    with pytest.raises(ArgumentError, match=message):
        small().fit(X, LABELS).evaluate(X[:3], labels)
