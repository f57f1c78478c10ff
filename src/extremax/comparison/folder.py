"""The folder of a comparison: one JSON file a finished run, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from extremax.errors import ModelFileError

_FORMAT = "extremax comparison 1"


class Folder:
    """Finished runs by name; without a path they are kept in memory.

    fingerprint: what the comparison is (data, settings, machine). A folder of another one is
                 refused: its runs would not be comparable.
    """

    def __init__(self, path: Path | None, fingerprint: dict[str, Any]) -> None:
        self.path, self.fingerprint = path, fingerprint
        self._kept: dict[str, dict[str, Any]] = {}

    def open(self) -> None:
        """Take the folder, or say why it cannot be taken."""
        if self.path is None:
            return
        check_free(self.path)
        about = self.path / "comparison.json"
        ours = json.loads(json.dumps({"format": _FORMAT} | self.fingerprint))
        if not about.exists():
            self._write(about, ours)
            return
        theirs = _read(about)
        differs = sorted(key for key in ours | theirs if ours.get(key) != theirs.get(key))
        if differs:
            raise ModelFileError(
                f"{self.path} holds another comparison (differs in {', '.join(differs)}), whose "
                "runs do not compare with these; choose another folder"
            )

    def get(self, name: str) -> dict[str, Any] | None:
        """A finished run, or None."""
        if self.path is None:
            return self._kept.get(name)
        path = self._at(name)
        return _read(path) if path.exists() else None

    def put(self, name: str, run: dict[str, Any]) -> None:
        if self.path is None:
            self._kept[name] = run
        else:
            self._write(self._at(name), run)

    def _at(self, name: str) -> Path:
        assert self.path is not None
        return self.path / "runs" / f"{name}.json"

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        from extremax.files import whole

        with whole(path) as aside:
            aside.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def check_free(path: Path) -> None:
    """Refuse a folder whose files are not ours to write among."""
    if path.exists() and not path.is_dir():
        raise ModelFileError(f"{path} is a file; a comparison is written to a folder")
    if path.exists() and not (path / "comparison.json").exists() and any(path.iterdir()):
        raise ModelFileError(
            f"{path} holds other files and no comparison; name a new folder or an empty one"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged ({error}); remove it") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"{path} is no part of a comparison; remove it")
    return found
