"""Progress of training on a terminal or in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.training.state import State


class Progress:
    """Silent at verbose=0; otherwise a bar with rate, time left and held-out figures.

    Where standard error is not a terminal, one line per epoch replaces the bar.
    """

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose
        self._bar: Any = None

    def note(self, text: str) -> None:
        """Print a line about a phase, such as fitting the noise."""
        if self.verbose:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def shown(self, epochs: int, rows: int, state: State) -> Iterator[None]:
        """Show the bar during a run, and remove it however the run ends."""
        self.epochs, self._held_out, self._held_out_short = epochs, "", ""
        if self.verbose and sys.stderr.isatty():
            self._start(epochs, rows, state)
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _start(self, epochs: int, rows: int, state: State) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
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
            epoch=state.epoch + 1, epochs=epochs, rate="", figures="",
        )  # fmt: skip
        self._bar.start()

    def advance(self, rows: int, loss: float) -> None:
        if self._bar is None:
            return
        speed = self._bar.tasks[self._task].speed
        rate = f"{speed:,.0f}/s" if speed else ""
        figures = f"loss {loss:.3f}{self._held_out_short}"
        self._bar.update(self._task, advance=rows, rate=rate, figures=figures)

    def epoch(self, record: dict[str, Any]) -> None:
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
            next_epoch = min(record["epoch"] + 1, self.epochs)
            self._bar.update(self._task, epoch=next_epoch, figures=figures)
        elif self.verbose:
            self.note(
                f"epoch {record['epoch']}/{self.epochs} | {record['seconds']:.1f} s | "
                f"surrogate loss {record['surrogate_loss']:.4f}{self._held_out}"
            )
