"""A session: one estimator, and a plain account of what must hold after each call."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from extremax import ExtremeClassifier
from extremax.errors import DivergedError, ExtremaxError
from tests.campaign.abuse_answers import Answers, ask, defects, differences, probe_rows
from tests.campaign.abuse_parameters import changed_parameter, good_parameters
from tests.campaign.abuse_values import BAD, GOOD, ODD, Value


class Failed(Exception):
    """Something that must not happen, with its outcome."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class Stopped(Exception):
    """What a user's callback raises."""


@dataclass
class Call:
    """One call with its arguments.

    inputs:      what the call must not change.
    verdict:     whether it must be accepted (GOOD), must be refused (BAD), or may be either.
    changes:     whether it changes the estimator if it is accepted.
    wrong_type:  whether a TypeError is an answer.
    raises:      an exception it ends with unless it is refused before.
    """

    name: str
    function: Callable[[], Any]
    inputs: tuple[Any, ...] = ()
    verdict: int = GOOD
    changes: bool = False
    wrong_type: bool = False
    raises: type[BaseException] | None = None


class Session:
    """An estimator, the answers it must give until a call changes it, and what was called."""

    def __init__(self, random: Random, folder: Path) -> None:
        self.random, self.folder = random, folder
        self.rng = np.random.default_rng(random.randrange(2**32))
        self.good = good_parameters(random)
        self.spoiled: dict[str, Value] = {}
        self.estimator = ExtremeClassifier(**self.good)
        self.answers: Answers | None = None
        self.rows: Any = None
        self.log = [f"ExtremeClassifier({self.good!r})"]
        self.refusals = 0

    # Parameters -------------------------------------------------------------------------------

    def spoil(self) -> None:
        """Set a parameter to an odd or bad value; setting it is always accepted."""
        name, value = changed_parameter(self.random)
        self.spoiled[name] = value
        self.estimator.set_params(**{name: value.value})
        self.log.append(f"set_params({name}={value.name})")

    def mend(self) -> None:
        """Set all parameters back to good ones."""
        defaults = ExtremeClassifier().get_params(deep=False)
        self.estimator.set_params(**defaults | self.good)
        self.spoiled = {}
        self.log.append("set_params(good ones)")

    def judged(self, *values: Value) -> dict[str, Any]:
        """Verdict on a call with these arguments under the present parameters."""
        values = (*values, *self.spoiled.values())
        return {
            "verdict": max((value.verdict for value in values), default=GOOD),
            "wrong_type": any(value.wrong_type for value in values),
        }

    @property
    def asks_gently(self) -> dict[str, Any]:
        """As `judged` for calls on which spoiled parameters may have no effect."""
        verdict = ODD if self.spoiled else GOOD
        return {"verdict": verdict, "wrong_type": self.judged()["wrong_type"]}

    # Calls ------------------------------------------------------------------------------------

    def make(self, call: Call) -> Any:
        """Make a call and check all that must hold; returns None if it is refused."""
        self.log.append(call.name)
        inputs, surroundings = _frozen(call.inputs), _surroundings()
        result, error = None, None
        try:
            with numerics_checked():
                result = call.function()
        except (ExtremaxError, NotFittedError, OSError, MemoryError, TypeError, Stopped) as caught:
            error = caught
            self._judge_error(call, caught)
        if error is None and call.verdict == BAD:
            raise Failed("silently_wrong", f"accepted, answers {result!r:.300}")
        if error is None and call.raises is not None:
            raise Failed("silently_wrong", f"{call.raises.__name__} got lost")
        if _frozen(call.inputs) != inputs:
            raise Failed("silently_wrong", "the arguments have been changed")
        if _surroundings() != surroundings:
            raise Failed("silently_wrong", f"{surroundings} became {_surroundings()}")
        self._check_estimator(call, error)
        return result

    def _judge_error(self, call: Call, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, Stopped):
            if call.raises is None:
                raise error
            return
        self.refusals += 1
        self.log[-1] += f" -> {type(error).__name__}"
        if call.verdict == GOOD and not isinstance(error, NotFittedError):
            raise Failed("traceback", f"a valid call is refused: {text}") from error
        if isinstance(error, NotFittedError) and self.answers is not None:
            raise Failed("silently_wrong", text) from error
        if isinstance(error, TypeError) and not call.wrong_type:
            raise Failed("traceback", text) from error
        if isinstance(error, MemoryError) and not self.spoiled:
            raise Failed("traceback", text) from error
        if not str(error).strip():
            raise Failed("traceback", f"{type(error).__name__} without a message") from error

    def _check_estimator(self, call: Call, error: Exception | None) -> None:
        after = None
        if self.estimator.__sklearn_is_fitted__():
            if error is None and call.changes:
                self.rows = probe_rows(self.estimator)
            after = self.ask()
        failed_halfway = isinstance(error, DivergedError) and call.name.startswith("partial_fit")
        if failed_halfway and after is not None:
            # The one call that may fail halfway: a copy of the head for each batch would cost more
            # than the batch. docs/promises.md says so.
            self.rows = probe_rows(self.estimator)
            self.answers = self.ask()
        elif error is not None or not call.changes:
            problem = differences(self.answers, after)
            if problem:
                state = "refused" if error is not None else "made"
                raise Failed("silently_wrong", f"{state}, and the model changed: {problem}")
        elif after is None:
            raise Failed("silently_wrong", "accepted, but the model is not fitted")
        else:
            self.answers = after
            problem = defects(after)
            if problem:
                raise Failed("silently_wrong", problem)

    def ask(self, other: ExtremeClassifier | None = None) -> Answers:
        with numerics_checked():
            return ask(self.estimator if other is None else other, self.rows)

    def check_same(self, other: ExtremeClassifier, what: str) -> None:
        """Another estimator must give the answers of this one."""
        self.compare(self.ask(other) if other.__sklearn_is_fitted__() else None, what)

    def compare(self, answers: Answers | None, what: str) -> None:
        problem = differences(self.answers, answers)
        if problem:
            raise Failed("silently_wrong", f"{what}: {problem}")

    def unfitted(self) -> ExtremeClassifier:
        return clone(self.estimator)

    def describe(self, error: BaseException) -> str:
        calls = "\n".join(f"  {i}. {line}" for i, line in enumerate(self.log))
        return f"{calls}\n{_shown(error)}"


