"""A stopped training run resumes to the bit-identical model, or leaves nothing behind."""

from __future__ import annotations

import resource
import signal
import subprocess

import numpy as np
import pytest

from extremax.storage.folder import MANIFEST, model_folder

# Without held-out rows no early stop can end the run before the signal.
OPTIONS = ["--epochs", "80", "--validation-fraction", "0", "--threads", "2"]


@pytest.fixture(scope="module")
def uninterrupted(run, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "m"
    labels = ("--labels", files.npy_labels)
    assert run("train", files.npy, "-o", folder, *labels, *OPTIONS, "-q").status == 0
    return model_folder(folder).read()[1]


def stopped_after(line: str, number: signal.Signals, command: list[str]) -> tuple[int, str]:
    """Start a training run and send it a signal after the line; return (status, stderr)."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    printed = []
    for printed_line in process.stderr:
        printed.append(printed_line)
        if printed_line.startswith(line):
            process.send_signal(number)
            break
    printed.append(process.stderr.read())
    return process.wait(), "".join(printed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_same_command_resumes_to_the_same_model(
    run, program, files, uninterrupted, tmp_path, number
):
    folder, checkpoint = tmp_path / "m", tmp_path / "c"
    train = ["train", str(files.npy), "-o", str(folder), "--labels", str(files.npy_labels)]
    train += [*OPTIONS, "--checkpoint", str(checkpoint)]
    status, stderr = stopped_after("epoch 3/", number, [*program, *train])
    assert not folder.exists()
    assert (checkpoint / MANIFEST).exists()
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
    else:
        assert status == 128 + number
        assert stderr.splitlines()[-1] == (
            f"extremax: stopped by {number.name}; rerun the same command to resume from "
            f"{checkpoint}"
        )
    done = run(*train)
    assert done.status == 0
    assert "resuming from" in done.err
    assert "epoch 1/" not in done.err
    resumed = model_folder(folder).read()[1]
    assert resumed.keys() == uninterrupted.keys()
    for part, tensors in uninterrupted.items():
        assert resumed[part].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert np.array_equal(resumed[part][name].numpy(), tensor.numpy()), name
    assert not checkpoint.exists()


def test_without_a_checkpoint_nothing_is_left(program, files, tmp_path):
    train = ["train", str(files.npy), "-o", str(tmp_path / "m"), "--labels", str(files.npy_labels)]
    status, stderr = stopped_after("epoch 1/", signal.SIGTERM, [*program, *train, *OPTIONS])
    assert status == 143
    last = "extremax: stopped, nothing was saved; use --checkpoint DIR"
    assert stderr.splitlines()[-1].startswith(last)
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_partial_model(program, files, tmp_path):
    limit = 8192

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    options = ["--epochs", "1", "--validation-fraction", "0", "-q"]
    command = [*program, "train", str(files.npy), "-o", str(tmp_path / "m")]
    done = subprocess.run(
        [*command, "--labels", str(files.npy_labels), *options],
        capture_output=True, text=True, preexec_fn=limit_file_size,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"extremax: could not write {tmp_path}/m: ")
    assert "no version that was saved there is damaged" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
