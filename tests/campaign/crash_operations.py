"""Every operation by which a process changes files, counted and intercepted.

`Operations.install` patches Python's functions in a forked child: there is no way back, nor need of
one. An operation is called by what it does to which file, such as "replace m/manifest.json #2",
without the parts of names that differ from run to run.
"""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import re
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

Perform = Callable[[], Any]
#: Called with the name of an operation, the operation, and (for writes) what does half of it.
Hook = Callable[[str, Perform, "Perform | None"], Any]

_PATCHED = ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link", "symlink")
_VARIABLE = (
    (re.compile(r"\.[0-9a-f]{16}(?=\.safetensors)"), ""),
    (re.compile(r"(\.extremax-[a-z_]+)-\d+"), r"\1"),
    (re.compile(r"\.\d+-\d+(?=\.extremax-part)"), ""),
    (re.compile(r"\.extremax-\d+-"), ".extremax-"),
)


def plain_name(path: str) -> str:
    """A path without the numbers of processes and checksums in its names."""
    for pattern, replacement in _VARIABLE:
        path = pattern.sub(replacement, path)
    return path


class Operations:
    """Operations on files below ``root``, which all go through ``hook``."""

    def __init__(self, root: Path, hook: Hook) -> None:
        self.root, self.hook = str(root.resolve()), hook
        self._numbers: Counter[str] = Counter()
        self._safe = {s.st_ino: _version(s) for s in map(os.lstat, _files(self.root))}

    def install(self) -> None:
        """Patch this process."""
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps its own copies.
        for name in _PATCHED:
            wrapped = self._wrapped(name, getattr(os, name))
            setattr(os, name, wrapped)
            if hasattr(accessor, name):
                setattr(accessor, name, staticmethod(wrapped))
        os.open = self._creating(os.open)  # type: ignore[assignment]
        opening = self._opening(io.open)
        io.open = builtins.open = opening  # type: ignore[assignment]
        if hasattr(accessor, "open"):
            accessor.open = staticmethod(opening)
        safetensors.torch.save_file = self._saving(safetensors.torch.save_file)

    def lose_unsynced(self) -> None:
        """What a power failure does: cut files whose content was not forced to the disk."""
        for path in _files(self.root):
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode) and self._safe.get(found.st_ino) != _version(found):
                os.truncate(path, found.st_size // 2)

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            target = args[1] if name in ("replace", "rename", "link", "symlink") else args[0]
            path = self._inside(target, kwargs.get("dir_fd"))
            if path is None:
                return original(*args, **kwargs)

            def perform() -> Any:
                answer = original(*args, **kwargs)
                if name == "fsync":
                    found = os.fstat(args[0])
                    self._safe[found.st_ino] = _version(found)
                return answer

            return self._hooked(name, path, perform)

        return wrapper

    def _creating(self, original: Callable[..., int]) -> Callable[..., int]:
        def creating(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            inside = self._inside(path, kwargs.get("dir_fd")) if flags & os.O_CREAT else None
            perform = lambda: original(path, flags, *args, **kwargs)  # noqa: E731
            return perform() if inside is None else self._hooked("create", inside, perform)

        return creating

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            path = self._inside(file) if set(mode) & set("wax") else None
            if path is None:
                return original(file, mode, *args, **kwargs)
            stream = self._hooked("open", path, lambda: original(file, mode, *args, **kwargs))
            write = stream.write

            def half(text: Any) -> None:
                write(text[: len(text) // 2])
                stream.flush()

            stream.write = lambda text: self._hooked(
                "write", path, lambda: write(text), lambda: half(text)
            )
            return stream

        return opening

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def saving(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            def half() -> None:
                # safetensors writes to a file beside, which it then renames.
                unfinished = Path(filename).with_name(".tmpA1b2C3")
                original(tensors, unfinished, *args, **kwargs)
                os.truncate(unfinished, unfinished.stat().st_size // 2)

            perform = lambda: original(tensors, filename, *args, **kwargs)  # noqa: E731
            path = self._inside(filename)
            return perform() if path is None else self._hooked("save", path, perform, half)

        return saving

    def _hooked(self, kind: str, path: str, perform: Perform, half: Perform | None = None) -> Any:
        name = f"{kind} {plain_name(path)}"
        self._numbers[name] += 1
        return self.hook(f"{name} #{self._numbers[name]}", perform, half)

    def _inside(self, target: Any, folder: int | None = None) -> str | None:
        """The path relative to the root, or None if it lies elsewhere."""
        if isinstance(target, int):
            path = os.readlink(f"/proc/self/fd/{target}")
        elif isinstance(target, (str, bytes, os.PathLike)):
            path = os.fsdecode(target)
            if folder is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        else:
            return None
        path = os.path.abspath(path)
        if path == self.root or path.startswith(self.root + os.sep):
            return os.path.relpath(path, self.root)
        return None


def _files(root: str) -> list[str]:
    return [os.path.join(top, name) for top, _, names in os.walk(root) for name in names]


def _version(found: os.stat_result) -> tuple[int, int]:
    return found.st_mtime_ns, found.st_size
