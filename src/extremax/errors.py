"""Exceptions for mistakes a user can correct. Messages say what happened, where, and what to do."""

from __future__ import annotations

from pathlib import Path


class ExtremaxError(Exception):
    """Base class of the errors this package raises on purpose.

    The command line shows their message as one line. Any other exception, a plain `ValueError`
    included, is an error of the package itself and keeps its traceback.
    """


class ArgumentError(ExtremaxError, ValueError):
    """An invalid argument. The message names it, its value and what is accepted."""


class DataError(ExtremaxError, ValueError):
    """Malformed input. The message starts with ``file:line:column`` as far as they are known."""

    def __init__(
        self, message: str, path: str | Path | None = None, line: int = 0, column: int = 0
    ) -> None:
        place = "" if path is None else str(path)
        place += f":{line}" if line else ""
        place += f":{column}" if column else ""
        super().__init__(f"{place}: {message}" if place else message)
        self.path, self.line, self.column = path, line, column


class ModelFileError(ExtremaxError, ValueError):
    """A model or checkpoint that cannot be saved, or a folder or file that does not hold one."""


class MemoryBudgetError(ExtremaxError, MemoryError):
    """A request that would exceed the memory budget, refused before anything is allocated."""


class DivergedError(ExtremaxError, ArithmeticError):
    """NaN or infinity during training. The message names the step and the likely cause."""
