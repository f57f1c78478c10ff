"""Writers that are killed, and readers beside a writer: a folder always holds one whole model."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data import clustered

REPEATS = 12


def two_models() -> list[ExtremeClassifier]:
    """Of different sizes, and with noises that have different files."""
    X, y = clustered(300, 12, 5, seed=0)
    settings = {"epochs": 1, "n_jobs": 1, "random_state": 0}
    return [
        ExtremeClassifier(noise="tree", **settings).fit(X, y),
        ExtremeClassifier(noise="frequency", **settings).fit(X[:, :3], [f"{v}" for v in y]),
    ]


def which(loaded: ExtremeClassifier, models: list[ExtremeClassifier]) -> int:
    """The number of the model that this is, in every part."""
    for number, model in enumerate(models):
        if type(loaded.model_.noise) is type(model.model_.noise):
            for part in ("head", "noise"):
                ours, theirs = (getattr(m.model_, part).state() for m in (loaded, model))
                assert ours.keys() == theirs.keys()
                assert all(torch.equal(ours[name], theirs[name]) for name in ours)
            assert loaded.classes_.tolist() == model.classes_.tolist()
            return number
    raise AssertionError("neither of the two")


def save_in_turn(models: list[ExtremeClassifier], folder: Path, stop: threading.Event) -> int:
    n_saved = 0
    while not stop.is_set():
        models[n_saved % 2].save(folder)
        n_saved += 1
    return n_saved


def main(folder: Path) -> None:
    """Read beside a writer and kill it, again and again, in a process that may fork."""
    models, rng = two_models(), random.Random(0)
    models[0].save(folder)
    for _ in range(REPEATS):
        child = os.fork()
        if child == 0:
            save_in_turn(models, folder, threading.Event())
        try:
            end = time.monotonic() + rng.uniform(0.02, 0.25)
            while time.monotonic() < end:
                which(ExtremeClassifier.load(folder), models)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        print(which(ExtremeClassifier.load(folder), models), len(list(folder.iterdir())))
    models[1].save(folder)
    print(which(ExtremeClassifier.load(folder), models), len(list(folder.iterdir())))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_before_and_after_a_writer_is_killed_one_of_the_models_is_there(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", __file__, str(tmp_path / "model")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    *repeats, last = [tuple(map(int, line.split())) for line in result.stdout.splitlines()]
    assert len(repeats) == REPEATS
    # A manifest and four files; the next writer clears away what others left.
    assert last == (1, 5)


def test_a_reader_beside_a_writer_is_never_refused(tmp_path: Path) -> None:
    models, stop, counts = two_models(), threading.Event(), []
    models[0].save(tmp_path)
    writer = threading.Thread(target=lambda: counts.append(save_in_turn(models, tmp_path, stop)))
    writer.start()
    seen = []
    try:
        end = time.monotonic() + 1.0
        while time.monotonic() < end or len(set(seen)) < 2:
            seen.append(which(ExtremeClassifier.load(tmp_path), models))
    finally:
        stop.set()
        writer.join()
    assert counts[0] > 1
    assert len(list(tmp_path.iterdir())) == 5


if __name__ == "__main__":
    main(Path(sys.argv[1]))
