"""What must hold of a folder after a crash, and after the work was repeated."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from extremax import ExtremeClassifier
from extremax.errors import ExtremaxError
from extremax.storage.folder import Folder, model_folder
from tests.campaign.crash_operations import plain_name
from tests.campaign.crash_scenarios import BYSTANDERS, Fixtures, Scenario

_TEMPORARY = re.compile(r"\.extremax-.*|\..+\.extremax-part|[a-z_]+\.[0-9a-f]{16}\.safetensors")
# Figures that depend on the clock.
_TIMES = {"seconds", "checksum"}


class Wrong(Exception):
    """A promise that was broken: the outcome of the trial, and what was found."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


def is_temporary(name: str) -> bool:
    """Whether a path is what a killed process may leave until the next one tidies up."""
    return any(_TEMPORARY.fullmatch(part) for part in Path(name).parts)


def listing(root: Path) -> dict[str, str]:
    """Digests of all files below a folder by name, folders included.

    Manifests count without what depends on the clock. Files of comparisons, which train by the
    clock, must be complete, and count by their names alone.
    """
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        timed = name.startswith("runs/") and not is_temporary(name)
        found[name] = "folder" if path.is_dir() else _digest(path, timed)
    return found


def _digest(path: Path, timed: bool) -> str:
    content = path.read_bytes()
    if timed:
        _check_complete(path, content)
        return "complete"
    if path.name == "manifest.json":
        # One that is damaged counts as it is.
        with suppress(ValueError):
            content = json.dumps(_timeless(json.loads(content)), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in _TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def _check_complete(path: Path, content: bytes) -> None:
    """A file of a report, whole by the marks that its format has at the end."""
    whole = True
    if path.suffix == ".json":
        try:
            whole = isinstance(json.loads(content), dict)
        except ValueError:
            whole = False
    elif path.suffix == ".csv":
        widths = {len(row) for row in csv.reader(content.decode().splitlines())}
        whole = len(widths) == 1 and content.endswith(b"\n")
    elif path.suffix == ".png":
        whole = content.endswith(b"IEND\xaeB`\x82")
    elif path.suffix == ".html":
        whole = content.rstrip().endswith(b"</html>")
    if not whole:
        raise Wrong("lost", f"{path.name} is not whole: it ends in {content[-40:]!r}")


def answers(folder: Path, fixtures: Fixtures) -> bytes | None:
    """The probabilities that a model gives, bit for bit; None where there is no model."""
    if not model_folder(folder).exists():
        return None
    try:
        classifier = ExtremeClassifier.load(folder)
    except ExtremaxError as error:
        raise Wrong("lost", f"the model cannot be loaded: {error}") from error
    return np.ascontiguousarray(classifier.predict_proba(fixtures.X[:40])).tobytes()


def _read(folder: Path) -> dict[str, Any] | None:
    """The settings in a folder behind a manifest, whatever its format; None where there is none."""
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return None
    try:
        format = json.loads(manifest.read_bytes())["format"]
    except (LookupError, ValueError) as error:
        raise Wrong("lost", f"{manifest} is damaged: {error}") from error
    return Folder(folder, format).read()[0]


class Expected:
    """What a scenario's folder holds before and after, as found by an undisturbed run."""

    def __init__(self, scenario: Scenario, fixtures: Fixtures, before: Path, after: Path) -> None:
        self.scenario, self.fixtures = scenario, fixtures
        self.before, self.after = listing(before), listing(after)
        self.models = [answers(path / "m", fixtures) for path in (before, after)]
        self.epoch = self._epoch(before)

    def check_crashed(self, work: Path) -> str:
        """Check a folder in which a process was killed; return "old", "new" or "mixed"."""
        self._check_bystanders(work)
        found = listing(work)
        for name, digest in found.items():
            known = [tree.get(name) for tree in (self.before, self.after)]
            if digest in known or name in BYSTANDERS:
                continue
            parts = Path(name).parts
            if is_temporary(name):
                continue
            if self.scenario.checkpoint and parts[0] == self.scenario.checkpoint:
                continue
            if self.scenario.kind == "runs" and parts[0] == self.scenario.target:
                continue
            if self.scenario.kind == "model" and parts[0] == self.scenario.target:
                # The manifest: whether it is old or new is what its answers tell.
                continue
            raise Wrong("lost", f"{name} is neither old nor new nor temporary")
        if self.scenario.kind == "file":
            gone = [n for n in self.before if n in self.after and n not in found]
            if gone:
                raise Wrong("lost", f"{', '.join(gone)} are gone")
        return self._check_model(work) if self.scenario.kind == "model" else "mixed"

    def _check_model(self, work: Path) -> str:
        old, new = self.models
        found = answers(work / self.scenario.target, self.fixtures)
        if found not in (old, new):
            if found is None:
                raise Wrong("lost", "the old model is gone")
            raise Wrong("silently_wrong", "the model is neither the old nor the new one")
        state = "new" if found == new else "old"
        if self.scenario.checkpoint:
            epoch = self._epoch(work)
            if state == "old" and (-1 if epoch is None else epoch) < (self.epoch or -1):
                raise Wrong("lost", f"the checkpoint fell from epoch {self.epoch} to {epoch}")
        return state

    def _epoch(self, work: Path) -> int | None:
        """The epoch of the checkpoint, every byte of which is read; None where there is none."""
        if not self.scenario.checkpoint:
            return None
        folder = work / self.scenario.checkpoint
        try:
            _read(folder / "best")
            settings = _read(folder)
            return None if settings is None else settings["state"]["epoch"]
        except ExtremaxError as error:
            raise Wrong("lost", f"the checkpoint cannot be read: {error}") from error

    def check_done(self, work: Path) -> None:
        """Check a folder in which the work has been repeated: like that of an undisturbed run."""
        self._check_bystanders(work)
        found = listing(work)
        more, less = sorted(found.keys() - self.after.keys()), self.after.keys() - found.keys()
        if more:
            raise Wrong("lost", f"left behind for good: {', '.join(map(plain_name, more))}")
        if less:
            raise Wrong("lost", f"missing after the work was repeated: {', '.join(sorted(less))}")
        differing = [name for name in found if found[name] != self.after[name]]
        if differing:
            raise Wrong("silently_wrong", f"repeating gave other {', '.join(differing)}")

    def _check_bystanders(self, work: Path) -> None:
        for name, digest in self.before.items():
            if not name.endswith(tuple(BYSTANDERS)) or digest == "folder":
                continue
            path = work / name
            if not path.exists() or _digest(path, False) != digest:
                raise Wrong("lost", f"somebody else's {name} was changed")
