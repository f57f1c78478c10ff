"""Readers for common file formats, writers of predictions, and synthetic problems.

Names are imported on first use, so that ``extremax --help`` does not load numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.data.dataset import Dataset, Summary
    from extremax.data.reading import read, read_blocks, scan
    from extremax.data.session_tables import sessions_from_table
    from extremax.data.synthetic import clustered
    from extremax.data.writers import write_explanations, write_predictions

_MODULES = {
    "dataset": ("Dataset", "Summary"),
    "reading": ("read", "read_blocks", "scan"),
    "session_tables": ("sessions_from_table",),
    "synthetic": ("clustered",),
    "writers": ("write_explanations", "write_predictions"),
}

__all__ = [
    "Dataset",
    "Summary",
    "clustered",
    "read",
    "read_blocks",
    "scan",
    "sessions_from_table",
    "write_explanations",
    "write_predictions",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"extremax.data.{module}"), name)
    raise AttributeError(f"module 'extremax.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
