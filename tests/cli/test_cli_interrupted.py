"""A training stopped in any way goes on to the bit-identical model, or leaves nothing."""

from __future__ import annotations

import resource
import signal
import subprocess

import numpy as np
import pytest

from extremax.model_files import read_model

# Without held-out rows no early stop ends the run before the signal comes.
OPTIONS = ["--epochs", "80", "--validation-fraction", "0", "--threads", "2"]


@pytest.fixture(scope="module")
def uninterrupted(run, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "m"
    labels = ("--labels", files.npy_labels)
    assert run("train", files.npy, "-o", folder, *labels, *OPTIONS, "-q").status == 0
    return read_model(folder)[1]


def stopped_after(line: str, number: signal.Signals, command: list[str]) -> tuple[int, str]:
    """Start a training, send it a signal once it has said the line; (status, what it said)."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for said_line in process.stderr:
        said.append(said_line)
        if said_line.startswith(line):
            process.send_signal(number)
            break
    said.append(process.stderr.read())
    return process.wait(), "".join(said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_same_command_goes_on_to_the_same_model(
    run, program, files, uninterrupted, tmp_path, number
):
    folder, checkpoint = tmp_path / "m", tmp_path / "c"
    train = ["train", str(files.npy), "-o", str(folder), "--labels", str(files.npy_labels)]
    train += [*OPTIONS, "--checkpoint", str(checkpoint)]
    status, said = stopped_after("epoch 3/", number, [*program, *train])
    assert not folder.exists()
    assert (checkpoint / "checkpoint.safetensors").exists()
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
    else:
        assert status == 128 + number
        assert said.splitlines()[-1] == (
            f"extremax: stopped by {number.name}; the same command goes on from "
            f"{checkpoint}/checkpoint.safetensors"
        )
    done = run(*train)
    assert done.status == 0
    assert "going on from" in done.err
    assert "epoch 1/" not in done.err
    found = read_model(folder)[1]
    assert found.keys() == uninterrupted.keys()
    for name, tensor in uninterrupted.items():
        assert np.array_equal(found[name].numpy(), tensor.numpy()), name
    assert not checkpoint.exists()


def test_without_a_checkpoint_nothing_is_left(program, files, tmp_path):
    train = ["train", str(files.npy), "-o", str(tmp_path / "m"), "--labels", str(files.npy_labels)]
    status, said = stopped_after("epoch 1/", signal.SIGTERM, [*program, *train, *OPTIONS])
    assert status == 143
    assert said.splitlines()[-1].startswith("extremax: stopped, nothing was saved; --checkpoint")
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_disk_full_while_saving_leaves_nothing_half_written(program, files, tmp_path):
    limit = 8192

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    options = ["--epochs", "1", "--validation-fraction", "0", "-q"]
    command = [*program, "train", str(files.npy), "-o", str(tmp_path / "m")]
    done = subprocess.run(
        [*command, "--labels", str(files.npy_labels), *options],
        capture_output=True, text=True, preexec_fn=little_room,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"extremax: could not write {tmp_path}/m/tensors.safetensors")
    assert "nothing was changed there" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
