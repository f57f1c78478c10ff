"""Progress of a comparison. The base class shows nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from typing import Any, NamedTuple

#: The kind of a cell's last run; those before it are rounds of tuning.
FINAL = "final"


class Runs(NamedTuple):
    """Runs of one kind that every cell has.

    seconds:  training time of each.
    """

    n: int
    seconds: float


class Watch:
    """Keeps track of the progress of a comparison; subclasses display it.

    Runs take longer than they train: they evaluate held-out rows, and before a cell's first run its
    kernels are compiled and its noise is fitted. Finished runs tell how much longer.

    total, done:  seconds of training.
    """

    def start(self, n_cells: int, runs: Mapping[str, Runs]) -> None:
        """Begin a comparison of cells that have these runs each, by kind."""
        self._runs, self._cells_left = runs, n_cells
        self.total = n_cells * self._seconds_per_cell
        self.done = 0.0
        self._left: Counter[str] = Counter()
        self._waited: dict[str, list[float]] = {}
        self._preparations: list[float] = []

    @property
    def _seconds_per_cell(self) -> float:
        return sum(kind.n * kind.seconds for kind in self._runs.values())

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Wrap all runs of a cell; those that it leaves out count as done."""
        end = self.done + self._seconds_per_cell
        self._cells_left -= 1
        self._left = Counter({kind: runs.n for kind, runs in self._runs.items()})
        self._preparation = 0.0
        yield
        self._left.clear()
        if self._preparation:
            self._preparations.append(self._preparation)
        self.advance(end - self.done)

    @contextmanager
    def preparing(self, what: str) -> Iterator[None]:
        """Wrap what a cell needs before a run: compiled kernels, a fitted noise."""
        self.prepares(what)
        start = time.perf_counter()
        yield
        self._preparation += time.perf_counter() - start

    @contextmanager
    def running(self, what: str, kind: str, seconds: float) -> Iterator[None]:
        """Wrap a run that trains for ``seconds``."""
        self.began(what, seconds)
        start = time.perf_counter()
        yield
        self._waited.setdefault(kind, []).append(time.perf_counter() - start)
        self.skipped(kind, seconds)

    def skipped(self, kind: str, seconds: float) -> None:
        """A run is over, whether in this process or an earlier one."""
        self._left[kind] -= 1
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Count seconds of training as done."""
        self.done += seconds

    @property
    def left(self) -> float:
        """Estimated wall time until the end, in seconds; at least that until `is_sure`."""
        waiting = {kind: self._wait(kind) for kind in self._runs}
        per_cell = sum(self._runs[kind].n * waiting[kind] for kind in waiting)
        per_cell += fmean(self._preparations) if self._preparations else 0.0
        of_this = sum(max(0, n) * waiting[kind] for kind, n in self._left.items())
        return self._cells_left * per_cell + of_this

    @property
    def is_sure(self) -> bool:
        """Whether every kind of run has been timed."""
        return FINAL in self._waited

    def _wait(self, kind: str) -> float:
        """Wall time of a run: the mean of those of its kind or, if none is finished, what the
        longest of the others, and how their time grew, suggest."""
        if kind in self._waited:
            return fmean(self._waited[kind])
        seconds = self._runs[kind].seconds
        known = sorted((self._runs[other].seconds, fmean(w)) for other, w in self._waited.items())
        if not known:
            return seconds
        slope = 1.0
        if len(known) > 1:
            (x, y), (x_longest, y_longest) = known[-2:]
            slope = max(1.0, (y_longest - y) / (x_longest - x)) if x_longest > x else 1.0
        return max(seconds, known[-1][1] + slope * (seconds - known[-1][0]))

    def prepares(self, what: str) -> None:
        """What ``what`` describes begins, before a run."""

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
