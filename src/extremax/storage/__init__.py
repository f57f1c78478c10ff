"""Folders of tensors behind a manifest: models and checkpoints."""

from extremax.storage.folder import Folder
from extremax.storage.models import FORMAT, load_model, model_folder, save_model
from extremax.storage.parameters import read_parameters, write_parameters

__all__ = [
    "FORMAT",
    "Folder",
    "load_model",
    "model_folder",
    "read_parameters",
    "save_model",
    "write_parameters",
]
