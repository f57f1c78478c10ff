"""Errors of the user are one line; errors in the package keep their traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from extremax.cli.errors import Stopped, explain
from extremax.errors import ArgumentError, DataError, DivergedError, MemoryBudgetError


@pytest.mark.parametrize(
    ("error", "line", "status"),
    [
        (DataError("bad", "a.svm", 3, 7), "a.svm:3:7: bad", 2),
        (DivergedError("NaN at step 3"), "NaN at step 3", 2),
        (MemoryBudgetError("one row needs 9 bytes"), "one row needs 9 bytes", 2),
        (ArgumentError("epochs must be"), "epochs must be", 2),
        (OSError(28, "No space left on device", "m/x"), "m/x: No space left on device", 2),
        (OSError(5, "Input/output error"), "Input/output error", 2),
        (KeyboardInterrupt(), "interrupted", 130),
        (Stopped(15), "stopped by SIGTERM", 143),
        (BrokenPipeError(32, "Broken pipe"), "", 141),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_of_the_user_are_explained(error, line, status, capfd):
    assert explain(error) == (line, status)


def test_running_out_of_memory_points_to_plan():
    for error in (
        MemoryError("Unable to allocate 3 TiB"),
        RuntimeError("can't allocate memory"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ):
        line, status = explain(error) or ("", 0)
        assert status == 2
        assert line.startswith("not enough memory (")
        assert "extremax plan" in line


@pytest.mark.parametrize(
    "error", [RuntimeError("bug"), ValueError("bug"), KeyError("x"), AssertionError()]
)
def test_errors_in_the_package_are_not_hidden(error):
    assert explain(error) is None


def test_a_malformed_value_is_reported_with_its_position(run, write, tmp_path):
    file = write("a.svm", "1 1:1\n2 2:0.5 3:x\n")
    done = run("train", file, "-o", tmp_path / "m")
    assert (done.status, done.out) == (2, "")
    assert done.err == f"extremax: {file}:2:11: value 'x' is not a finite number in float32\n"
    with pytest.raises(DataError):
        run("--traceback", "train", file, "-o", tmp_path / "m")


def test_a_real_process_shows_one_red_line_and_no_traceback(program, tmp_path):
    command = [*program, "info", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (f"extremax: {tmp_path}/none does not exist\n")


def test_red_only_on_a_terminal(monkeypatch, capsys):
    from extremax.cli import console

    monkeypatch.setattr(console, "color", lambda: True)
    console.print_error("two\nlines")
    assert capsys.readouterr().err == "\x1b[31mextremax: two lines\x1b[0m\n"
    monkeypatch.undo()
    monkeypatch.setenv("NO_COLOR", "1")
    console.print_error("plain")
    assert capsys.readouterr().err == "extremax: plain\n"


def test_missing_files_and_folders(run, tmp_path):
    done = run("train", tmp_path / "none.svm", "-o", tmp_path / "m")
    assert (done.status, done.err) == (2, f"extremax: {tmp_path}/none.svm: no such file\n")
    (tmp_path / "f").touch()
    done = run("train", tmp_path / "none.svm", "-o", tmp_path / "f")
    assert "is a file; --output must be a folder" in done.err


def test_no_memory_anywhere_is_one_line(run, files, tmp_path, monkeypatch):
    def read(*_, **__):
        raise MemoryError

    monkeypatch.setattr("extremax.data.read", read)
    done = run("train", files.svm, "-o", tmp_path / "m")
    assert done.status == 2
    assert done.err.startswith("extremax: not enough memory; run `extremax plan`")
    assert len(done.err.splitlines()) == 1


def test_a_closed_standard_output_is_an_error(program, sparse_model, files):
    for command in (["info", sparse_model], ["predict", sparse_model, files.svm_test]):
        line = " ".join(f"'{part}'" for part in [*program, *command])
        done = subprocess.run(f"{line} >&-", shell=True, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (2, "extremax: standard output: it is closed\n")


def test_a_closed_standard_error_is_none(program, files, tmp_path):
    command = [*program, "train", files.svm, "-o", tmp_path / "m", "--epochs", "1"]
    line = " ".join(f"'{part}'" for part in command)
    assert subprocess.run(f"{line} 2>&-", shell=True).returncode == 0
    assert (tmp_path / "m").is_dir()


def test_misuse_shows_the_usage(run):
    done = run("train", "a.svm")
    assert done.status == 2
    assert "--output" in done.err
    assert "Usage: extremax train" in done.err
    assert run("predict", "m", "f", "-k", "0").status == 2
    version = run("--version")
    assert version.status == 0
    assert version.out.startswith("extremax ")


DEAF = """
import os, signal, time
import typer
from extremax.cli import errors

errors._AGAIN_SECONDS = 0.05
app = typer.Typer(cls=errors.Commands)

class Deaf:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

@app.command()
def run():
    Deaf()
    time.sleep(60.0)

@app.command()
def other(): ...

app(["run"])
"""


def test_a_signal_that_a_destructor_swallows_still_stops():
    ended = subprocess.run([sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 143
    assert ended.stderr.splitlines()[-1] == "extremax: stopped by SIGTERM"
