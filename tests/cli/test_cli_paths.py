"""Paths: outputs are checked before any work, inputs may be pipes, and foreign files stay."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def nothing_is_read(monkeypatch):
    """Fail as soon as a command begins to work."""

    def read(*_, **__):
        raise AssertionError("the command has begun to work")

    for name in ("extremax.data.read", "extremax.data.read_blocks", "extremax.ExtremeClassifier"):
        monkeypatch.setattr(name, read)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("train", "--output"),
        ("train", "--checkpoint"),
        ("train", "--picture"),
        ("predict", "--output"),
        ("diagnose", "--picture"),
        ("compare", "--out"),
    ],
)
def test_outputs_are_checked_before_any_work(
    run, files, tmp_path, nothing_is_read, command, option
):
    (tmp_path / "file").write_text("kept")
    model = (tmp_path / "m",) if command in ("predict", "diagnose") else ()
    needed = ("-o", tmp_path / "new") if command == "train" and option != "--output" else ()
    start = (command, *model, files.svm, *needed, option)
    through = tmp_path / "file" / "x.png"
    done = run(*start, through)
    assert (done.status, done.err) == (
        2,
        f"extremax: {through} cannot be created, because {tmp_path}/file is a file ({option})\n",
    )
    wrong = tmp_path if option == "--picture" or command == "predict" else tmp_path / "file"
    expected = "folder" if wrong.is_file() else "file"
    done = run(*start, wrong)
    assert done.status == 2
    assert done.err.endswith(f"; {option} must be a {expected}\n")
    empty = run(*start, "")
    assert empty.status == 2
    assert "must not be empty" in empty.err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_manifest_of_somebody_else_is_never_replaced(
    run, files, tmp_path, nothing_is_read, force
):
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    before = contents(tmp_path)
    done = run("train", files.svm, "-o", tmp_path, *force)
    assert done.status == 2
    assert "manifest.json was not written by extremax" in done.err
    assert contents(tmp_path) == before


def test_files_of_somebody_else_stay(run, files, tmp_path):
    model, checkpoint = tmp_path / "m", tmp_path / "c"
    for folder in (model, checkpoint, checkpoint / "best"):
        folder.mkdir()
        for name in ("notes", "best.safetensors", "head.0123456789abcdef.safetensors"):
            (folder / name).write_text("mine")
    before = contents(tmp_path)
    options = ("--components", 8, "--epochs", 2, "-q", "--checkpoint", checkpoint)
    assert run("train", files.svm, "-o", model, *options).status == 0
    assert before.items() <= contents(tmp_path).items()
    assert run("train", files.svm, "-o", model, *options, "--force").status == 0
    assert before.items() <= contents(tmp_path).items()
    assert run("info", model).status == 0


def test_a_pipe_is_read_once_if_its_format_is_known(run, files, sparse_model, tmp_path):
    expected = run("predict", sparse_model, files.svm_test, "-k", 1).out

    def feed(path: Path) -> None:
        path.write_text(files.svm_test.read_text())

    for name, options in (("a.svm", ()), ("a.txt", ("--format", "svmlight"))):
        pipe = tmp_path / name
        os.mkfifo(pipe)
        writer = threading.Thread(target=feed, args=(pipe,), daemon=True)
        writer.start()
        assert run("predict", sparse_model, pipe, "-k", 1, *options).out == expected
        writer.join()


def test_a_pipe_of_unknown_format_is_refused(run, sparse_model, tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    done = run("predict", sparse_model, tmp_path / "a.txt")
    assert done.status == 2
    assert "matches no format; pass --format with one of npy, " in done.err


def test_a_plan_needs_a_file_and_not_a_pipe(run, tmp_path):
    os.mkfifo(tmp_path / "a.svm")
    done = run("plan", tmp_path / "a.svm")
    assert done.status == 2
    assert "give a file, not a pipe" in done.err


def test_standard_input(program, run, files, sparse_model):
    expected = run("predict", sparse_model, files.svm_test, "-k", 1).out
    command = [*program, "predict", str(sparse_model), "-", "-k", "1"]
    with files.svm_test.open() as rows:
        done = subprocess.run(command, stdin=rows, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pass --format with one of" in done.stderr
    with files.svm_test.open() as rows:
        command += ["--format", "svmlight"]
        done = subprocess.run(command, stdin=rows, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected)
