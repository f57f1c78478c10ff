"""Errors of the user become one line and an exit status; other errors keep their traceback."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from extremax.cli.console import print_error
from extremax.errors import ExtremaxError

USER_ERROR = 2
_PIPE_CLOSED = 128 + 13
# Cleaning up takes less; if something else still runs then, the signal got lost.
_AGAIN_SECONDS = 1.0
# What torch, threads and the loader of shared libraries say when there is no memory left.
_OUT_OF_MEMORY = ("can't allocate memory", "can't start new thread", "failed to map segment")

# What typer raises about the command line itself; it has no name for it.
_UsageError: Any = typer.BadParameter.__base__

# What the library says about its parameters, where the command line has other words for it.
_PHRASES = {
    "encoder=Encoder(n_components=256)": "--components 256",
    "use search='exact'": "omit --beam",
    "pass one of format=": "pass --format with one of ",
}
# Parameters of the library whose option has another name.
_RENAMED = {"random_state": "--seed", "n_jobs": "--threads", "max_test_rows": "--test-rows"}
# Noises have a parameter of this name, too.
_AMBIGUOUS = {"seed"}
# A parameter may have a value, as in keep_labels='all'; no part of a path is one. Where its name is
# a plain word, it has a value, or what follows is only said of parameters.
_PARAMETER = r"(?<![\w/.'\"-]){name}(?:=(?:True|'([^']*)'|(\w*))|{otherwise})"
_COMPOUND, _WORD = r"(?![\w/]|\.\w)", r"(?= (?:must|needs|applies) )"


class Stopped(KeyboardInterrupt):
    """The process received a signal to stop."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text or f"stopped by {signal.Signals(number).name}")
        self.number = number


class Commands(TyperGroup):
    """The group of commands, with error handling."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        # --help and --version print while arguments are parsed.
        with _explaining({}):
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        flags: dict[str, str] = {}
        with _explaining(flags, ctx.params.get("traceback")):
            try:
                return super().invoke(ctx)
            finally:
                flags |= self.flags(ctx.invoked_subcommand)

    def flags(self, command: str | None) -> dict[str, str]:
        """The flag of every option of a command, by the name that the library has for it."""
        return {
            option.name: max((*option.opts, *option.secondary_opts), key=len)
            for option in (self.commands[command].params if command else ())
            if option.name and option.param_type_name == "option"
        }


@contextmanager
def _explaining(flags: Mapping[str, str], traceback: bool | None = False) -> Iterator[None]:
    """Print errors of the user as a line and exit.

    flags:      see `Commands.flags`.
    traceback:  whether to raise them instead.
    """
    received: list[int] = []
    try:
        with _raising_on_signals(received):
            yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, _UsageError) and type(error).__name__ != "NoArgsIsHelpError":
            # Without a frame, so that a long path stays in one piece.
            usage: Any = error
            usage.show()
            raise typer.Exit(usage.exit_code) from error
        # A library that was interrupted inside compiled code may raise an error of its own.
        cause = Stopped(received[0]) if received and isinstance(error, Exception) else error
        explanation = explain(cause, flags)
        if explanation is None or traceback:
            raise
        message, status = explanation
        if message:
            print_error(message)
        raise typer.Exit(status) from error


def explain(error: BaseException, flags: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Return the line to show and the exit status, or None for an error in the package itself.

    flags:  see `Commands.flags`.
    """
    if isinstance(error, KeyboardInterrupt):
        # Checked before ExtremaxError, because an interrupted training is both.
        return str(error) or "interrupted", 128 + getattr(error, "number", signal.SIGINT)
    if isinstance(error, BrokenPipeError):
        # The reader of the output, such as `head`, has closed the pipe.
        _discard_stdout()
        return "", _PIPE_CLOSED
    if isinstance(error, ExtremaxError):
        return _with_flags(str(error), flags or {}), USER_ERROR
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return (f"{error.filename}: {reason}" if error.filename else reason), USER_ERROR
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY):
        detail = f" ({error})" if str(error) else ""
        advice = "run `extremax plan` to see what training needs"
        return f"not enough memory{detail}; {advice}", USER_ERROR
    return None


def _with_flags(message: str, flags: Mapping[str, str]) -> str:
    """The message of the library with flags in place of its Python parameters."""
    for phrase, words in _PHRASES.items():
        message = message.replace(phrase, words)
    message = re.sub(r"^cells: ", "--cells: ", message)
    for name, flag in {**flags, **_RENAMED}.items():
        is_named = re.search(rf"{flag}(?![\w-])", message)  # by the command line itself
        if not is_named and name not in _AMBIGUOUS:
            otherwise = _COMPOUND if "_" in name else _WORD
            pattern = _PARAMETER.format(name=name, otherwise=otherwise)
            message = re.sub(pattern, partial(_with_value, flag), message)
    return message


def _with_value(flag: str, found: re.Match[str]) -> str:
    value = found[1] or found[2]
    return f"{flag} {value}" if value else flag


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that the flush at exit does not fail."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        # A stdout without a file descriptor, as in tests, is not flushed at exit.
        return


@contextmanager
def _raising_on_signals(received: list[int]) -> Iterator[None]:
    """Raise `Stopped` on SIGTERM and Ctrl-C, so that temporary files are removed.

    received:  gets the number of each signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: Any) -> None:
        received.append(number)
        again(number, None)

    def again(_: int, __: Any) -> None:
        # Python ignores exceptions in destructors and some callbacks, so one is not always enough.
        if timer is not None:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        number = received[0]
        raise Stopped(number, "interrupted" if number == signal.SIGINT else "")

    timer = getattr(signal, "SIGALRM", None)  # None on Windows
    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop} | ({timer: again} if timer else {})
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        if timer is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
