"""Readers for common file formats, a writer for predictions, and synthetic problems.

Names are imported on first use, so that ``extremax --help`` does not load numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.data.dataset import Dataset, Summary
    from extremax.data.reading import read, read_blocks, scan
    from extremax.data.synthetic import clustered
    from extremax.data.writers import write_predictions

_MODULES = {
    "Dataset": "extremax.data.dataset",
    "Summary": "extremax.data.dataset",
    "clustered": "extremax.data.synthetic",
    "read": "extremax.data.reading",
    "read_blocks": "extremax.data.reading",
    "scan": "extremax.data.reading",
    "write_predictions": "extremax.data.writers",
}

__all__ = ["Dataset", "Summary", "clustered", "read", "read_blocks", "scan", "write_predictions"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'extremax.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
