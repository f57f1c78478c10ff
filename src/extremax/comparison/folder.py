"""The folder of a comparison: one JSON file per finished run, complete or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from extremax.disk import replacing
from extremax.errors import ModelFileError

_FORMAT = "extremax comparison 2"
_IDENTITY = "comparison.json"


class RunFolder:
    """Finished runs by name.

    path:         the folder; None stores nothing.
    fingerprint:  identifies the comparison: data, settings, machine. A folder with another
                  fingerprint is rejected, because its runs are not comparable.
    """

    def __init__(self, path: Path | None, fingerprint: dict[str, Any]) -> None:
        self.path = path
        if path is None:
            return
        check_free(path)
        self._expected = expected = json.loads(json.dumps({"format": _FORMAT} | fingerprint))
        stored = self._read(_IDENTITY)
        if stored is None:
            self._write(_IDENTITY, expected)
            return
        keys = sorted(key for key in expected | stored if expected.get(key) != stored.get(key))
        if keys:
            raise ModelFileError(
                f"{path} holds a different comparison (it differs in {', '.join(keys)}), "
                "whose runs are not comparable with this one; choose another folder"
            )

    def get(self, name: str, keys: set[str]) -> dict[str, Any] | None:
        """Return a finished run, whose record must have these keys; None if there is none."""
        record = self._read(f"runs/{name}.json")
        if record is not None and not keys <= record.keys():
            missing = ", ".join(sorted(keys - record.keys()))
            raise ModelFileError(
                f"{self.path}/runs/{name}.json is no record of such a run (it lacks {missing}); "
                "remove it"
            )
        return record

    def put(self, name: str, run: dict[str, Any]) -> None:
        """Store a finished run."""
        self._write(f"runs/{name}.json", run)
        if self.path is not None and not (self.path / _IDENTITY).exists():
            # The folder has been deleted meanwhile. With this a rerun finds what came after.
            self._write(_IDENTITY, self._expected)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self.path is not None:
            write_file(self.path, name, json.dumps(content, indent=1, ensure_ascii=False))

    def _read(self, name: str) -> dict[str, Any] | None:
        if self.path is None or not (path := self.path / name).exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path} is damaged ({error}); remove it") from error
        if not isinstance(content, dict):
            raise ModelFileError(f"{path} does not belong to a comparison; remove it")
        return content


def check_free(path: Path) -> None:
    """Reject a path that is a file, or a folder with files of something else."""
    if path.exists() and not path.is_dir():
        raise ModelFileError(
            f"{path} is a file, but a comparison is written to a folder; choose another path"
        )
    files = {file.name for file in path.iterdir()} if path.exists() else set()
    # A process that was killed during its first write may have left a part of a file.
    if _IDENTITY not in files and not all(n.endswith(".extremax-part") for n in files):
        raise ModelFileError(
            f"{path} is not empty and holds no comparison; choose a new or empty folder"
        )


def write_file(folder: Path, name: str, content: str | bytes) -> None:
    """Write a file of a comparison in one step: a process that is killed leaves the file as it was
    or complete."""
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ModelFileError(f"could not write {path}: {error.strerror or error}") from error
