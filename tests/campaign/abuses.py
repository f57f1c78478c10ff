"""Sequences of calls on an estimator, valid and invalid ones in any order.

A call that is refused must leave the estimator as it was; one that is accepted must leave
a model whose answers are probabilities.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.campaign.abuse_calls import (
    attributes,
    evaluate,
    fit,
    partial_fit,
    predict,
    predict_topk,
    spoil,
)
from tests.campaign.abuse_copies import copies, fork, save_and_load, save_badly, threads
from tests.campaign.abuse_session import Failed, Session
from tests.campaign.trial import Result

NAME = "abuses"
FULL = 4_000
TIMEOUT = 300.0

#: Calls and how often they are made.
_CALLS: tuple[tuple[Callable[[Session], None], int], ...] = (
    (fit, 6),
    (partial_fit, 5),
    (predict, 3),
    (predict_topk, 3),
    (evaluate, 3),
    (attributes, 1),
    (save_and_load, 2),
    (save_badly, 1),
    (copies, 2),
    (fork, 1),
    (threads, 1),
    (spoil, 4),
    (Session.mend, 3),
)
_FEWEST_CALLS, _MOST_CALLS = 3, 10
#: What an absurd argument may reserve before the system refuses it.
_SPARE_BYTES = 4 << 30


def prepare(folder: Path) -> None:
    """Limit memory, and go where a relative path leads to nobody else's files."""
    os.chdir(folder)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run(seed: int, folder: Path) -> Result:
    """Make three to ten calls on a new estimator."""
    random = Random(f"abuses {seed}")
    place = folder / "session"
    place.mkdir()
    session = Session(random, place)
    functions, shares = zip(*_CALLS, strict=True)
    try:
        if random.random() < 0.7:
            fit(session)
        for _ in range(random.randint(_FEWEST_CALLS, _MOST_CALLS)):
            random.choices(functions, shares)[0](session)
    except Failed as error:
        return Result(error.outcome, session.describe(error))
    except Exception as error:
        return Result("traceback", session.describe(error))
    finally:
        shutil.rmtree(place)
    return Result("refused" if session.refusals else "accepted")
