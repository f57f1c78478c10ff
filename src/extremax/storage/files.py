"""Tensors on disk, in safetensors files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.disk import flush
from extremax.errors import ModelFileError

if TYPE_CHECKING:
    import torch


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file and wait until it is on disk.

    safetensors writes to a file beside the one it is asked for, under a name that says nothing of
    its origin, and a killed writer leaves it: the folder should be one of our own.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({k: v.contiguous() for k, v in sorted(tensors.items())}, path)
    except SafetensorError as error:
        # safetensors reports a full disk as its own error type.
        raise OSError(None, str(error)) from error
    # safetensors makes files that only their owner can read; a model is a file like others.
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
    flush(path)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, or a `ModelFileError` that says why it cannot be read."""
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


class MissingFileError(ModelFileError):
    """A file of a model that is not there, or not there any more."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, mapped."""
    from safetensors import SafetensorError, safe_open

    with reading(path):
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (SafetensorError, RuntimeError) as error:
            # Torch opens the file once more to map it, and it may be gone by then.
            if "No such file" in str(error):
                raise FileNotFoundError from error
            raise ModelFileError(
                f"{path} cannot be read, it is damaged or foreign: {error}"
            ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the system into a `ModelFileError` that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} is missing; copy the whole folder") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
