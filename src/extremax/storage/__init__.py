"""Folders of tensors behind a manifest: models and checkpoints.

Names are imported on first use, so that ``extremax info`` does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.storage.folder import Folder, model_folder
    from extremax.storage.models import load_model, save_model
    from extremax.storage.parameters import read_parameters, write_parameters

_MODULES = {
    "Folder": "extremax.storage.folder",
    "load_model": "extremax.storage.models",
    "model_folder": "extremax.storage.folder",
    "read_parameters": "extremax.storage.parameters",
    "save_model": "extremax.storage.models",
    "write_parameters": "extremax.storage.parameters",
}

__all__ = [
    "Folder",
    "load_model",
    "model_folder",
    "read_parameters",
    "save_model",
    "write_parameters",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'extremax.storage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
