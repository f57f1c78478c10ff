"""Forked children: a task in a copy of this warm process, its output and how it ended.

Starting an interpreter with torch takes seconds, a fork milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from extremax.errors import ExtremaxError

Task = Callable[[], object]

USER_ERROR = 2
UNPLANNED = 70
NOT_FLUSHED = 120
_POLL_SECONDS = 0.002


class Ended(NamedTuple):
    """How a child ended.

    status:  its exit status, minus the number of the signal that ended it, or None if it hung.
    """

    status: int | None
    out: str
    err: str


class Child:
    """A forked process that runs a task.

    folder:  where its output and its temporary files go; emptied by `wait`.
    """

    def __init__(self, task: Task, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.started = folder, time.monotonic()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if not self.pid:
            status = UNPLANNED
            try:
                self._redirect()
                status = _status(task)
                flushed = _flushed()
                status = status or flushed
            finally:
                os._exit(status)

    def _redirect(self) -> None:
        tempfile.tempdir = str(self.folder)
        for number, name in ((1, "out"), (2, "err")):
            handle = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> Ended:
        """Wait for the end; a child that takes longer is killed."""
        until = time.monotonic() + seconds
        while True:
            pid, state = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return self._ended(os.waitstatus_to_exitcode(state))
            if time.monotonic() > until:
                self.send(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return self._ended(None)
            time.sleep(_POLL_SECONDS)

    def _ended(self, status: int | None) -> Ended:
        texts = [self.folder / name for name in ("out", "err")]
        # A child that is killed at once has not opened them yet.
        out, err = (p.read_text(errors="replace") if p.exists() else "" for p in texts)
        for path in texts:
            path.unlink(missing_ok=True)
        return Ended(status, out, err)


def _status(task: Task) -> int:
    """Run a task; refusals are exit status 2, as on the command line, other exceptions 70."""
    try:
        task()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except (ExtremaxError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return USER_ERROR
    except BaseException:
        traceback.print_exc()
        return UNPLANNED
    return 0


def _flushed() -> int:
    """Flush the standard streams as an interpreter does at its end, which may fail."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return NOT_FLUSHED
    return 0


def run_in_child(task: Task, folder: Path, seconds: float = 30.0) -> Ended:
    """Run a task in a forked child and wait for its end."""
    return Child(task, folder).wait(seconds)
