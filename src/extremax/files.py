"""Tensor files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.errors import ModelFileError

if TYPE_CHECKING:
    import torch

_COPY_ROWS = 1024


def remove_strays(path: Path) -> None:
    """Remove what processes killed while they wrote ``path`` left beside it."""
    for stray in path.parent.glob(f".{path.name}.*"):
        stray.unlink(missing_ok=True)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to ``path`` at the end; on any failure nothing remains."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_strays(path)
        yield aside
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise ModelFileError(
            f"could not write {path}: {error.strerror or error}; nothing was changed there"
        ) from error
    finally:
        # A folder that could not be made, or that is a file, holds nothing to remove.
        with suppress(OSError):
            aside.unlink()


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], meta: dict[str, str]) -> None:
    with whole(path) as aside:
        save_tensors(aside, tensors, meta)


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], meta: dict[str, str]) -> None:
    """Write to ``path`` itself; for use inside `whole`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, meta)
    except SafetensorError as error:
        # safetensors reports a full disk as its own error type.
        raise OSError(None, str(error)) from error
    # safetensors lets the owner alone read what it writes; a model is a file like others.
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata, or a ModelFileError that says why the file is no good."""
    with _opened(path) as file:
        return {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118


def copy_tensors(path: Path, targets: dict[str, torch.Tensor]) -> None:
    """Tensors of a file into ones that are there, some rows at a time: no second copy."""
    for name, target in targets.items():
        for start in range(0, len(target), _COPY_ROWS):
            block = slice(start, start + _COPY_ROWS)
            # Opened anew for each block: what was read of a mapped file stays until it is closed.
            with _opened(path) as file:
                target[block] = file.get_slice(name)[block]


def read_metadata(path: Path) -> dict[str, str]:
    """Metadata alone."""
    with _opened(path) as file:
        return file.metadata() or {}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} cannot be read, it is damaged or foreign: {error}") from error
