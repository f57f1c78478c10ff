"""Messages of the commands, written to stderr; stdout is reserved for data."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer


def say(text: str) -> None:
    """Print a message."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    """Print a warning in yellow."""
    typer.secho(text, err=True, fg="yellow", color=color())


def print_error(text: str) -> None:
    """Print an error as one red line."""
    typer.secho(f"extremax: {' '.join(text.split())}", err=True, fg="red", color=color())


def color() -> bool | None:
    """Return False if NO_COLOR is set (no-color.org), else None: colors only on a terminal."""
    return False if os.environ.get("NO_COLOR") else None


@contextmanager
def counting(what: str, hidden: bool) -> Iterator[Any]:
    """Show the number of rows done on a live line, if stderr is a terminal.

    with counting("predicted", hidden=False) as count:
        count(n_rows)
    """
    if hidden or not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", f"{what} …")
    # By default rich also redirects stdout, which would mix the data with the spinner.
    with Live(
        spinner,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield lambda rows: spinner.update(text=f"{what} {rows:,} rows")


def table(lines: list[tuple[str, str]]) -> str:
    """Format (name, value) pairs in two columns."""
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def size(n_bytes: float) -> str:
    """Format bytes in decimal units: 1_234_567 as ``1.2 MB``."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = 0
    while n_bytes >= 999.5 and power < len(units) - 1:
        n_bytes /= 1000
        power += 1
    digits = 0 if power == 0 or n_bytes >= 99.5 else 1
    return f"{n_bytes:.{digits}f} {units[power]}"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours / 24:.1f} days"
