"""The errors a user can cause, each of which says what, where and what to do."""

from __future__ import annotations

from pathlib import Path


class ExtremaxError(Exception):
    """Base of every error this package raises on purpose for something outside an argument."""


class DataError(ExtremaxError, ValueError):
    """Malformed input. ``str()`` reads ``file:line:column: what, what to do``."""

    def __init__(
        self, message: str, path: str | Path | None = None, line: int = 0, column: int = 0
    ) -> None:
        place = "" if path is None else str(path)
        place += f":{line}" if line else ""
        place += f":{column}" if column else ""
        super().__init__(f"{place}: {message}" if place else message)
        self.path, self.line, self.column = path, line, column


class ModelFileError(ExtremaxError, ValueError):
    """A folder or file that should hold a model or a checkpoint, and does not."""


class MemoryBudgetError(ExtremaxError, MemoryError):
    """A request refused before it allocates, because its size is over the memory budget."""


class DivergedError(ExtremaxError, ArithmeticError):
    """Training met a NaN or an infinity; names the step and the likely cause."""
