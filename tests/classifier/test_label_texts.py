"""Texts of labels as further training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

from extremax import ExtremeClassifier, SessionRecommender
from extremax.errors import ArgumentError, ModelFileError
from extremax.features import Encoder

N_CLASSES = 40
WORDS = [f"topic{i}" for i in range(2 * N_CLASSES)]


def titles(n: int, seed: int, words: int = 1) -> tuple[list[str], np.ndarray]:
    """Some of the two words of the class, and three that say nothing."""
    random = np.random.default_rng(seed)
    y = random.integers(N_CLASSES, size=n)
    own = 2 * y[:, None] + random.permuted(np.tile([0, 1], (n, 1)), axis=1)[:, :words]
    common = random.integers(30, size=(n, 3))
    rows = zip(own, common, strict=True)
    texts = [" ".join([*(WORDS[i] for i in a), *(f"c{i}" for i in b)]) for a, b in rows]
    return texts, np.array([f"class {c}" for c in y])


NAMES = {f"class {c}": f"{WORDS[2 * c]} {WORDS[2 * c + 1]}" for c in range(N_CLASSES)}
X, Y = titles(1_500, 0)
SEVERAL = [[y, "even" if int(y.split()[1]) % 2 == 0 else "odd"] for y in Y]


def small(**parameters: Any) -> ExtremeClassifier:
    usual = {"epochs": 3, "bag_size": 16, "n_jobs": 1, "random_state": 0}
    return ExtremeClassifier(**usual | parameters)


def without(*labels: str) -> tuple[list[str], np.ndarray]:
    kept = ~np.isin(Y, labels)
    return np.array(X, object)[kept].tolist(), Y[kept]


def test_a_class_known_by_name_alone_is_found() -> None:
    rows, y = without("class 3", "class 8")
    model = small().fit(rows, y, label_texts=NAMES)
    assert set(model.classes_) == set(NAMES)
    assert model.model_.labels.counts[model.classes_ == "class 3"] == 1
    assert model.predict([NAMES["class 3"]]).tolist() == ["class 3"]
    asked, truth = titles(400, 1, words=2)
    new = np.isin(truth, ["class 3", "class 8"])
    assert new.sum() > 5
    found = model.predict(asked)
    assert np.mean(found[new] == truth[new]) > 0.5
    assert np.mean(found[~new] == truth[~new]) > 0.8


@pytest.mark.parametrize("n_components", [None, 30])
def test_names_are_the_rows_that_one_could_append(n_components: int | None) -> None:
    encoder = Encoder(n_components)
    named = small(encoder=encoder, validation_fraction=0.0).fit(X, Y, label_texts=NAMES)
    appended = small(encoder=encoder, validation_fraction=0.0)
    appended.fit([*X, *NAMES.values()], [*Y, *NAMES])
    assert named.predict_proba(X[:50]).tobytes() == appended.predict_proba(X[:50]).tobytes()


def test_no_name_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from extremax import fitting

    seen = {}

    class Watched(fitting.Run):
        def member(self, *given: Any) -> fitting.Fitted:
            seen["run"] = self
            return super().member(*given)

    monkeypatch.setattr(fitting, "Run", Watched)
    plain = small(validation_fraction=0.9).fit(X, Y)
    held_out = seen["run"].held_out
    assert len(held_out) > 1_000
    named = small(validation_fraction=0.9).fit(X, Y, label_texts=NAMES)
    run = seen["run"]
    # The same rows as without names, so that figures compare.
    assert sorted(run.held_out) == sorted(held_out)
    assert set(range(len(X), len(X) + len(NAMES))) <= set(run.train.tolist())
    assert len(run.train) + len(run.held_out) == len(X) + len(NAMES)
    # Every class has few rows left, and names help.
    asked, truth = titles(400, 1)
    assert named.log_likelihood(asked, truth) > plain.log_likelihood(asked, truth)


def test_rows_with_several_labels() -> None:
    rows, _ = without("class 3")
    y = [labels for labels in SEVERAL if labels[0] != "class 3"]
    weights = np.linspace(0.5, 1.5, len(rows))
    model = small().fit(rows, y, weights, label_texts=NAMES)
    assert "class 3" in model.classes_
    labels = model.model_.labels
    assert labels.n_rows == len(rows) + len(NAMES)
    assert labels.counts.sum() == 2 * len(rows) + len(NAMES)
    # Rows have two labels, whatever names have.
    assert model.expected_labels(rows).mean() == pytest.approx(2.0, abs=0.2)
    top = model.predict_topk([NAMES["class 3"]], 2)
    assert "class 3" in top.labels


def test_nothing_more_is_saved(tmp_path: Path) -> None:
    model = small(similar_rows=False).fit(X, Y, label_texts=NAMES)
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path)
    assert loaded.predict_proba(X[:20]).tobytes() == model.predict_proba(X[:20]).tobytes()
    assert not any(b"topic5" in path.read_bytes() for path in tmp_path.iterdir())


def test_a_checkpoint_of_other_names_is_refused(tmp_path: Path) -> None:
    few = {label: NAMES[label] for label in list(NAMES)[:5]}
    model = small().fit(X, Y, label_texts=few, checkpoint=tmp_path)
    again = small().fit(X, Y, label_texts=few, checkpoint=tmp_path)
    assert again.predict_proba(X[:20]).tobytes() == model.predict_proba(X[:20]).tobytes()
    with pytest.raises(ModelFileError, match="differs in features, labels, rows"):
        small().fit(X, Y, label_texts=NAMES, checkpoint=tmp_path)


def test_no_names_change_nothing() -> None:
    plain, none = small().fit(X, Y), small().fit(X, Y, label_texts={})
    assert plain.predict_proba(X[:20]).tobytes() == none.predict_proba(X[:20]).tobytes()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["name"], "must be a mapping from labels to texts, got \\['name'\\]"),
        ({"class 1": 5}, "has 5 for label 'class 1', expected a string"),
        ({1: "name"}, "has labels such as 1, but y has labels such as 'class"),
    ],
)
def test_wrong_texts_are_refused(texts: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small().fit(X, Y, label_texts=texts)


def test_rows_that_are_no_texts_are_refused() -> None:
    counts = CountVectorizer().fit_transform(X)
    for rows in (counts, counts.toarray()):
        with pytest.raises(ArgumentError, match="X must be a sequence of texts"):
            small().fit(rows, Y, label_texts=NAMES)
    with pytest.raises(ArgumentError, match="X must be a sequence of texts"):
        SessionRecommender().fit([["a", "b"]] * 9, label_texts={"a": "name"})
