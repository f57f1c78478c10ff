"""Errors of the user become one line and an exit status; other errors keep their traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from extremax.cli.console import print_error
from extremax.errors import ExtremaxError

USER_ERROR = 2
_PIPE_CLOSED = 128 + 13

# What the library calls its parameters, and how the command line calls them.
_FLAGS = {
    "encoder=Encoder(n_components=256)": "--components 256",
    "use search='exact'": "omit --beam",
    "a learning_rate that is too large": "a --learning-rate that is too large",
}


class Stopped(KeyboardInterrupt):
    """The process received a signal to stop."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text or f"stopped by {signal.Signals(number).name}")
        self.number = number


class Commands(TyperGroup):
    """The group of commands, with error handling."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _raising_on_sigterm():
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            explanation = explain(error)
            if explanation is None or ctx.params.get("traceback"):
                raise
            message, status = explanation
            if message:
                print_error(message)
            raise typer.Exit(status) from error


def explain(error: BaseException) -> tuple[str, int] | None:
    """Return the line to show and the exit status, or None for an error in the package itself."""
    if isinstance(error, KeyboardInterrupt):
        # Checked before ExtremaxError, because an interrupted training is both.
        return str(error) or "interrupted", 128 + getattr(error, "number", signal.SIGINT)
    if isinstance(error, BrokenPipeError):
        # The reader of the output, such as `head`, has closed the pipe.
        _discard_stdout()
        return "", _PIPE_CLOSED
    if isinstance(error, ExtremaxError | ValueError):
        return _with_flags(str(error)), USER_ERROR
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return (f"{error.filename}: {reason}" if error.filename else reason), USER_ERROR
    if isinstance(error, MemoryError) or _is_torch_out_of_memory(error):
        detail = f" ({error})" if str(error) else ""
        return (
            f"not enough memory{detail}; run `extremax plan` to see what training needs",
            USER_ERROR,
        )
    return None


def _with_flags(message: str) -> str:
    """The message of the library with flags in place of its Python parameters."""
    for parameter, flag in _FLAGS.items():
        message = message.replace(parameter, flag)
    return message


def _is_torch_out_of_memory(error: BaseException) -> bool:
    return type(error) is RuntimeError and "can't allocate memory" in str(error)


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that the flush at exit does not fail."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        # A stdout without a file descriptor, as in tests, is not flushed at exit.
        return


@contextmanager
def _raising_on_sigterm() -> Iterator[None]:
    """Raise `Stopped` on SIGTERM, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: Any) -> None:
        raise Stopped(number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
