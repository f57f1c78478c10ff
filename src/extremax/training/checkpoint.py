"""Checkpoints: one file, written aside and renamed, so that it is whole or not there.

A run draws all its randomness from (seed, epoch, row), so the state of a run is its head, its
noise and a few counters: from any checkpoint it goes on to the bit-identical end.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from extremax.errors import ExtremaxError, ModelFileError
from extremax.files import copy_tensors, read_metadata, read_tensors, remove_strays, write_tensors
from extremax.head import LinearHead
from extremax.noise.base import Noise

_FORMAT = "extremax checkpoint 2"


class Checkpoint:
    """The checkpoint of one run in a folder; without a folder only the best head is kept, aside.

    fingerprint: what the run is (data, parameters, seed). A checkpoint of another run is refused.
    """

    def __init__(
        self, folder: str | Path | None, fingerprint: dict[str, Any], every_seconds: float = 60.0
    ) -> None:
        self.folder = Path(folder) if folder is not None else None
        self.path = self.folder / "checkpoint.safetensors" if self.folder else None
        self.fingerprint, self.every_seconds = fingerprint, every_seconds
        self._written = time.monotonic()
        self._signal: int | None = None
        self._aside: tempfile.TemporaryDirectory | None = None

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Tensors and state of an unfinished or finished run, or None if there is none."""
        if self.path is None or not self.path.exists():
            return None
        for path in (self.path, self._best_path()):
            remove_strays(path)
        tensors, meta = read_tensors(self.path)
        if meta.get("format") != _FORMAT:
            raise ModelFileError(f"{self.path} is not a checkpoint of extremax; use another folder")
        theirs = json.loads(meta["fingerprint"])
        ours = json.loads(json.dumps(self.fingerprint))
        differs = sorted(k for k in ours | theirs if ours.get(k) != theirs.get(k))
        if differs:
            raise ModelFileError(
                f"{self.path} belongs to another run (differs in {', '.join(differs)}); "
                "remove it or choose another checkpoint folder"
            )
        return tensors, json.loads(meta["state"])

    def save(
        self,
        head: LinearHead,
        noise: Noise,
        state: dict[str, Any],
        local: torch.Tensor | None = None,
    ) -> None:
        """Write the run as it stands. Call between steps only.

        local: what the objective keeps for each example.
        """
        if self.path is None:
            return
        tensors = {f"head.{k}": v for k, v in head.state().items()}
        tensors |= {f"noise.{k}": v for k, v in noise.state().items()}
        if local is not None:
            tensors["local"] = local
        meta = {
            "format": _FORMAT,
            "fingerprint": json.dumps(self.fingerprint),
            "state": json.dumps(state),
        }
        write_tensors(self.path, tensors, meta)
        self._written = time.monotonic()
        if self._signal is not None:
            raise Interrupted(self._signal, self.path)

    def due(self) -> bool:
        """Whether it is time to save: the interval has passed, or somebody wants to stop us."""
        if self.path is None:
            return False
        return self._signal is not None or time.monotonic() - self._written > self.every_seconds

    def _best_path(self) -> Path:
        # On disk rather than in memory: a second head would be a fifth of the peak.
        if self.folder is not None:
            return self.folder / "best.safetensors"
        if self._aside is None:
            self._aside = tempfile.TemporaryDirectory(prefix="extremax-")
        return Path(self._aside.name) / "best.safetensors"

    def close(self) -> None:
        """Remove what was kept aside."""
        if self._aside is not None:
            self._aside.cleanup()
            self._aside = None

    def save_best(self, head: LinearHead) -> None:
        write_tensors(self._best_path(), head.state(), {})

    def load_best(self, head: LinearHead) -> None:
        copy_tensors(self._best_path(), head.state())

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM wait for the end of the step and a checkpoint; a second one
        does not wait. Without a folder, and off the main thread, they act as ever."""
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


def saved_seed(folder: str | Path | None) -> int | None:
    """The seed of the run whose checkpoint lies in the folder, where there is one."""
    file = Checkpoint(folder, {})
    if file.path is None or not file.path.exists():
        return None
    meta = read_metadata(file.path)
    return json.loads(meta["fingerprint"])["seed"] if meta.get("format") == _FORMAT else None


class Interrupted(ExtremaxError, KeyboardInterrupt):
    """A run stopped by a signal, its checkpoint written."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name}; the same command goes on from {path}"
        )
        self.number = number
