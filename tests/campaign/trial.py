"""What a trial is, how it can end, and the parts of the campaign."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, cast

#: Outcomes that must not occur. The pool assigns "hang" and "crash", trials report the others.
BAD = ("traceback", "hang", "crash", "silently_wrong", "lost")

PARTS = ("files", "folders", "crash", "disks", "abuses", "low_memory")


class Result(NamedTuple):
    """How a trial ended.

    ``outcome`` is "accepted", "refused", "traceback" (an unplanned exception), "silently_wrong"
    (accepted with other values than the true ones) or "lost" (a result that was there before is
    gone). ``crash_points`` are the pairs of operation and scenario at which the trial stopped a
    process, ``kills`` counts those it stopped at an arbitrary moment.
    """

    outcome: str
    detail: str = ""
    crash_points: frozenset[tuple[str, str]] = frozenset()
    kills: int = 0


class Part(Protocol):
    """A module of trials.

    ``FULL`` is the number of trials at scale 1, ``TIMEOUT`` the seconds a trial may take.
    `prepare` runs once in each worker process and builds what trials share in ``folder``; `run`
    is one trial, depends on the seed alone and leaves ``folder`` as it was.
    """

    NAME: str
    FULL: int
    TIMEOUT: float

    def prepare(self, folder: Path) -> None: ...

    def run(self, seed: int, folder: Path) -> Result: ...


def load_part(name: str) -> Part:
    """Import a part of the campaign."""
    return cast(Part, import_module(f"tests.campaign.{name}"))
