"""Commands whose standard output is closed, full, or read by nobody."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.campaign.crash_children import USER_ERROR, run_in_child
from tests.campaign.crash_scenarios import Fixtures, command
from tests.campaign.trial import Result

_STREAMS = ("closed", "full", "broken pipe", "no stderr", "neither")
_PIPE_CLOSED = 141


def run_stream(number: int, fixtures: Fixtures, place: Path) -> Result:
    """The number goes through streams, then commands."""
    rows, model = fixtures.data, fixtures.model
    commands: tuple[tuple[object, ...], ...] = (
        ("predict", model, fixtures.rows, "--quiet"),
        ("predict", model, fixtures.rows, "-o", place / "out.tsv"),
        ("evaluate", model, *rows),
        ("evaluate", model, *rows, "--json"),
        ("info", model),
        ("info", model, "--json"),
        ("diagnose", model, *rows, "--rows", 40, "--json"),
        ("plan", *rows),
        ("train", *rows, "-o", place / "m", "--epochs", 1, "--threads", 1),
        ("info", place / "nothing"),
        ("--help",),
        ("--version",),
    )
    kind = _STREAMS[number % len(_STREAMS)]
    arguments = commands[number // len(_STREAMS) % len(commands)]

    def task() -> None:
        _break(kind)
        command(*arguments)

    ended = run_in_child(task, place / "output")
    where = f"{' '.join(map(str, arguments))}, standard output {kind}: {ended}"
    if ended.status is None:
        return Result("hang", where)
    # Without a reader --help ends silently with status 1, as the library of commands has it.
    if kind == "broken pipe" and ended.status == 1 and not ended.err:
        return Result("refused")
    if ended.status not in (0, USER_ERROR, _PIPE_CLOSED):
        return Result("traceback", where)
    prints = arguments[0] != "train" and "-o" not in arguments
    if kind == "full" and prints and not ended.status:
        return Result("silently_wrong", f"nothing could be written, but no error; {where}")
    if ended.status == USER_ERROR and kind != "neither" and "no stderr" not in kind:
        lines = ended.err.splitlines()
        if len(lines) != 1 or not lines[0].startswith("extremax: "):
            return Result("traceback", where)
    return Result("refused" if ended.status else "accepted")


def _break(kind: str) -> None:
    """Make the standard streams of this process what an interpreter would find at its start."""
    if kind == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif kind == "broken pipe":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    if kind in ("closed", "neither"):
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]
    if kind in ("no stderr", "neither"):
        os.close(2)
        sys.stderr = None  # type: ignore[assignment]
