"""Copies of the estimator of a session: saved, pickled, forked, or asked by several threads."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from extremax import ExtremeClassifier
from extremax.errors import ModelFileError
from tests.campaign.abuse_answers import ask, same_labels
from tests.campaign.abuse_session import Call, Failed, Session
from tests.campaign.abuse_values import BAD, GOOD, N_FEATURES, ODD, codes, good_rows
from tests.campaign.crash_children import run_in_child

_FORK_SECONDS = 100.0


def save_and_load(session: Session) -> None:
    """What is loaded must answer the same, with labels of the same types."""
    path = session.folder / "model"
    asked = session.asks_gently
    # Labels of some types, and parameters that are no parameters, cannot be written.
    asked["verdict"] = max(asked["verdict"], ODD)
    asked["wrong_type"] |= session.answers is None
    loaded = session.make(Call("save", lambda: _saved(session, path), **asked))
    shutil.rmtree(path, ignore_errors=True)
    if loaded is None:
        return
    session.check_same(loaded, "loaded, it answers otherwise")
    if not same_labels(loaded.classes_, session.estimator.classes_):
        raise Failed("silently_wrong", f"labels {loaded.classes_!r:.200}")
    if session.random.random() < 0.5:
        session.estimator = loaded.set_params(**session.estimator.get_params(deep=False))
        session.log.append("load")


def _saved(session: Session, path: Any) -> ExtremeClassifier:
    session.estimator.save(path)
    try:
        return ExtremeClassifier.load(path)
    except ModelFileError as error:
        # It may have replaced a model that could be loaded.
        raise Failed("lost", "what was saved cannot be loaded") from error


def save_badly(session: Session) -> None:
    """Save where that is impossible; nothing may be left, or lost."""
    path = session.folder / "model"
    path.mkdir()
    mine = path / "mine.txt"
    mine.write_text("mine")
    target: Any = session.random.choice((mine, mine / "x", None, 5, b"\xff", "a\0b", ["a"]))
    load = session.random.random() < 0.3
    method = ExtremeClassifier.load if load else session.estimator.save
    try:
        session.make(
            Call(
                f"{'load' if load else 'save'}({target!r:.40})",
                lambda: method(target),
                verdict=BAD,
                wrong_type=True,
            )
        )
        if mine.read_text() != "mine" or len(list(path.iterdir())) > 1:
            raise Failed("lost", f"{sorted(path.iterdir())}")
    finally:
        shutil.rmtree(path)


def copies(session: Session) -> None:
    """Pickled or copied, an estimator answers the same; a clone is not fitted."""
    makers: dict[str, Callable[[Any], Any]] = {
        "pickle": lambda estimator: pickle.loads(pickle.dumps(estimator)),
        "deepcopy": copy.deepcopy,
        "clone": lambda estimator: session.unfitted(),
    }
    name = session.random.choice(sorted(makers))
    # Functions and other objects among parameters or labels need not be copied.
    verdict = ODD if session.spoiled or session.answers is not None else GOOD
    made = session.make(
        Call(name, lambda: makers[name](session.estimator), verdict=verdict, wrong_type=True)
    )
    if made is None:
        return
    if name == "clone":
        if made.__sklearn_is_fitted__():
            raise Failed("silently_wrong", "a clone is fitted")
        return
    session.check_same(made, name)
    session.estimator = made


# Processes and threads ------------------------------------------------------------------------


def fork(session: Session) -> None:
    """A forked process answers the same, and can train."""
    if session.answers is None:
        return
    session.log.append("fork")

    def ask_and_train() -> None:
        session.check_same(session.estimator, "forked, it answers otherwise")
        session.mend()
        labels = codes(session.rng, 20)
        kind = session.estimator.model_.encoder.input_kind
        X = good_rows(session.rng, kind, labels, N_FEATURES)
        session.estimator.set_params(n_jobs=2).fit(X, labels).predict(X)

    ended = run_in_child(ask_and_train, session.folder / "child", _FORK_SECONDS)
    if ended.status != 0:
        outcome = {None: "hang", 70: "traceback"}.get(ended.status, "crash")
        raise Failed(outcome, f"the child ended with {ended.status}\n{ended.err[-2000:]}")


def threads(session: Session) -> None:
    """Four threads that ask the same estimator get the same answers, while two others train."""
    if session.answers is None:
        return
    session.log.append("threads")
    labels = codes(session.rng, 40)
    X = good_rows(session.rng, "dense", labels, N_FEATURES)
    alone = _trained(X, labels)
    with ThreadPoolExecutor(6) as pool:
        trained = [pool.submit(_trained, X, labels) for _ in range(2)]
        asked = [pool.submit(ask, session.estimator, session.rows) for _ in range(8)]
    for answers in asked:
        session.compare(answers.result(), "in a thread, it answers otherwise")
    for probabilities in trained:
        if not np.array_equal(probabilities.result(), alone):
            raise Failed("silently_wrong", "trained in a thread, it answers otherwise")


def _trained(X: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return ExtremeClassifier(epochs=1, n_jobs=2, random_state=0).fit(X, labels).predict_proba(X)
