"""The folder of a comparison: one JSON file per finished run, written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from extremax.data.writers import replacing
from extremax.errors import ModelFileError

_FORMAT = "extremax comparison 1"


class RunFolder:
    """Finished runs by name.

    path:         the folder; None keeps runs in memory.
    fingerprint:  identifies the comparison: data, settings, machine. A folder with another
                  fingerprint is rejected, because its runs are not comparable.
    """

    def __init__(self, path: Path | None, fingerprint: dict[str, Any]) -> None:
        self.path, self.fingerprint = path, fingerprint
        self._runs: dict[str, dict[str, Any]] = {}

    def open(self) -> None:
        """Create the folder, or check that it holds this comparison."""
        if self.path is None:
            return
        check_free(self.path)
        path = self.path / "comparison.json"
        expected = json.loads(json.dumps({"format": _FORMAT} | self.fingerprint))
        if not path.exists():
            self._write(path, expected)
            return
        stored = _read(path)
        keys = sorted(key for key in expected | stored if expected.get(key) != stored.get(key))
        if keys:
            raise ModelFileError(
                f"{self.path} holds a different comparison (it differs in {', '.join(keys)}), "
                "whose runs are not comparable with this one; choose another folder"
            )

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a finished run, or None if there is none of this name."""
        if self.path is None:
            return self._runs.get(name)
        path = self._file(name)
        return _read(path) if path.exists() else None

    def put(self, name: str, run: dict[str, Any]) -> None:
        """Store a finished run."""
        if self.path is None:
            self._runs[name] = run
        else:
            self._write(self._file(name), run)

    def _file(self, name: str) -> Path:
        assert self.path is not None
        return self.path / "runs" / f"{name}.json"

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1, ensure_ascii=False)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ModelFileError(f"could not write {path}: {error.strerror or error}") from error


def check_free(path: Path) -> None:
    """Reject a path that is a file, or a folder with files of something else."""
    if path.exists() and not path.is_dir():
        raise ModelFileError(
            f"{path} is a file, but a comparison is written to a folder; choose another path"
        )
    if path.exists() and not (path / "comparison.json").exists() and any(path.iterdir()):
        raise ModelFileError(
            f"{path} is not empty and holds no comparison; choose a new or empty folder"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged ({error}); remove it") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} does not belong to a comparison; remove it")
    return content
