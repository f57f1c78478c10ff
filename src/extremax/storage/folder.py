"""A folder of tensor files behind one manifest, switched from version to version in one step.

    manifest.json                       format, settings, and for each file its name, size, SHA-256
    head.3f9c….safetensors              one file per part, named by its content

A new version is written whole to a folder of its own, ``.extremax-writing``, and is on disk before
anything else happens. Then its files move beside those of the old version, and one rename of the
manifest makes them the current ones; only after that are the old ones removed. A process that is
killed at any moment leaves the old version or the new one, never neither, and a list of what the
next writer may remove: a file that no manifest of ours ever listed is never touched. One process
writes at a time. A reader that finds a file gone, because a writer has just replaced the version it
was reading, reads the manifest again. The manifest contains a checksum of itself, so damage to any
byte is noticed. Saving equal content twice gives equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.disk import checksum, flush, locked
from extremax.errors import ModelFileError
from extremax.labels.saving import plain_number
from extremax.storage.files import MissingFileError, opened, read_tensors, reading, write_tensors
from extremax.storage.schema import FILE_NAME, FILES, MODEL, check

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"
# Where a version is written, and in it the names of all files that are ours.
_STAGING, _JOURNAL = ".extremax-writing", "files.json"
_LOCK = ".extremax-write-lock"
# How every manifest of ours begins, damaged or not.
_OUR_MANIFEST = re.compile(rb'\s*\{\s*"format":\s*"extremax ')
# How often a reader tries again when a writer replaces the version under it.
_TRIES, _WAIT_SECONDS = 20, 0.05
_COPY_ROWS = 1024


class Folder:
    """Versions of something in a folder.

    format:  what the manifest calls its content, such as "extremax model 2"; a folder of another
             format is refused.
    schema:  what the settings must look like, see `extremax.storage.schema`; None for anything.
    """

    def __init__(self, path: str | Path, format: str, schema: dict[str, Any] | None = None) -> None:
        if not str(path) or "\0" in str(path):
            raise ModelFileError(f"{str(path)!r} is no path: it is empty or has a null character")
        self.path, self.format, self.schema = Path(path), format, schema

    @property
    def manifest(self) -> Path:
        return self.path / MANIFEST

    def exists(self) -> bool:
        """Whether a version is there; a file in the place of the folder is refused."""
        if self.path.exists() and not self.path.is_dir():
            raise ModelFileError(f"{self.path} is a file; expected a folder")
        if self.manifest.exists() and not self.manifest.is_file():
            # A pipe, say, which reading would wait for.
            raise ModelFileError(f"{self.manifest} is not a file")
        return self.manifest.exists()

    # Writing ----------------------------------------------------------------------------------

    def check_ours(self) -> None:
        """Refuse to replace a manifest that extremax did not write."""
        if self.exists() and not _OUR_MANIFEST.match(self.manifest.read_bytes()):
            raise ModelFileError(
                f"{self.manifest} was not written by extremax and would be replaced; choose "
                "another folder"
            )

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
            with locked(self.path / _LOCK):
                self.check_ours()
                # What a killed writer left may be what fills the disk.
                self._clean_up()
                try:
                    self._replace(settings, files, keep)
                finally:
                    self._clean_up()
        except OSError as error:
            raise ModelFileError(
                f"could not write {self.path}: {error.strerror or error}; no version that was "
                "saved there is damaged"
            ) from error

    def _replace(
        self,
        settings: dict[str, Any],
        files: dict[str, dict[str, torch.Tensor]],
        keep: tuple[str, ...],
    ) -> None:
        staging = self.path / _STAGING
        staging.mkdir()
        before = self._described() or {}
        new = {part: _stage(staging / part, tensors) for part, tensors in files.items()}
        described = {part: before[part] for part in keep if part in before} | new
        ours = {file["name"] for file in before.values()}
        for file in new.values():
            if file["name"] not in ours and os.path.lexists(self.path / file["name"]):
                raise ModelFileError(
                    f"{self.path / file['name']} is in the way and not part of what is saved "
                    "there; move it elsewhere"
                )
        content = {"format": self.format, **settings, "files": described}
        content["checksum"] = _self_checksum(content)
        text = json.dumps(content, indent=1, ensure_ascii=False, default=plain_number)
        names = sorted(ours | {file["name"] for file in new.values()})
        self._write_staged(MANIFEST, text)
        self._write_staged(_JOURNAL, json.dumps(names))
        flush(staging)
        flush(self.path)
        for part, file in new.items():
            os.replace(staging / part, self.path / file["name"])
        flush(self.path)
        # From here on this is the current version.
        os.replace(staging / MANIFEST, self.manifest)
        flush(self.path)

    def _write_staged(self, name: str, text: str) -> None:
        path = self.path / _STAGING / name
        path.write_text(text, encoding="utf-8")
        flush(path)

    def _clean_up(self) -> None:
        """Remove the files that the journal of the last writer names and the manifest does not."""
        needed = self._described()
        try:
            names = json.loads((self.path / _STAGING / _JOURNAL).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            # The writer had not come to its end, and so had moved no file.
            names = []
        if needed is not None:
            kept = {file["name"] for file in needed.values()}
            for name in filter(FILE_NAME.fullmatch, map(str, names)):
                if name not in kept:
                    (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)

    def _described(self) -> dict[str, Any] | None:
        """The files of the version that is there, whatever its format; None if nobody can say."""
        try:
            return self._content()["files"] if self.exists() else {}
        except ModelFileError:
            return None

    def remove(self) -> None:
        """Remove what this folder holds, and the folder itself if that leaves it empty. What has
        another format stays: a model may have been saved where its checkpoint was."""
        try:
            files = self.read_settings()["files"]
        except ModelFileError:
            return
        try:
            with locked(self.path / _LOCK):
                self._clean_up()
                try:
                    # A journal for the next writer, in case that this process is killed.
                    (self.path / _STAGING).mkdir()
                    names = [file["name"] for file in files.values()]
                    self._write_staged(_JOURNAL, json.dumps(names))
                    flush(self.path / _STAGING)
                    flush(self.path)
                    self.manifest.unlink()
                finally:
                    self._clean_up()
            if not any(self.path.iterdir()):
                self.path.rmdir()
        except OSError as error:
            raise ModelFileError(
                f"could not remove what is in {self.path}: {error.strerror or error}"
            ) from error

    # Reading ----------------------------------------------------------------------------------

    def read_settings(self) -> dict[str, Any]:
        """The manifest, checked."""
        if not self.exists():
            if not self.path.exists():
                raise ModelFileError(f"{self.path} does not exist")
            # The number of the format says nothing to who has no such folder.
            name = self.format.rsplit(" ", 1)[0]
            raise ModelFileError(f"{self.path} has no {MANIFEST}: it is not an {name}")
        return self._content(self.format)

    def _content(self, format: str | None = None) -> dict[str, Any]:
        """The manifest, if it is whole and of this format, by default of any."""
        try:
            content = json.loads(self.manifest.read_text(encoding="utf-8"))
            digest = _self_checksum(content) if isinstance(content, dict) else None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{self.manifest} is damaged: {error}") from error
        found = content.get("format") if isinstance(content, dict) else None
        if format is not None and found != format:
            raise ModelFileError(
                f"{self.manifest} is not an {format} (it says {found!r:.80}); was it written by "
                "another version?"
            )
        if digest is None or content.get("checksum") != digest:
            raise ModelFileError(
                f"{self.manifest} is damaged (checksum differs); copy the folder again"
            )
        try:
            check(content.get("files"), FILES, "files.")
            if format is not None and self.schema is not None:
                check(content, self.schema | {"format": str, "files": FILES, "checksum": str})
        except ModelFileError as error:
            raise ModelFileError(
                f"{self.manifest} is damaged or of another version: {error}"
            ) from error
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
        path = self.path / described["name"]
        with reading(path):
            found = path.stat()
            if found.st_size != described["bytes"] or not stat.S_ISREG(found.st_mode):
                raise ModelFileError(
                    f"{path} has {found.st_size:,} bytes, expected {described['bytes']:,}: "
                    "truncated or of another model; copy the folder again"
                )
            if checksum(path) != described["sha256"]:
                raise ModelFileError(f"{path} is damaged (checksum differs); copy the folder again")
        return path

    def nbytes(self) -> int:
        """Bytes of the current version."""
        files = self.read_settings()["files"].values()
        return self.manifest.stat().st_size + sum(file["bytes"] for file in files)


def _stage(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Write a part of a version that is not there yet, and describe it for the manifest."""
    write_tensors(path, tensors)
    digest = checksum(path)
    name = f"{path.name}.{digest[:16]}.safetensors"
    return {"name": name, "bytes": path.stat().st_size, "sha256": digest}


def _self_checksum(content: dict[str, Any]) -> str:
    """SHA-256 of a manifest without its checksum."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, default=plain_number)
    return hashlib.sha256(text.encode()).hexdigest()


def model_folder(path: str | Path) -> Folder:
    """The folder of a saved model."""
    return Folder(path, "extremax model 2", MODEL)
