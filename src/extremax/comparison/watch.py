"""Progress of a comparison. The base class shows nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Watch:
    """Keeps track of the progress of a comparison; subclasses display it.

    Progress is counted in seconds of training. Evaluations take extra time, and the ratio of wall
    time to training time is estimated from the finished runs.
    """

    def start(self, seconds: float) -> None:
        """Begin a comparison with this total training time."""
        self.total, self.done = seconds, 0.0
        self._trained = self._waited = 0.0

    @contextmanager
    def running(self, what: str, seconds: float) -> Iterator[None]:
        """Wrap a run that trains for ``seconds``."""
        self.began(what, seconds)
        start = time.perf_counter()
        yield
        self._trained += seconds
        self._waited += time.perf_counter() - start
        self.skipped(seconds)

    @property
    def left(self) -> float:
        """Estimated wall time until the end, in seconds."""
        ratio = self._waited / self._trained if self._trained else 1.0
        return max(0.0, self.total - self.done) * max(1.0, ratio)

    def skipped(self, seconds: float) -> None:
        """Count ``seconds`` of training as done, whether in this process or an earlier one."""
        self.done += seconds

    def began(self, what: str, seconds: float) -> None:
        """A run described by ``what`` begins."""

    def result(self, name: str, record: dict[str, Any]) -> None:
        """The final run of a cell is finished."""

    def left_out(self, name: str, reason: str) -> None:
        """A cell cannot be trained on these rows."""

    def failed(self, name: str, reason: str) -> None:
        """A cell raised an error."""

    def stop(self) -> None:
        """The comparison is over or was interrupted."""