@contextmanager
def numerics_checked() -> Iterator[None]:
    """Ignore warnings but those of numpy about overflow, division by zero or invalid values, which
    say that something has been computed wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            yield
    except RuntimeWarning as warning:
        raise Failed("silently_wrong", f"RuntimeWarning: {warning}") from warning


def _shown(error: BaseException) -> str:
    if isinstance(error, Failed):
        cause = error.__cause__
        told = "".join(traceback.format_exception(cause)[-8:]) if cause else ""
        return f"{error}\n{told}"
    return "".join(traceback.format_exception(error))


def _surroundings() -> tuple[Any, ...]:
    """What belongs to the whole process and is none of an estimator's business."""
    return (
        ("threads of torch", torch.get_num_threads()),
        ("torch's generator", hash(torch.get_rng_state().numpy().tobytes())),
        ("numpy's generator", hash(repr(np.random.get_state()))),  # noqa: NPY002
        ("handling of overflow", np.geterr()["over"]),
    )


def _frozen(value: Any) -> Any:
    """The content of an argument, to compare later."""
    if sparse.issparse(value):
        names = ("data", "indices", "indptr", "row", "col")
        return tuple(_frozen(getattr(value, name, None)) for name in names)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, torch.Tensor):
        return str(value.dtype), _frozen(value.detach().float().numpy())
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(_frozen(v) for v in value)
    # Addresses of objects do not count, nor the state of generators.
    return re.sub(r"0x[0-9a-f]+", "", repr(value)[:1000])
