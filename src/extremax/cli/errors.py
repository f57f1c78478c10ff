"""What a user can cause becomes one line and an exit status; anything else is a traceback."""

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

from extremax.cli.console import complain
from extremax.errors import ExtremaxError

MISUSE = 2
_PIPE_CLOSED = 128 + 13


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text or f"stopped by {signal.Signals(number).name}")
        self.number = number


class Commands(TyperGroup):
    """The commands, and what happens to their errors."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _terminable():
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            answer = explain(error)
            if answer is None or ctx.params.get("traceback"):
                raise
            message, status = answer
            if message:
                complain(message)
            raise typer.Exit(status) from error


def explain(error: BaseException) -> tuple[str, int] | None:
    """The line to show and the exit status, or None for an error that is ours."""
    if isinstance(error, KeyboardInterrupt):
        # Before ExtremaxError, as an interrupted training is both.
        return str(error) or "interrupted", 128 + getattr(error, "number", signal.SIGINT)
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough, as `head` has.
        _forget_stdout()
        return "", _PIPE_CLOSED
    if isinstance(error, ExtremaxError | ValueError):
        return str(error), MISUSE
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return (f"{error.filename}: {reason}" if error.filename else reason), MISUSE
    if isinstance(error, MemoryError) or _is_torch_out_of_memory(error):
        detail = f" ({error})" if str(error) else ""
        return f"not enough memory{detail}; `extremax plan` says what training takes", MISUSE
    return None


def _is_torch_out_of_memory(error: BaseException) -> bool:
    return type(error) is RuntimeError and "can't allocate memory" in str(error)


def _forget_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of complaining."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        # A stdout without a descriptor, as in tests, has no last flush to fail.
        return


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that files written aside are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: Any) -> None:
        raise Stopped(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
