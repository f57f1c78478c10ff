"""Calls that train, ask or set parameters, with arguments that may be odd or bad."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from extremax import ExtremeClassifier
from tests.campaign.abuse_labels import LABEL_KINDS, changed_labels, good_labels
from tests.campaign.abuse_rows import changed_rows
from tests.campaign.abuse_session import Call, Failed, Session, Stopped
from tests.campaign.abuse_values import (
    BAD,
    GOOD,
    KINDS,
    N_FEATURES,
    ODD,
    Value,
    codes,
    good_rows,
)

#: Shares of calls whose rows, or whose labels, are odd or bad.
_CHANGED = 0.3
#: The scale of a head that was trained on tiny rows.
_TINY = 1e30
_NUMBERS = (1, 2, 3, 100, 10**18, 10**30, np.int8(2), 0, -1, 1.5, float("nan"), None, True, "x")


def _rows_and_labels(session: Session, training: bool) -> tuple[Value, Value]:
    """Arguments of a call that takes rows and labels."""
    random = session.random
    n = random.choice((1, 2, 20, 60, 160)) if training else random.choice((1, 3, 20))
    numbers = codes(session.rng, n)
    kind, width = random.choice(KINDS), N_FEATURES
    labels = random.choice(LABEL_KINDS)
    if session.answers is not None:
        encoder = session.estimator.model_.encoder
        if random.random() < 0.9:
            kind = encoder.input_kind
        if kind == encoder.input_kind:
            width = encoder.n_features_in_
    rows = Value(good_rows(session.rng, kind, numbers, width), f"{kind} {n}")
    y = good_labels(numbers, labels)
    if random.random() < _CHANGED:
        rows = changed_rows(random, kind, rows.value)
    if random.random() < _CHANGED:
        y = changed_labels(random, y.value)
    elif rows.name in ("no rows", "ragged list", "reversed") or rows.verdict == BAD:
        y = Value(y.value, y.name, max(y.verdict, ODD), y.wrong_type)
    return rows, y


def _fits(session: Session, rows: Value) -> Value:
    """What these rows are to a fitted model: rows of another kind or width may be refused, and rows
    whose scores overflow because those of training were smaller by far."""
    if session.answers is None or rows.verdict != GOOD:
        return rows
    model = session.estimator.model_
    fit = rows.name.split()[0] == model.encoder.input_kind and model.head.options.scale < _TINY
    return Value(rows.value, rows.name, GOOD if fit else ODD)


def _weights(session: Session, n: Any) -> Value:
    """Weights of the rows, mostly none."""
    random, n = session.random, n.shape[0] if hasattr(n, "shape") and n.shape else 5
    if random.random() < 0.7:
        return Value(None)
    return random.choice(
        (
            Value(np.ones(n), "ones", ODD),
            Value(np.arange(n), "rising", ODD),
            Value(np.full(n, 1e30), "large", ODD),
            Value(np.full(n, 1e-40), "tiny", ODD),
            Value(np.full(n, 1e300), "too large", BAD),
            Value(np.zeros(n), "zeros", BAD),
            Value(-np.ones(n), "negative", BAD),
            Value(np.full(n, np.nan), "NaN", BAD),
            Value(np.ones((n, 2)), "two columns", BAD),
            Value(np.ones(n + 1), "too many", BAD),
            Value(["x"] * n, "strings", BAD, True),
            Value(object(), "an object", BAD, True),
        )
    )


# Training -------------------------------------------------------------------------------------


def fit(session: Session) -> None:
    """Train; the same again with the same seed must give the same model."""
    rows, y = _rows_and_labels(session, training=True)
    weights = _weights(session, rows.value)
    raises = session.random.random() < 0.05
    asked = session.judged(rows, y, weights)

    def stop(record: dict[str, Any]) -> None:
        session.estimator.predict_topk(rows.value, 1)
        raise Stopped

    def call(estimator: ExtremeClassifier) -> ExtremeClassifier:
        callback = stop if raises else None
        return estimator.fit(rows.value, y.value, weights.value, callback=callback)

    name = f"fit({rows.name}, {y.name}, {weights.name})" + " with a raising callback" * raises
    made = session.make(
        Call(
            name,
            lambda: call(session.estimator),
            (rows.value, y.value, weights.value),
            changes=True,
            raises=Stopped if raises else None,
            **asked,
        )
    )
    repeatable = session.estimator.max_seconds is None and not raises
    if made is not None and repeatable and session.random.random() < 0.3:
        session.check_same(call(session.unfitted()), "the same seed gives another model")


def partial_fit(session: Session) -> None:
    """Train a little more, perhaps on new classes; a copy must end at the same model."""
    rows, y = _rows_and_labels(session, training=True)
    rows = _fits(session, rows)
    weights = _weights(session, rows.value)
    asked = session.judged(rows, y, weights)
    if session.answers is not None and asked["verdict"] == BAD and session.spoiled:
        asked["verdict"] = ODD  # What was chosen when the model was made is not chosen again.
    classes = Value(None)
    if session.random.random() < 0.2:
        classes = changed_labels(session.random, y.value if hasattr(y.value, "__len__") else [1])
        asked["verdict"] = max(asked["verdict"], ODD)
        asked["wrong_type"] |= classes.wrong_type
    known = None if session.answers is None else session.answers.classes
    twin = copy.deepcopy(session.estimator) if session.random.random() < 0.2 else None
    arguments = rows.value, y.value, classes.value, weights.value
    made = session.make(
        Call(
            f"partial_fit({rows.name}, {y.name}, {classes.name}, {weights.name})",
            lambda: session.estimator.partial_fit(*arguments),
            arguments,
            changes=True,
            **asked,
        )
    )
    if made is None:
        return
    assert session.answers is not None
    if known is not None and not _begins_with(session.answers.classes, known):
        raise Failed("silently_wrong", f"classes {known} became {session.answers.classes}")
    if twin is not None and isinstance(session.estimator.random_state, int):
        session.check_same(twin.partial_fit(*arguments), "a copy learns something else")


def _begins_with(classes: np.ndarray, known: np.ndarray) -> bool:
    return len(classes) >= len(known) and all(
        a == b for a, b in zip(classes.tolist(), known.tolist(), strict=False)
    )


# Asking ---------------------------------------------------------------------------------------


def predict(session: Session) -> None:
    """One of the methods that take rows only."""
    rows = _fits(session, _rows_and_labels(session, training=False)[0])
    name = session.random.choice(("predict", "predict_proba", "predict_log_proba"))
    method = getattr(session.estimator, name)
    asked = session.asks_gently
    asked = {
        "verdict": max(asked["verdict"], rows.verdict),
        "wrong_type": asked["wrong_type"] or rows.wrong_type,
    }
    made = session.make(
        Call(f"{name}({rows.name})", lambda: method(rows.value), (rows.value,), **asked)
    )
    if made is not None and len(made) and name != "predict":
        sums = np.exp(made).sum(1) if name == "predict_log_proba" else made.sum(1)
        if np.isnan(made).any() or not np.allclose(sums, 1, atol=1e-3):
            raise Failed("silently_wrong", f"probabilities sum to {sums}")


def predict_topk(session: Session) -> None:
    """The best classes, with any number of them, search and width."""
    random = session.random
    rows = _fits(session, _rows_and_labels(session, training=False)[0])
    k, width = random.choice(_NUMBERS), random.choice((None, None, *_NUMBERS))
    search = random.choice((None, "exact", "beam", "best", 1, ["beam"]))
    recall = random.choice((False, True))
    asked = session.asks_gently
    asked["verdict"] = max(asked["verdict"], rows.verdict, ODD)
    wrong = any(isinstance(v, (str, list)) for v in (k, width, search)) or k is None
    asked["wrong_type"] |= rows.wrong_type or wrong
    if search not in (None, "exact", "beam") or not _is_count(k) or not _is_count(width or 1):
        asked["verdict"] = BAD
    call: dict[str, Any] = {"k": k, "search": search, "width": width, "recall": recall}
    if random.random() < 0.4:
        call["threshold"] = random.choice(
            (0, 0.01, 1.0, 2.0, -1, float("nan"), "half", None, [0.1])
        )
        call["exclude"] = random.choice((None, [], [0, "a"], ["?"], "text", [float("nan")], 7))
        call["renormalize"] = random.choice((False, True))
        asked["wrong_type"] |= not isinstance(call["threshold"], (int, float))
        asked["wrong_type"] |= isinstance(call["exclude"], (str, int))
        if call["threshold"] not in (0, 0.01, 1.0) or isinstance(call["exclude"], (str, int)):
            asked["verdict"] = BAD
    made = session.make(
        Call(
            f"predict_topk({rows.name}, {call})",
            lambda: session.estimator.predict_topk(rows.value, **call),
            (rows.value,),
            **asked,
        )
    )
    if made is not None and (
        np.isnan(made.log_probs).any() or len(made.labels) != len(made.log_probs)
    ):
        raise Failed("silently_wrong", f"log-probabilities {made.log_probs}")


def _is_count(value: Any) -> bool:
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return integer and bool(value >= 1)


def evaluate(session: Session) -> None:
    """One of the methods that take rows and labels, which may be of other types."""
    rows, y = _rows_and_labels(session, training=False)
    rows = _fits(session, rows)
    name = session.random.choice(("evaluate", "score", "log_likelihood", "predict_log_proba"))
    method = getattr(session.estimator, name)
    asked = session.asks_gently
    # Labels that are unknown or fractional are unseen ones to a trained model.
    asked["verdict"] = max(asked["verdict"], rows.verdict, min(y.verdict, ODD))
    if name == "predict_log_proba" or rows.verdict == ODD:
        asked["verdict"] = max(asked["verdict"], ODD)
    asked["wrong_type"] |= rows.wrong_type or y.wrong_type
    arguments = rows.value, y.value
    made = session.make(
        Call(f"{name}({rows.name}, {y.name})", lambda: method(*arguments), arguments, **asked)
    )
    if made is None:
        return
    if name == "score" and not 0 <= made <= 1:
        raise Failed("silently_wrong", f"score {made}")
    if name == "log_likelihood" and not made <= 1e-3:
        raise Failed("silently_wrong", f"log-likelihood {made}")
    if name == "evaluate" and made.labels > made.unseen and not made.log_likelihood <= 1e-3:
        raise Failed("silently_wrong", repr(made))


def attributes(session: Session) -> None:
    """Read what only a fitted estimator has."""
    names = ("classes_", "model_", "n_features_in_", "history_", "n_iter_", "evaluations_")
    found = [hasattr(session.estimator, name) for name in names]
    session.log.append("attributes")
    if found != [session.answers is not None] * len(names):
        raise Failed("silently_wrong", f"attributes {dict(zip(names, found, strict=True))}")
    repr(session.estimator)
    session.estimator.get_params()


# Parameters ------------------------------------------------------------------------------------


def spoil(session: Session) -> None:
    """Set a parameter to an odd or bad value, and mostly train with it."""
    session.spoil()
    if session.random.random() < 0.7:
        session.random.choice((fit, partial_fit))(session)
