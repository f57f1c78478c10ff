"""Progress of training on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.training.state import State

# Seconds after which a log says again what goes on, and that a phase must have taken to leave a
# line on a terminal.
_AGAIN_AFTER, _WORTH_A_LINE = 60.0, 1.0


class Progress:
    """Silent at verbose=0; otherwise it names phases such as fitting the noise, and shows a bar
    with rate, time left and held-out figures during the epochs.

    Where standard error is not a terminal, lines replace the bar: one per phase and epoch, and one
    for every minute that says nothing else.

    with Progress(verbose=1) as progress:
        progress.phase("fitting the noise")
    """

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose
        self._bar: Any = None
        self._phase: _Phase | _LivePhase | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_phase()

    def note(self, text: str) -> None:
        """Print a line."""
        if self.verbose:
            self._end_phase()
            print(text, file=sys.stderr, flush=True)

    def phase(self, name: str) -> None:
        """Say what goes on until the next phase, line or epoch."""
        self._end_phase()
        if self.verbose:
            if not sys.stderr.isatty():
                print(name, file=sys.stderr, flush=True)
            self._phase = _LivePhase(name) if sys.stderr.isatty() else _Phase(name)

    def _end_phase(self) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None

    @contextmanager
    def shown(self, epochs: int, rows: int, state: State) -> Iterator[None]:
        """Show the bar during a run, and remove it however the run ends."""
        self._end_phase()
        self.epochs, self.rows, self._held_out, self._held_out_short = epochs, rows, "", ""
        self._epoch, self._done = state.epoch + 1, 0
        if self.verbose and sys.stderr.isatty():
            self._start(epochs, rows, state)
        elif self.verbose:
            self._phase = _Phase("evaluating the start")
        try:
            yield
        finally:
            self._end_phase()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _start(self, epochs: int, rows: int, state: State) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.fields[doing]}"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
            # The figures are short enough to leave room for the bar in 80 columns.
            expand=True,
        )
        self._task = self._bar.add_task(
            "train", total=epochs * rows, completed=state.epoch * rows,
            doing="evaluating the start", rate="", figures="",
        )  # fmt: skip
        self._bar.start()

    @property
    def _doing(self) -> str:
        """What goes on during the run."""
        of = f"epoch {self._epoch}/{self.epochs}"
        return of if self._done < self.rows else f"evaluating {of}"

    def advance(self, rows: int, loss: float) -> None:
        self._done += rows
        if self._phase is not None:
            self._phase.name = f"{self._doing}, {self._done / self.rows:.0%} of its rows"
        if self._bar is None:
            return
        speed = self._bar.tasks[self._task].speed
        rate = f"{speed:,.0f}/s" if speed else ""
        figures = f"loss {loss:.3f}{self._held_out_short}"
        self._bar.update(self._task, advance=rows, rate=rate, figures=figures, doing=self._doing)

    def epoch(self, record: dict[str, Any]) -> None:
        self._epoch, self._done = min(record["epoch"] + 1, self.epochs), 0
        if "log_likelihood" in record:
            self._held_out = (
                f" | held out: log-likelihood {record['log_likelihood']:.3f}, "
                f"accuracy {record['accuracy']:.1%}"
            )
            self._held_out_short = (
                f"  held out {record['log_likelihood']:.3f}, {record['accuracy']:.1%}"
            )
        if self._bar is not None:
            figures = f"loss {record['surrogate_loss']:.3f}{self._held_out_short}"
            self._bar.update(self._task, doing=self._doing, figures=figures)
        elif self.verbose:
            self.note(
                f"epoch {record['epoch']}/{self.epochs} | {record['seconds']:.1f} s | "
                f"surrogate loss {record['surrogate_loss']:.4f}{self._held_out}"
            )
            self._phase = _Phase(self._doing)


class _Phase:
    """A phase in a log: every minute a thread says that it goes on."""

    def __init__(self, name: str) -> None:
        self.name, self._start = name, time.perf_counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def _speak(self) -> None:
        while not self._ended.wait(_AGAIN_AFTER):
            minutes = (time.perf_counter() - self._start) / 60
            print(f"{self.name} ({minutes:.0f} min so far)", file=sys.stderr, flush=True)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class _LivePhase:
    """A phase on a terminal: a live line with the time so far, then a line if it took a second."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.name, self._start = name, time.perf_counter()
        self._line = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._line.add_task(name, total=None)
        self._line.start()

    def end(self) -> None:
        self._line.stop()
        seconds = time.perf_counter() - self._start
        if seconds >= _WORTH_A_LINE:
            print(f"{self.name}: {seconds:.0f} s", file=sys.stderr, flush=True)
