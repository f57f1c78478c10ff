"""What commands say beside their data: on stderr, in plain words."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer


def say(text: str) -> None:
    """A line for the person at the terminal."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    """A line that should not be overlooked."""
    typer.secho(text, err=True, fg="yellow", color=colour())


def complain(text: str) -> None:
    """The one line of an error."""
    typer.secho(f"extremax: {' '.join(text.split())}", err=True, fg="red", color=colour())


def colour() -> bool | None:
    """Colours on a terminal, unless it was asked to have none (no-color.org)."""
    return False if os.environ.get("NO_COLOR") else None


@contextmanager
def counting(what: str, hidden: bool) -> Iterator[Any]:
    """``with counting("predicted") as count: count(n_rows)``: a live line on a terminal."""
    if hidden or not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", f"{what} …")
    # Rich would take stdout over, too, and print the data beside the spinner.
    with Live(
        spinner,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield lambda rows: spinner.update(text=f"{what} {rows:,} rows")


def table(lines: list[tuple[str, str]]) -> str:
    """Names and what is known of them, in two columns."""
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def size(n_bytes: float) -> str:
    """1_234_567 as ``1.2 MB``: decimal units, as disks and clouds are sold."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = 0
    while n_bytes >= 999.5 and power < len(units) - 1:
        n_bytes /= 1000
        power += 1
    digits = 0 if power == 0 or n_bytes >= 99.5 else 1
    return f"{n_bytes:.{digits}f} {units[power]}"


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours / 24:.1f} days"
