"""Files that are complete or absent."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.errors import ModelFileError

if TYPE_CHECKING:
    import torch

_BLOCK_BYTES = 1 << 18


@contextmanager
def temporary(folder: Path, name: str) -> Iterator[Path]:
    """A path to write to and then rename with `switch`; gone at the end otherwise.

    It lies in a folder of its own inside the given one: safetensors writes to a file beside the one
    it is asked for, under a name that says nothing of its origin, and a killed writer leaves it.
    """
    place = folder / f".extremax-{name}-{os.getpid()}"
    try:
        place.mkdir(exist_ok=True)
        yield place / name
    finally:
        discard(place)


def discard(path: Path) -> None:
    """Remove a file or a folder, if it is there and may be removed."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def switch(written: Path, path: Path) -> None:
    """Rename a written file to its name, once its content is on disk."""
    with open(written, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(written, path)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process writes to the folder; without file locks (Windows), a no-op."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        # A rename is durable when its folder is on disk.
        os.fsync(handle)
    finally:
        os.close(handle)


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file at ``path`` itself; for use with `temporary`."""
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


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
