"""Checkpoints: a run as it stands, in a folder that is switched from version to version.

A run draws all its randomness from (seed, epoch, row), so its state is its head, its noise and a
few counters: from any checkpoint it continues to the bit-identical end.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from extremax.disk import locked
from extremax.errors import ExtremaxError, ModelFileError
from extremax.heads import Head
from extremax.model import Model
from extremax.storage.folder import Folder
from extremax.storage.schema import COUNT, RECORDS, Each, Number
from extremax.tensors import Tensors

_FORMAT, _BEST = "extremax checkpoint 3", "extremax best head 1"
_SCHEMA = {
    "fingerprint": Each((str, COUNT)),
    "state": {
        **dict.fromkeys(("epoch", "step", "examples", "rising_epoch"), COUNT),
        **dict.fromkeys(("seconds", "loss", "weight", "best", "rising"), Number()),
        "undecayed": Number(0),
        "best_epoch": Number(-1, 2**53, integer=True),
        "finished": bool,
        "history": RECORDS,
        "evaluations": RECORDS,
    },
}
_LOCK = ".extremax-run-lock"
_EVERY_SECONDS = 60.0
# Folders of further models of the run, with their numbers.
_MEMBER = "model"


class Saved(NamedTuple):
    """What a checkpoint holds."""

    head: dict[str, torch.Tensor]
    noise: dict[str, torch.Tensor]
    per_example: torch.Tensor | None
    state: dict[str, Any]


class Checkpoint:
    """The checkpoint of one run in a folder; without a folder only the best head is kept, in a
    temporary one. As a context manager it keeps other runs out of the folder.
    """

    def __init__(
        self, path: str | Path | None = None, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        self.path = Path(path) if path is not None else None
        self.fingerprint: dict[str, Any] = {}
        self.every_seconds = every_seconds
        self._written = time.monotonic()
        self._signal: int | None = None
        self._has_noise = False
        self._temporary: Path | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Checkpoint:
        if self.path is not None:
            self._folder().exists()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._closing.enter_context(locked(self.path / _LOCK, wait=False))
            except BlockingIOError as error:
                raise ModelFileError(
                    f"another run is using {self.path}; wait for its end or choose another "
                    "checkpoint folder"
                ) from error
            except OSError as error:
                raise ModelFileError(
                    f"could not write {self.path}: {error.strerror or error}"
                ) from error
        return self

    def __exit__(self, *_: object) -> None:
        """Let other runs in, and remove the temporary folder."""
        self._closing.close()
        self._temporary = None

    def _folder(self) -> Folder:
        assert self.path is not None
        return Folder(self.path, _FORMAT, _SCHEMA)

    def _best(self) -> Folder:
        # On disk rather than in memory: a second head would be a fifth of the peak.
        place = self.path or self._temporary
        if place is None:
            folder = tempfile.TemporaryDirectory(prefix="extremax-")
            place = self._temporary = Path(self._closing.enter_context(folder))
        return Folder(place / "best", _BEST, {})

    def seed(self) -> int | None:
        """The seed of the run whose checkpoint this is, if there is one."""
        if self.path is None or not self._folder().exists():
            return None
        seed = self._folder().read_settings()["fingerprint"].get("seed")
        return seed if isinstance(seed, int) else None

    def load(self, fingerprint: dict[str, Any]) -> Saved | None:
        """The state of a run that is unfinished or finished, or None if there is none.

        fingerprint:  what the run is (data, parameters, seed). A checkpoint of another is refused.
        """
        self.fingerprint = fingerprint
        if self.path is None or not self._folder().exists():
            return None
        settings, files = self._folder().read()
        theirs = settings["fingerprint"]
        ours = json.loads(json.dumps(fingerprint))
        differs = sorted(k for k in ours | theirs if ours.get(k) != theirs.get(k))
        if differs:
            raise ModelFileError(
                f"{self.path} belongs to another run (differs in {', '.join(differs)}); "
                "remove it or choose another checkpoint folder"
            )
        per_example = files.get("per_example", {}).get("values")
        return Saved(files.get("head", {}), files.get("noise", {}), per_example, settings["state"])

    def save(
        self, model: Model, state: dict[str, Any], per_example: torch.Tensor | None = None
    ) -> None:
        """Write the run as it stands. Call between steps only.

        per_example:  what the objective keeps for each example.
        """
        if self.path is None:
            return
        files = {"head": model.head.state()}
        if per_example is not None:
            files["per_example"] = {"values": per_example}
        # Training changes no noise: those that follow the head keep nothing of their own.
        keep: tuple[str, ...] = ("noise",)
        if not (self._has_noise and self._folder().exists()):
            files["noise"], keep = model.noise.state(), ()
        self._folder().write({"fingerprint": self.fingerprint, "state": state}, files, keep)
        self._has_noise = True
        self._written = time.monotonic()
        if self._signal is not None:
            raise Interrupted(self._signal, self.path)

    def due(self) -> bool:
        """Whether it is time to save: the interval has passed, or a signal asks to stop."""
        if self.path is None:
            return False
        return self._signal is not None or time.monotonic() - self._written > self.every_seconds

    def member(self, number: int) -> Checkpoint:
        """The checkpoint of a further model of the same run, in a folder within this one."""
        path = None if self.path is None else self.path / f"{_MEMBER}{number}"
        return Checkpoint(path, self.every_seconds)

    def remove(self) -> None:
        """Remove the checkpoint: the model has all of it."""
        if self.path is not None:
            for path in self.path.glob(f"{_MEMBER}*"):
                Checkpoint(path).remove()
            # In this order, because a checkpoint without its best head could not be resumed.
            self._folder().remove()
            self._best().remove()
            with suppress(OSError):  # not there, or others have files in it
                self.path.rmdir()

    def save_best(self, head: Head) -> None:
        self._best().write({}, {"head": head.state()})

    def load_best(self, head: Head, n_features: int) -> None:
        self._best().copy_into("head", head.state())
        head.validate(Tensors(head.state(), "best head"), head.n_classes, n_features)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM wait for the end of the step and a checkpoint; a second one does
        not wait. Without a folder, and outside the main thread, they act as usual."""
        if self.path is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

        def note(number: int, _: Any) -> None:
            self._signal = number
            for s, handler in old.items():
                signal.signal(s, handler)

        for s in old:
            signal.signal(s, note)
        try:
            yield
        finally:
            for s, handler in old.items():
                signal.signal(s, handler)
        if self._signal is not None:
            # It came after the last step was saved.
            raise Interrupted(self._signal, self.path)


class Interrupted(ExtremaxError, KeyboardInterrupt):
    """A run stopped by a signal, its checkpoint written."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name}; rerun the same command to resume from "
            f"{path}"
        )
        self.number = number
