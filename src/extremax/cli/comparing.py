"""Progress of a comparison for a person: a bar on a terminal, lines in a log file."""

from __future__ import annotations

import sys
from typing import Any

from extremax.cli.console import duration
from extremax.comparison.watch import Watch


class Log(Watch):
    """A line for each round of tuning and for each final run, and one for what came of it."""

    _said = ""

    def began(self, what: str, seconds: float) -> None:
        if what != self._said:
            self._said = what
            self._say(f"{what} ({duration(seconds)} each); about {duration(self.left)} left")

    def result(self, name: str, record: dict[str, Any]) -> None:
        self._say(f"{name}: {figures(record)}")

    def left_out(self, name: str, reason: str) -> None:
        self._say(f"left out {name}: {reason}")

    def failed(self, name: str, reason: str) -> None:
        self._say(f"failed: {name}: {reason}")

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(Log):
    """What runs now and when all will be done, under the results so far."""

    def start(self, seconds: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        super().start(seconds)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[left]} left"),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=seconds, left=duration(seconds))
        self._bar.start()

    def began(self, what: str, seconds: float) -> None:
        self._bar.update(
            self._task, description=f"{what} ({duration(seconds)})", left=duration(self.left)
        )

    def skipped(self, seconds: float) -> None:
        super().skipped(seconds)
        self._bar.update(self._task, completed=self.done, left=duration(self.left))

    def stop(self) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()

    def _say(self, text: str) -> None:
        # A name such as [bold] is no markup.
        self._bar.console.print(text, markup=False, highlight=False)


def figures(record: dict[str, Any]) -> str:
    """What came of a final run, in words."""
    test = record["test"]
    seen = record["examples_per_s"]
    rate = f", {seen:,.0f} examples/s" if seen else ""
    likelihood = test["log_likelihood"]
    said = "no test row of a known class" if likelihood is None else f"{likelihood:.3f}"
    return (
        f"log-likelihood {said}, accuracy {test['accuracy']:.2%}{rate} "
        f"(learning rate {record['learning_rate']:g}, λ {record['regularization']:g})"
    )
