"""A folder of tensor files behind one manifest, switched from version to version in one step.

    manifest.json                       format, settings, and for each file its name, size, SHA-256
    head.3f9c….safetensors              one file per part, named by its content

Files of a new version are written under names of their own; only then the manifest is replaced, by
one rename. A process that is killed at any moment leaves the old version or the new one, never
neither. A reader that finds a file gone, because a writer has just replaced the version it was
reading, reads the manifest again. The manifest contains a checksum of itself, so damage to any byte
is noticed. Saving equal content twice gives equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.errors import ModelFileError
from extremax.labels.saving import plain_number
from extremax.storage.files import (
    MissingFileError,
    checksum,
    discard,
    only_writer,
    opened,
    read_tensors,
    reading,
    switch,
    temporary,
    write_tensors,
)

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"
_MODEL_FORMAT = "extremax model 2"
# Files that this module writes, and so may delete: finished ones, and what a killed writer left.
_OURS = re.compile(r"[a-z_]+\.[0-9a-f]{16}\.safetensors|\.extremax-[a-z_]+-\d+")
# How often a reader tries again when a writer replaces the version under it.
_TRIES, _WAIT_SECONDS = 20, 0.05
_COPY_ROWS = 1024


class Folder:
    """Versions of something in a folder.

    format:  what the manifest calls its content, such as "extremax model 2"; a folder of another
             format is refused.
    """

    def __init__(self, path: str | Path, format: str) -> None:
        self.path, self.format = Path(path), format

    @property
    def manifest(self) -> Path:
        return self.path / MANIFEST

    def exists(self) -> bool:
        """Whether a version is there; a file in the place of the folder is refused."""
        if self.path.exists() and not self.path.is_dir():
            raise ModelFileError(f"{self.path} is a file; expected a folder")
        return self.manifest.exists()

    # Writing ----------------------------------------------------------------------------------

    def write(
        self,
        settings: dict[str, Any],
        files: dict[str, dict[str, torch.Tensor]],
        keep: tuple[str, ...] = (),
    ) -> None:
        """Replace what is there, in one step.

        files:  tensors by part.
        keep:   parts to take over from the version that is there.
        """
        self.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with only_writer(self.path):
                before = self._described() if keep else {}
                described = {part: before[part] for part in keep if part in before}
                # What a killed writer left may be what fills the disk.
                self._remove_except(self._needed())
                try:
                    described |= {part: self._write_file(part, files[part]) for part in files}
                    self._switch({"format": self.format, **settings, "files": described})
                finally:
                    # However this ended, the manifest says which files are needed now.
                    self._remove_except(self._needed())
        except OSError as error:
            raise ModelFileError(
                f"could not write {self.path}: {error.strerror or error}; nothing was changed there"
            ) from error

    def _described(self) -> dict[str, Any]:
        return self.read_settings()["files"] if self.exists() else {}

    def _needed(self) -> set[str]:
        """Names of the files of the version that is there; of all files if nobody can say."""
        try:
            return {file["name"] for file in self._described().values()}
        except ModelFileError:
            return {path.name for path in self.path.iterdir()}

    def _write_file(self, part: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        with temporary(self.path, part) as path:
            write_tensors(path, tensors)
            digest = checksum(path)
            name = f"{part}.{digest[:16]}.safetensors"
            described = {"name": name, "bytes": path.stat().st_size, "sha256": digest}
            switch(path, self.path / name)
        return described

    def _switch(self, content: dict[str, Any]) -> None:
        """Write the manifest: from here on this is the current version."""
        content["checksum"] = _self_checksum(content)
        with temporary(self.path, "manifest") as path:
            text = json.dumps(content, indent=1, ensure_ascii=False, default=plain_number)
            path.write_text(text, encoding="utf-8")
            switch(path, self.manifest)

    def _remove_except(self, names: set[str]) -> None:
        """Remove files of earlier versions and of writers that were killed; nobody else's."""
        for path in self.path.iterdir():
            if path.name not in names and _OURS.fullmatch(path.name):
                discard(path)

    def remove(self) -> None:
        """Remove what this folder holds, and the folder itself if that leaves it empty. What has
        another format stays: a model may have been saved where its checkpoint was."""
        try:
            self._described()
        except ModelFileError:
            return
        self.manifest.unlink(missing_ok=True)
        if self.path.is_dir():
            self._remove_except(set())
            if not any(self.path.iterdir()):
                self.path.rmdir()

    # Reading ----------------------------------------------------------------------------------

    def read_settings(self) -> dict[str, Any]:
        """The manifest, checked."""
        if not self.exists():
            raise ModelFileError(f"{self.path} has no {MANIFEST}: it is not an {self.format}")
        try:
            content = json.loads(self.manifest.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ModelFileError(f"{self.manifest} is damaged: {error}") from error
        if not isinstance(content, dict) or content.get("format") != self.format:
            found = content.get("format") if isinstance(content, dict) else None
            raise ModelFileError(
                f"{self.manifest} is not an {self.format} (it says {found!r}); was it written by "
                "another version?"
            )
        if content.get("checksum") != _self_checksum(content):
            raise ModelFileError(
                f"{self.manifest} is damaged (checksum differs); copy the folder again"
            )
        if not isinstance(content.get("files"), dict):
            raise ModelFileError(f"{self.manifest} does not say which files there are")
        return content

    def read(self) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
        """Settings, and the tensors of each part, every byte checked."""
        tries_left = _TRIES
        while True:
            settings = self.read_settings()
            try:
                return settings, {
                    part: read_tensors(self._checked(described))
                    for part, described in settings["files"].items()
                }
            except MissingFileError:
                # A writer has just replaced this version, or the file is missing for good.
                tries_left -= 1
                if not tries_left:
                    raise
            time.sleep(_WAIT_SECONDS)

    def copy_into(self, part: str, targets: dict[str, torch.Tensor]) -> None:
        """Copy the tensors of a part into existing ones, some rows at a time: no second copy."""
        path = self._checked(self.read_settings()["files"][part])
        for name, target in targets.items():
            for start in range(0, len(target), _COPY_ROWS):
                block = slice(start, start + _COPY_ROWS)
                # Opened again for each block: what was read of a mapped file stays in memory until
                # it is closed.
                with opened(path) as file:
                    target[block] = file.get_slice(name)[block]

    def _checked(self, described: dict[str, Any]) -> Path:
        """The path of a file, if its size and content are as described."""
        path = self.path / Path(str(described["name"])).name
        with reading(path):
            size = path.stat().st_size
            if size != described["bytes"]:
                raise ModelFileError(
                    f"{path} has {size:,} bytes, expected {described['bytes']:,}: truncated or of "
                    "another model; copy the folder again"
                )
            if checksum(path) != described["sha256"]:
                raise ModelFileError(f"{path} is damaged (checksum differs); copy the folder again")
        return path

    def nbytes(self) -> int:
        """Bytes of the current version."""
        files = self.read_settings()["files"].values()
        return self.manifest.stat().st_size + sum(file["bytes"] for file in files)


def _self_checksum(content: dict[str, Any]) -> str:
    """SHA-256 of a manifest without its checksum."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, default=plain_number)
    return hashlib.sha256(text.encode()).hexdigest()


def model_folder(path: str | Path) -> Folder:
    """The folder of a saved model."""
    return Folder(path, _MODEL_FORMAT)
