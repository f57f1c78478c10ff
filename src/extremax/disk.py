"""Files on disk: locks, checksums, and replacing a file in one step."""

from __future__ import annotations

import glob
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BLOCK_BYTES = 1 << 18


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock file at ``path``; the system releases it if this process dies.

    If somebody else holds it, wait or raise `BlockingIOError`. Without file locks (Windows), a
    no-op.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    held = False
    while not held:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # Whoever held the lock before has removed the file; a lock on it is worth nothing.
            held = path.exists() and os.path.samestat(os.fstat(handle), path.stat())
        finally:
            if not held:
                os.close(handle)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def flush(path: Path) -> None:
    """Wait until a file, or the list of files in a folder, is on disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end, or is removed on an error.

    A process that is killed in between leaves the old file unchanged, and the temporary one for the
    next writer of ``path`` to remove.
    """
    for left in path.parent.glob(glob.escape(f".{path.name}.") + "*.extremax-part"):
        with suppress(BlockingIOError), locked(left, wait=False):
            pass  # The lock file is the temporary one, and is removed with the lock.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{writer}.extremax-part")
    try:
        with locked(temporary, wait=False):
            yield temporary
            flush(temporary)
            temporary.replace(path)
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
