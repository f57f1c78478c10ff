"""Runs that end early: by a signal that waits, by one that does not, or by a full disk."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.training.checkpoint import Checkpoint, Interrupted

X, Y = clustered(2000, 30, 8, seed=0)
STEPS_PER_EPOCH = 57


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(
        **{"epochs": 4, "n_negatives": 5, "n_jobs": 1, "random_state": 0} | parameters
    )


def assert_same(first: ExtremeClassifier, second: ExtremeClassifier) -> None:
    for part in ("head", "noise"):
        ours, theirs = (getattr(model.model_, part).state() for model in (first, second))
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    histories = [
        [{k: v for k, v in record.items() if k != "seconds"} for record in model.history_]
        for model in (first, second)
    ]
    assert histories[0] == histories[1]


def saved_state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["state"]


def deliver(number: int) -> None:
    """Call the handler of a signal, as Python does when one arrives. The signal itself would reach
    whoever runs the tests if nobody handled it; `ended` sends real ones to other processes."""
    handler = signal.getsignal(number)
    assert callable(handler)
    handler(number, None)


CHECKPOINT = ["best", "head.safetensors", "manifest.json", "noise.safetensors"]


def files(folder: Path) -> list[str]:
    """Names without the checksums in them."""
    return sorted(re.sub(r"\.[0-9a-f]{16}\.", ".", path.name) for path in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_step(
    tmp_path: Path, at_step: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    at_step(STEPS_PER_EPOCH + 20, lambda: deliver(number))
    with pytest.raises(Interrupted, match=f"stopped by {number.name}; .* resume from") as raised:
        small().fit(X, Y, checkpoint=tmp_path)
    assert isinstance(raised.value, KeyboardInterrupt)
    assert raised.value.number == number
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    state = saved_state(tmp_path)
    assert (state["epoch"], state["step"], state["finished"]) == (1, 20, False)
    monkeypatch.undo()
    assert_same(small().fit(X, Y, checkpoint=tmp_path), small().fit(X, Y))


def test_a_second_signal_does_not_wait(tmp_path: Path, at_step: Any) -> None:
    def twice() -> None:
        deliver(signal.SIGINT)
        deliver(signal.SIGINT)

    at_step(80, twice)
    with pytest.raises(KeyboardInterrupt) as raised:
        small().fit(X, Y, checkpoint=tmp_path)
    assert not isinstance(raised.value, Interrupted)


def test_without_a_checkpoint_a_signal_acts_as_ever(at_step: Any) -> None:
    at_step(20, lambda: deliver(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as raised:
        small().fit(X, Y)
    assert not isinstance(raised.value, Interrupted)


def test_a_signal_after_the_last_save_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Checkpoint.save

    def save_then_signal(
        self: Checkpoint, model: Any, state: dict[str, Any], per_example: Any
    ) -> None:
        save(self, model, state, per_example)
        if state["finished"]:
            deliver(signal.SIGTERM)

    monkeypatch.setattr(Checkpoint, "save", save_then_signal)
    with pytest.raises(Interrupted):
        small().fit(X, Y, checkpoint=tmp_path)
    monkeypatch.undo()
    assert_same(small().fit(X, Y, checkpoint=tmp_path), small().fit(X, Y))


@pytest.mark.parametrize("cell", [("augment_reduce_probit", "frequency"), ("nce", "quadratic")])
def test_what_is_kept_for_examples_and_noises_resumes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: tuple[str, str]
) -> None:
    def model() -> ExtremeClassifier:
        return small().set_params(objective=cell[0], noise=cell[1])

    class Killed(BaseException):
        pass

    def die(record: dict[str, Any]) -> None:
        if record["epoch"] == 3:
            raise Killed

    with pytest.raises(Killed):
        model().fit(X, Y, checkpoint=tmp_path, callback=die)
    assert saved_state(tmp_path)["epoch"] == 2
    assert_same(model().fit(X, Y, checkpoint=tmp_path), model().fit(X, Y))


def test_off_the_main_thread_signals_are_left_alone(tmp_path: Path) -> None:
    results: list[ExtremeClassifier] = []
    thread = threading.Thread(target=lambda: results.append(small().fit(X, Y, checkpoint=tmp_path)))
    thread.start()
    thread.join()
    assert_same(results[0], small().fit(X, Y))


def test_a_death_between_best_head_and_checkpoint_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die_in_the_third(self: Any, model: Any, state: dict[str, Any], per_example: Any) -> None:
        if state["epoch"] == 3:
            raise Killed
        save(self, model, state, per_example)

    save = Checkpoint.save
    monkeypatch.setattr(Checkpoint, "save", die_in_the_third)
    with pytest.raises(Killed):
        small().fit(X, Y, checkpoint=tmp_path)
    assert (tmp_path / "best" / "manifest.json").exists()
    assert saved_state(tmp_path)["epoch"] == 2
    monkeypatch.undo()
    assert_same(small().fit(X, Y, checkpoint=tmp_path), small().fit(X, Y))


def fit_to_an_early_end(end: str, folder: Path) -> None:
    """A fit that does not get to its end; for a process of its own."""
    replace = os.replace

    def replace_or_die(source: Any, target: Any) -> None:
        if Path(target) == folder / "manifest.json":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    def callback(record: dict[str, Any]) -> None:
        if record["epoch"] != 2:
            return
        if end == "killed while writing":
            os.replace = replace_or_die
        elif end == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        elif end == "disk full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    small().fit(X, Y, checkpoint=folder, callback=callback)


# What ends a run: its exit code, its last words, the epochs saved, and files that stay behind.
ENDS: dict[str, tuple[int, str, int, int]] = {
    # A head that no manifest names, the folder with the manifest itself, and two locks; the noise
    # is the same as before.
    "killed while writing": (-signal.SIGKILL, "", 1, 4),
    "terminated": (1, "stopped by SIGTERM; rerun the same command to resume from", 2, 0),
    "disk full": (1, "File too large", 1, 0),
}


def main(folder: Path) -> None:
    """Bring a run to each of these ends, in a process of its own each, and print what it said."""
    results = {}
    for end in ENDS:
        (folder / end).mkdir()
        child = os.fork()
        if child == 0:
            try:
                fit_to_an_early_end(end, folder / end)
            except BaseException as error:
                os.write(2, str(error).encode())
                os._exit(1)
            os._exit(0)
        results[end] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(results))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int], str]:
    """The folder of each run, their exit codes and what they said."""
    folder = tmp_path_factory.mktemp("ended")
    command = [sys.executable, "-W", "ignore", __file__, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return folder, json.loads(result.stdout), result.stderr


@pytest.mark.parametrize("end", ENDS)
def test_what_another_process_left_is_finished_here(
    ended: tuple[Path, dict[str, int], str], end: str
) -> None:
    folder, codes, said = ended
    code, message, epochs_saved, n_left_behind = ENDS[end]
    folder = folder / end
    assert codes[end] == code, said
    assert message in said
    assert saved_state(folder)["epoch"] == epochs_saved
    assert len(files(folder)) == len(CHECKPOINT) + n_left_behind
    resumed = small().fit(X, Y, checkpoint=folder)
    assert_same(resumed, small().fit(X, Y))
    assert files(folder) == CHECKPOINT


if __name__ == "__main__":
    main(Path(sys.argv[1]))
