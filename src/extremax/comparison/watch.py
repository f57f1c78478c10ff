"""What somebody who waits for a comparison is told. This one tells nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Watch:
    """Knows how far a comparison is; a subclass shows it.

    Seconds are those of training; looking at held-out rows takes more, in a proportion that is
    learned as runs end.
    """

    def start(self, seconds: float) -> None:
        self.total, self.done = seconds, 0.0
        self._trained = self._waited = 0.0

    @contextmanager
    def running(self, what: str, seconds: float) -> Iterator[None]:
        """Around a run of so many seconds."""
        self.began(what, seconds)
        start = time.perf_counter()
        yield
        self._trained += seconds
        self._waited += time.perf_counter() - start
        self.skipped(seconds)

    @property
    def left(self) -> float:
        """Seconds that the rest will take, from how long runs took so far."""
        slower = self._waited / self._trained if self._trained else 1.0
        return max(0.0, self.total - self.done) * max(1.0, slower)

    def skipped(self, seconds: float) -> None:
        """So much of the work is done, now or by an earlier command."""
        self.done += seconds

    def began(self, what: str, seconds: float) -> None: ...

    def result(self, name: str, record: dict[str, Any]) -> None: ...

    def left_out(self, name: str, reason: str) -> None: ...

    def failed(self, name: str, reason: str) -> None: ...

    def stop(self) -> None: ...
