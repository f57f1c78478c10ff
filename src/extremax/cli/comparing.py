"""Display of the progress of a comparison: a bar on a terminal, lines in a log file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extremax.cli.console import figures, say
from extremax.comparison import Watch
from extremax.comparison.watch import Runs
from extremax.report.formatting import duration


class Log(Watch):
    """Prints one line per round of tuning, per final run, and per result."""

    _current = ""

    def prepares(self, what: str) -> None:
        self._print(what)

    def began(self, what: str, seconds: float) -> None:
        if what != self._current:
            self._current = what
            self._print(f"{what} ({duration(seconds)} each); {self.estimate} left")

    @property
    def estimate(self) -> str:
        """The time left, in words."""
        return f"{'about' if self.is_sure else 'at least'} {duration(self.left)}"

    def result(self, name: str, record: dict[str, Any]) -> None:
        self._print(f"{name}: {summary(record)}")

    def left_out(self, name: str, reason: str) -> None:
        self._print(f"left out {name}: {reason}")

    def failed(self, name: str, reason: str) -> None:
        self._print(f"failed: {name}: {reason}")

    def _print(self, text: str) -> None:
        say(text)


class Bar(Log):
    """Shows the current run and the remaining time below the results so far."""

    def start(self, n_cells: int, runs: Mapping[str, Runs]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        super().start(n_cells, runs)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[left]} left"),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=self.total, left=self.estimate)
        self._bar.start()

    def prepares(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def began(self, what: str, seconds: float) -> None:
        self._bar.update(
            self._task, description=f"{what} ({duration(seconds)})", left=self.estimate
        )

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._bar.update(self._task, completed=self.done, left=self.estimate)

    def stop(self) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()

    def _print(self, text: str) -> None:
        # A file name may contain text such as [bold], which is not markup.
        self._bar.console.print(text, markup=False, highlight=False)


def summary(record: dict[str, Any]) -> str:
    """Format the results of a final run."""
    throughput = record["examples_per_s"]
    rate = f", {throughput:,.0f} examples/s" if throughput else ""
    setting = f"learning rate {record['learning_rate']:g}, λ {record['regularization']:g}"
    if record["weight_decay"]:
        setting += f", weight decay {record['weight_decay']:g}"
    kept = ", start kept" if record["start_kept"] else ""
    return f"{figures(record['test'], 2)}{rate} ({setting}){kept}"
