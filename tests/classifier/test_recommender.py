"""Next items of sessions, on sessions that stay within a kind of items."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from extremax import ExtremeClassifier, SessionRecommender, preparation
from extremax.data import clustered
from extremax.data.sequences import Sequences
from extremax.errors import ArgumentError, ModelFileError

KINDS, PER_KIND = 8, 5


def sessions_of(n: int, seed: int = 0) -> list[list[str]]:
    """Items of one kind each, 2 to 5 of them."""
    rng = np.random.default_rng(seed)
    return [
        [f"{kind}{'abcde'[j]}" for j in rng.integers(PER_KIND, size=rng.integers(2, 6))]
        for kind in rng.integers(KINDS, size=n)
    ]


SESSIONS = sessions_of(400)


def small(**parameters: Any) -> SessionRecommender:
    chosen = {"epochs": 4, "batch_size": 64, "n_negatives": 64, "bag_size": 16, "random_state": 0}
    return SessionRecommender(**chosen | parameters)


@pytest.fixture(scope="module")
def model() -> SessionRecommender:
    return small().fit(SESSIONS)


def assert_same(one: ExtremeClassifier, other: ExtremeClassifier) -> None:
    for part in ("head", "noise"):
        ours, theirs = (getattr(model.model_, part).state() for model in (one, other))
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert one.model_.blend == other.model_.blend
    assert np.array_equal(one.predict_log_proba(SESSIONS), other.predict_log_proba(SESSIONS))


# Recommending ---------------------------------------------------------------------------------


def test_items_of_the_same_kind_come_next(model: SessionRecommender) -> None:
    items, probabilities = model.recommend(["3a", "3b"], k=5)
    assert items.shape == probabilities.shape == (5,)
    assert set(items) == {f"3{letter}" for letter in "abcde"}
    assert (np.diff(probabilities) <= 0).all()
    assert probabilities.sum() > 0.9


def test_a_batch_gets_what_each_session_gets(model: SessionRecommender) -> None:
    batch = [["3a", "3b"], [], ["5c"], ["never seen"]]
    together = model.recommend(batch, k=7)
    assert together.items.shape == together.probabilities.shape == (4, 7)
    for row, session in enumerate(batch):
        alone = model.recommend(session, k=7)
        np.testing.assert_allclose(together.probabilities[row], alone.probabilities, rtol=1e-4)
    # Without a known item, only what is popular counts.
    np.testing.assert_array_equal(together.probabilities[1], together.probabilities[3])
    as_arrays = model.recommend([np.array(["3a", "3b"]), ("5c",)], k=7)
    np.testing.assert_array_equal(as_arrays.items, together.items[[0, 2]])
    np.testing.assert_array_equal(model.recommend(Sequences.of(batch), 7).items, together.items)


def test_unknown_items_count_for_nothing(model: SessionRecommender) -> None:
    plain = model.recommend(["3a", "3b"]).probabilities
    more = model.recommend(["x", "3a", "y", "3b", "z"]).probabilities
    np.testing.assert_allclose(more, plain, rtol=1e-5)


def test_excluded_items_are_left_out(model: SessionRecommender) -> None:
    session = ["3a", "3b"]
    everything = model.recommend(session, k=40)
    some = model.recommend(session, k=10, exclude=["3a", "3c", "unknown"])
    kept = [i for i, item in enumerate(everything.items) if item not in ("3a", "3c")][:10]
    assert some.items.tolist() == everything.items[kept].tolist()
    # The probabilities are those before items were left out.
    np.testing.assert_allclose(some.probabilities, everything.probabilities[kept], rtol=1e-5)


def test_visited_items_are_left_out_of_each_session(model: SessionRecommender) -> None:
    batch = [["3a", "3b"], ["5c"], []]
    found = model.recommend(batch, k=38, exclude_visited=True)
    assert found.items.shape == (3, 38)
    for items, session in zip(found.items, batch, strict=True):
        assert len(set(items)) == 38
        assert not set(items) & set(session)
    # All have as many as the one with the fewest left.
    assert model.recommend(batch, k=40, exclude_visited=True).items.shape == (3, 38)
    both = model.recommend(["3a", "3b"], k=40, exclude=["3c"], exclude_visited=True)
    assert set(both.items) == set(model.classes_) - {"3a", "3b", "3c"}


def test_everything_excluded_leaves_nothing(model: SessionRecommender) -> None:
    assert model.recommend(["3a"], exclude=model.classes_).items.shape == (0,)


# Learning -------------------------------------------------------------------------------------


def test_figures_are_over_all_prefixes(model: SessionRecommender) -> None:
    test = sessions_of(50, seed=1)
    found = model.evaluate(test)
    prefixes = [one[:end] for one in test for end in range(1, len(one))]
    following = [one[end] for one in test for end in range(1, len(one))]
    assert found.rows == len(prefixes)
    as_classifier = ExtremeClassifier.evaluate(model, prefixes, following)
    assert found.log_likelihood == pytest.approx(as_classifier.log_likelihood, rel=1e-5)
    # An item of the right kind: 1/5. Without the kind: 1/40.
    assert found.log_likelihood > np.log(1 / PER_KIND) - 0.3
    assert model.score(test) == pytest.approx(found.accuracy)
    assert model.log_likelihood(test) == found.log_likelihood
    # Or over given pairs.
    pairs = model.evaluate(prefixes, following)
    assert pairs.log_likelihood == pytest.approx(found.log_likelihood, rel=1e-5)


def test_items_that_come_only_first_are_classes_too() -> None:
    sessions = [["start", item] for one in SESSIONS for item in one[:1]]
    assert "start" in small(epochs=1).fit(sessions).classes_


def test_partial_fit_adds_items(model: SessionRecommender, tmp_path: Path) -> None:
    grown = pickle.loads(pickle.dumps(model))
    more = [["9x", "9y"], ["9y", "9x", "3a"]] * 60
    for _ in range(8):
        grown.partial_fit(more)
    assert grown.classes_.tolist() == [*model.classes_, "9x", "9y"]
    # What came after 9x.
    assert set(grown.recommend(["9x"], k=2).items) == {"9y", "3a"}
    assert "9x" not in model.classes_
    assert set(grown.recommend(["5a", "5b"], k=5).items) == {f"5{letter}" for letter in "abcde"}
    grown.save(tmp_path / "grown")
    assert_same(SessionRecommender.load(tmp_path / "grown"), grown)


def test_partial_fit_alone() -> None:
    model = small()
    for _ in range(6):
        model.partial_fit(SESSIONS)
    # The head alone has learned the kinds: chance would find one of eight.
    assert model.evaluate(SESSIONS).top5_accuracy > 0.5


def test_no_session_is_split_between_training_and_held_out_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[np.ndarray] = []
    holdout = preparation.holdout

    def watched(*arguments: Any) -> Any:
        parts.extend(holdout(*arguments))
        return tuple(parts)

    monkeypatch.setattr(preparation, "holdout", watched)
    small(epochs=1).fit(SESSIONS)
    session = np.repeat(np.arange(len(SESSIONS)), [len(one) - 1 for one in SESSIONS])
    train, held_out = (set(session[numbers].tolist()) for numbers in parts)
    assert held_out
    assert not train & held_out
    assert train | held_out == set(range(len(SESSIONS)))


# The same model -------------------------------------------------------------------------------


def test_threads_change_nothing(model: SessionRecommender) -> None:
    for n_jobs in (1, 2):
        assert_same(small(n_jobs=n_jobs).fit(SESSIONS), model)


class Stop(Exception):
    pass


def test_a_stopped_run_resumes_to_the_same_end(model: SessionRecommender, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        small().fit(SESSIONS, checkpoint=tmp_path / "run", callback=stop)
    epochs: list[int] = []
    resumed = small().fit(
        SESSIONS,
        checkpoint=tmp_path / "run",
        callback=lambda record: epochs.append(record["epoch"]),
    )
    assert epochs[0] > 1
    assert_same(resumed, model)
    with pytest.raises(ModelFileError):
        small().fit(SESSIONS[1:], checkpoint=tmp_path / "run")


def test_save_load_pickle_clone(model: SessionRecommender, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    loaded = SessionRecommender.load(tmp_path / "model")
    assert type(loaded) is SessionRecommender
    assert loaded.get_params() == model.get_params()
    assert_same(loaded, model)
    assert loaded.recommend(["3a"]).items.tolist() == model.recommend(["3a"]).items.tolist()
    assert_same(pickle.loads(pickle.dumps(model)), model)
    assert_same(clone(model).fit(SESSIONS), model)
    # A classifier of sequences is the same model.
    as_classifier = ExtremeClassifier.load(tmp_path / "model")
    assert_same(as_classifier, model)


def test_other_models_are_not_loaded(tmp_path: Path) -> None:
    X, y = clustered(200, 5, 4, seed=0)
    ExtremeClassifier(epochs=1, random_state=0).fit(X, y).save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="trained on dense rows; use Extreme"):
        SessionRecommender.load(tmp_path / "model")


@pytest.mark.parametrize("items", [[0, 1, 2, 3], [("a", 1), ("a", 2), ("b", 1), ("b", 2)]])
def test_items_are_of_any_hashable_kind(items: list[Any]) -> None:
    sessions = [[items[0], items[1]], [items[2], items[3]]] * 40
    model = small(epochs=2).fit(sessions)
    assert set(model.recommend([[items[2]]], k=2).items[0].tolist()) == set(items[2:])


# Mistakes -------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, str]] = {
    "no session": ([], "no session has two items"),
    "empty sessions": ([[], []], "no session has two items"),
    "sessions of one item": ([["a"], ["b"]], "no session has two items"),
    "a string": ("a b c", "sessions must be lists of items"),
    "one session": (["a", "b"], "session 0 must be a list of items, got 'a'"),
    "unhashable items": ([[["a"], ["b"]]], "item .* of session 0 is not hashable"),
    "prefixes": (Sequences.of(SESSIONS).prefixes()[0], "these are prefixes of sessions"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("method", ["fit", "partial_fit", "evaluate", "score"])
def test_wrong_sessions_are_refused(name: str, method: str, model: SessionRecommender) -> None:
    given, message = WRONG[name]
    before = model.predict_log_proba(SESSIONS[:3])
    with pytest.raises(ArgumentError, match=message):
        getattr(model, method)(given)
    np.testing.assert_array_equal(model.predict_log_proba(SESSIONS[:3]), before)


def test_wrong_requests_are_refused(model: SessionRecommender) -> None:
    with pytest.raises(ArgumentError, match="session 0 must be a list of items, got 'tent'"):
        model.recommend("tent")
    with pytest.raises(ArgumentError, match="exclude must be a list of labels, got '3a'"):
        model.recommend(["3a"], exclude="3a")
    for k in (0, 1.5, "1", None):
        with pytest.raises(ArgumentError, match="k must be an integer >= 1"):
            model.recommend(["3a"], k=k)
    with pytest.raises(ArgumentError, match="y must be None"):
        small().fit(SESSIONS, ["a"])
    with pytest.raises(NotFittedError):
        small().recommend(["3a"])
