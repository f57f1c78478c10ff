"""Messages of the commands, written to stderr; stdout is reserved for data."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from extremax.kernels.compilation import announced


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


def on_terminal() -> bool:
    """Whether messages go to a terminal; stderr is None if it was closed."""
    return sys.stderr is not None and sys.stderr.isatty()


def check_stdout() -> None:
    """Raise an error if results cannot be printed because standard output was closed."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", "standard output")


def print_result(result: str | dict[str, Any]) -> None:
    """Print text, or a dictionary as JSON, to standard output."""
    check_stdout()
    typer.echo(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))


@contextmanager
def counting(what: str, hidden: bool) -> Iterator[Any]:
    """Show the number of rows done on a live line, if stderr is a terminal.

    with counting("predicted", hidden=False) as count:
        count(n_rows)
    """
    if hidden:
        yield lambda rows: None
        return
    with announced(say):
        yield from _counting(what)


def _counting(what: str) -> Iterator[Any]:
    if not on_terminal():
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


_PROBABILITIES = {
    "exact": "softmax over all classes, as trained",
    "bias-corrected": "softmax over all classes; the bias of drawing some of them is removed",
}


def about_probabilities(kind: str, calibrated: bool) -> str:
    """What the probabilities of a model are, in words.

    kind:        `Objective.probabilities`.
    calibrated:  whether held-out rows said how sure to be.
    """
    text = _PROBABILITIES.get(kind, kind.removeprefix("approximate: "))
    return f"{text}; fitted to held-out rows" if calibrated else text


def figures(record: dict[str, Any], digits: int = 1) -> str:
    """Format log-likelihood and accuracy, the latter in percent with this many decimals."""
    value = record["log_likelihood"]
    likelihood = "unknown" if value is None else f"{value:.3f}"
    return f"log-likelihood {likelihood}, accuracy {record['accuracy']:.{digits}%}"
