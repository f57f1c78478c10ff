"""What a model answers, and what must hold of the answers of any model."""

from __future__ import annotations

import copy
import hashlib
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from extremax import ExtremeClassifier
from extremax.errors import DivergedError
from extremax.model import Model
from tests.campaign.abuse_values import N_CLASSES, good_rows

_SUM_TOLERANCE = 1e-3
#: Rows that are asked about, and those at the beginning with numbers of ordinary size.
_N_PROBES, _N_MODEST = 7, 3
#: Parameters with which any fitted model answers, whatever its own have been set to.
_ASKING = {
    "n_jobs": 1,
    "memory_budget": 2**29,
    "verbose": 0,
    "calibrate": False,
    "validation_fraction": 0.1,
}


class Answers(NamedTuple):
    """Labels and probabilities, (n, C); the best classes by exact and by default search, with log p
    and marginals; a digest of the model, which tells whether it changed where it answers nothing
    because scores overflow.
    """

    classes: np.ndarray
    probabilities: np.ndarray
    exact: tuple[np.ndarray, ...]
    found: tuple[np.ndarray, ...]
    digest: str


def probe_rows(classifier: ExtremeClassifier) -> Any:
    """Rows to ask a fitted model about, with zeros and the largest numbers among them."""
    encoder = classifier.model_.encoder
    labels = np.arange(5) % N_CLASSES
    rows = good_rows(np.random.default_rng(1), encoder.input_kind, labels, encoder.n_features_in_)
    if encoder.input_kind == "text":
        return [*rows, "", "unknown"]
    rows[3] = rows[3] * 0
    rows[4] = np.sign(rows[4]) * np.float32(1e15) if encoder.input_kind == "dense" else rows[4]
    if encoder.input_kind == "sparse":
        rows.data[-1:] = 1e15
    return rows


def ask(classifier: ExtremeClassifier, rows: Any) -> Answers:
    """Ask a fitted model, without regard to parameters that may have been spoiled.

    Where scores overflow, as those of the largest numbers may, it is asked about fewer rows.
    """
    asked = copy.copy(classifier).set_params(**_usable(classifier))
    for n in (_N_PROBES, _N_MODEST):
        with suppress(DivergedError):
            return _answers(asked, rows[:n])
    nothing = np.empty((0, len(asked.classes_)))
    nothings = nothing, (nothing, nothing, nothing), (nothing, nothing, nothing)
    return Answers(asked.classes_.copy(), *nothings, digest(asked.model_))


def _answers(asked: ExtremeClassifier, rows: Any) -> Answers:
    return Answers(
        asked.classes_.copy(),
        asked.predict_proba(rows),
        _best(asked, rows, search="exact"),
        _best(asked, rows),
        digest(asked.model_),
    )


def _best(asked: ExtremeClassifier, rows: Any, **search: Any) -> tuple[np.ndarray, ...]:
    found = asked.predict_topk(rows, 3, **search)
    return found.labels, found.log_probs, found.marginals


def digest(model: Model) -> str:
    """A digest of all numbers of a model: what is saved but for labels, which may be anything."""
    found = hashlib.blake2b(repr(model.blend).encode())
    for part in (model.encoder, model.head, model.noise):
        for name, tensor in sorted(part.state().items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(np.ascontiguousarray(tensor.numpy()).data)
    return found.hexdigest()


def _usable(classifier: ExtremeClassifier) -> dict[str, Any]:
    """A full set of parameters that pass the checks."""
    fresh = type(classifier)().get_params(deep=False)
    return fresh | _ASKING


def differences(before: Answers | None, after: Answers | None) -> str:
    """How two answers differ, or ""."""
    if before is None or after is None:
        return "" if before is after else "one of them is not fitted"
    if not same_labels(before.classes, after.classes):
        return f"classes {before.classes!r:.200} and {after.classes!r:.200}"
    for name, a, b in (
        ("probabilities", before.probabilities, after.probabilities),
        ("exact log-probabilities", before.exact[1], after.exact[1]),
        ("log-probabilities", before.found[1], after.found[1]),
    ):
        if a.shape != b.shape or not np.array_equal(a, b, equal_nan=True):
            return f"{name} {a!r:.300} and {b!r:.300}"
    if not same_labels(before.found[0].ravel(), after.found[0].ravel()):
        return f"best classes {before.found[0]!r:.200} and {after.found[0]!r:.200}"
    if before.digest != after.digest:
        return "the numbers of the model"
    return ""


def same_labels(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether labels are equal and of the same types; numpy's numbers may become Python's."""
    pairs = zip(a.tolist(), b.tolist(), strict=False)
    return len(a) == len(b) and all(_type(x) is _type(y) and x == y for x, y in pairs)


def _type(label: Any) -> type:
    if isinstance(label, np.floating):
        return float
    return int if isinstance(label, np.integer) else type(label)


def defects(answers: Answers) -> str:
    """What is wrong with the answers of a model, or ""."""
    classes, p = answers.classes, answers.probabilities
    if len(set(classes.tolist())) != len(classes):
        return f"classes {classes!r:.200} are not distinct"
    if p.shape[1] != len(classes):
        return f"{p.shape[1]} probabilities of {len(classes)} classes"
    if not np.isfinite(p).all() or (p < 0).any():
        return f"probabilities {p!r:.500}"
    if not np.allclose(p.sum(1), 1, atol=_SUM_TOLERANCE):
        return f"probabilities sum to {p.sum(1)}"
    place = {label: i for i, label in enumerate(classes.tolist())}
    for name, best in (("exact", answers.exact), ("default", answers.found)):
        labels, log_probs, marginals = best
        numbers = np.array([[place[label] for label in row] for row in labels.tolist()], int)
        numbers = numbers.reshape(labels.shape)
        if np.isnan(log_probs).any() or (log_probs > _SUM_TOLERANCE).any():
            return f"{name} search: log-probabilities {log_probs!r:.500}"
        if (np.diff(marginals, axis=1) > 0).any():
            return f"{name} search: {marginals!r:.500} are not in order"
        if any(len(set(row)) < len(row) for row in numbers.tolist()):
            return f"{name} search: the same class twice in {labels!r:.300}"
        if name == "exact":
            found = np.take_along_axis(p, numbers, 1)
            if not np.allclose(np.exp(log_probs), found, atol=_SUM_TOLERANCE):
                return f"exact search: {np.exp(log_probs)!r:.300} instead of {found!r:.300}"
            # Where rows have several labels, marginals decide which class is the best.
            one_label = np.allclose(marginals, found, atol=1e-5)
            if one_label and not np.allclose(found[:, 0], p.max(1), atol=1e-5):
                return f"the best class has {found[:, 0]}, others up to {p.max(1)}"
    return ""
