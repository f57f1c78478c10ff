"""Training in pieces: from nothing, after fit, after load, with classes that come later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.features import Encoder

X, Y = clustered(4000, 30, 12, seed=0, exponent=0.5)
OLD = Y < 24
NOISES = ("tree", "uniform", "frequency")

pytestmark = pytest.mark.parametrize("noise", NOISES)


def small(noise: str, **parameters: Any) -> ExtremeClassifier:
    settings = {"epochs": 3, "n_jobs": 1, "random_state": 0, "learning_rate": 1.0} | parameters
    return ExtremeClassifier(noise=noise, **settings)


def taught(model: ExtremeClassifier, rows: Any, passes: int = 4) -> ExtremeClassifier:
    for _ in range(passes):
        model.partial_fit(X[rows], Y[rows])
    return model


def test_passes_from_nothing_teach_as_much_as_a_fit(noise: str) -> None:
    pieces = taught(small(noise), slice(None))
    whole = small(noise).fit(X, Y)
    assert pieces.log_likelihood(X, Y) > whole.log_likelihood(X, Y) - 0.2
    np.testing.assert_allclose(pieces.predict_proba(X[:50]).sum(1), 1.0, rtol=1e-5)


def test_small_batches_in_a_stream(noise: str) -> None:
    model = small(noise, batch_size=50)
    before = None
    for start in range(0, 4000, 500):
        model.partial_fit(X[start : start + 500], Y[start : start + 500])
        before = model.log_likelihood(X, Y) if before is None else before
    assert model.evaluate(X, Y).unseen == 0
    assert model.log_likelihood(X, Y) > before


def test_a_pass_is_repeatable_and_each_pass_has_its_own_numbers(noise: str) -> None:
    first, again = taught(small(noise), slice(None), 2), taught(small(noise), slice(None), 2)
    assert torch.equal(first.model_.head.weight, again.model_.head.weight)
    other = taught(small(noise, random_state=1), slice(None), 2)
    assert not torch.equal(first.model_.head.weight, other.model_.head.weight)


def test_classes_may_be_named_before_they_come(noise: str) -> None:
    model = small(noise).partial_fit(X[OLD], Y[OLD], classes=np.arange(30)[::-1])
    assert np.array_equal(model.classes_, np.arange(30))
    assert model.model_.head.n_classes == model.model_.noise.n_classes_ == 30
    # A class without an example is possible, and rare.
    absent = model.predict_proba(X[OLD])[:, 24:].mean()
    assert 0 < absent < 1 / 30
    taught(model, slice(None), 6)
    assert np.array_equal(model.classes_, np.arange(30))
    assert np.mean(model.predict(X[~OLD]) == Y[~OLD]) > 0.6


def test_classes_may_be_named_at_any_call(noise: str) -> None:
    early = small(noise).partial_fit(X[~OLD], Y[~OLD], classes=["x", 3])
    assert early.classes_.tolist() == [*range(24, 30), "x", 3]
    early.partial_fit(X[OLD], Y[OLD], classes=["x", "y"])
    assert set(early.classes_.tolist()) == {*range(30), "x", "y"}
    assert early.classes_.tolist()[:8] == [*range(24, 30), "x", 3]
    assert early.model_.head.n_classes == early.model_.noise.n_classes_ == 32


def test_classes_named_in_another_kind_than_the_labels_stay_apart(noise: str) -> None:
    model = small(noise).partial_fit(X, Y, classes=["none of these"])
    assert set(model.classes_.tolist()) == {"none of these", *range(30)}


@pytest.mark.parametrize("start", ["fit", "partial_fit"])
def test_new_classes_appear_and_become_predictable(noise: str, start: str) -> None:
    model = small(noise)
    getattr(model, start)(X[OLD], Y[OLD])
    before = model.evaluate(X, Y)
    assert before.unseen == (~OLD).sum()
    old_accuracy = model.evaluate(X[OLD], Y[OLD]).accuracy
    taught(model, slice(None), 6)
    assert model.classes_.tolist() == [*range(24), *range(24, 30)]
    assert model.evaluate(X, Y).unseen == 0
    assert np.mean(model.predict(X[~OLD]) == Y[~OLD]) > 0.6
    assert model.evaluate(X[OLD], Y[OLD]).accuracy > old_accuracy - 0.1
    np.testing.assert_allclose(model.predict_proba(X[:50]).sum(1), 1.0, rtol=1e-5)


def test_new_classes_of_another_kind_change_no_label(noise: str) -> None:
    model = small(noise).partial_fit(X[OLD], Y[OLD])
    model.partial_fit(X[~OLD], [f"late {v}" for v in Y[~OLD]])
    assert model.classes_.tolist() == [*range(24), *(f"late {v}" for v in range(24, 30))]
    assert model.evaluate(X[OLD], Y[OLD]).unseen == 0


def test_a_loaded_model_goes_on_as_if_it_had_never_stopped(noise: str, tmp_path: Path) -> None:
    model = small(noise).fit(X[OLD], Y[OLD])
    taught(model, slice(None), 1)
    model.save(tmp_path)
    loaded = ExtremeClassifier.load(tmp_path)
    for each in (model, loaded):
        each.partial_fit(X, Y)
        each.partial_fit(X[:50], ["brand new"] * 50)
    ours, theirs = model.model_.head.state(), loaded.model_.head.state()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert np.array_equal(model.predict_proba(X), loaded.predict_proba(X))


def test_other_rows_are_encoded_like_the_first(noise: str) -> None:
    texts = [f"w{label} w{label % 7} w{i % 50}" for i, label in enumerate(Y)]
    model = small(noise, encoder=Encoder(n_components=40))
    for _ in range(3):
        model.partial_fit(texts[:2000], Y[:2000])
        model.partial_fit(texts[2000:], Y[2000:])
    assert model.score(texts, Y) > 0.8


def test_fit_starts_anew(noise: str) -> None:
    model = taught(small(noise), slice(None), 2)
    model.fit(X[OLD], Y[OLD])
    fresh = small(noise).fit(X[OLD], Y[OLD])
    assert np.array_equal(model.classes_, np.arange(24))
    assert torch.equal(model.model_.head.weight, fresh.model_.head.weight)
    assert model._state.n_partial_fits == 0


def test_a_pass_prints_nothing(noise: str, capfd: pytest.CaptureFixture[str]) -> None:
    taught(small(noise), slice(None), 1)
    assert capfd.readouterr() == ("", "")
