"""``extremax compare``: the report, resuming, and options that are rejected."""

from __future__ import annotations

import csv
import shlex
import signal
import subprocess
import sys
from html import escape
from types import SimpleNamespace

import numpy as np
import pytest

from extremax.data import clustered

CELLS = "negative_sampling×tree,nce:uniform@3,exact"
QUICK = (
    "--budget", 0.2, "--learning-rates", "0.3,1", "--regularizations", "0",
    "--validation-fraction", 0.25, "--test-fraction", 0.25,
)  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    X, y = clustered(300, 10, 6, seed=3, noise=0.4)
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return folder


@pytest.fixture
def compare(rows):
    return ("compare", rows / "X.npy", "--labels", rows / "y.npy")


def test_one_command_writes_a_report(run, compare, tmp_path):
    out = tmp_path / "c"
    done = run(*compare, "-o", out, "--cells", f"{CELLS},negative_sampling×softmax", *QUICK)
    assert (done.status, done.out) == (0, "")
    messages = done.err
    assert "300 dense rows" in messages
    assert (
        "left out negative sampling × softmax: SoftmaxNoise changes as the head trains" in messages
    )
    plan = "3 cells: 2 settings tuned, 0.2 s for the final run; 1.2 s of training in total"
    assert plan in messages
    # How long the first cell takes is not known before it is done.
    assert "negative sampling × tree: compiling\n" in messages
    assert "negative sampling × tree: tuning, round 1 of 1 (0.1 s each); at least " in messages
    assert "exact: tuning, round 1 of 1 (0.1 s each); about " in messages
    assert "nce × uniform: final run" in messages
    assert messages.splitlines()[-1] == f"wrote {out / 'report.html'}"
    names = {p.name for p in out.iterdir()}
    assert {"report.html", "final.csv", "curves.csv", "tuning.csv", "log-likelihood.png"} <= names
    with open(out / "final.csv", newline="", encoding="utf-8") as file:
        final = list(csv.DictReader(file))
    assert {row["cell"]: row["n_negatives"] for row in final} == {
        "negative sampling × tree": "5", "nce × uniform": "3", "exact": "",
    }  # fmt: skip
    page = (out / "report.html").read_text(encoding="utf-8")
    for row in final:
        assert f"{float(row['log_likelihood']):.3f}".replace("-", "−") in page
        assert f"{100 * float(row['accuracy']):.2f}%" in page
    # The winner comes first, with a command that works.
    result = messages.splitlines().index(next(m for m in messages.splitlines() if "best: " in m))
    lines = messages.splitlines()[result:]
    trained = [row for row in final if row["start_kept"] == "False"]
    assert lines[0].startswith(f"best: {trained[0]['cell']}, log-likelihood ")
    command = shlex.split(lines[1])
    assert command[:2] == ["extremax", "train"]
    assert f"<pre>{escape(lines[1].strip())}</pre>" in page
    assert page.index("<pre>") < page.index("<table")
    command[command.index("-o") + 1] = str(tmp_path / "model")
    again = run(*command[1:])
    assert again.status == 0
    assert f"--learning-rate {float(trained[0]['learning_rate']):g} " in lines[1] + " "
    # Rerunning trains nothing and prints the same results.
    again = run(*compare, "-o", out, "--cells", CELLS, *QUICK)
    assert again.status == 0
    assert "tuning, round" not in again.err
    assert again.err.splitlines()[-6:] == messages.splitlines()[-6:]
    other = run(*compare, "-o", out, "--cells", CELLS, *QUICK, "--budget", 0.3)
    assert other.status == 2
    assert other.err.splitlines()[-1].startswith(f"extremax: {out} holds a different comparison")


def test_quiet_prints_nothing_and_a_test_file_is_used(run, files, tmp_path):
    out = tmp_path / "c"
    done = run(
        "compare", files.svm, "-o", out, "--cells", "nce×frequency", "--test", files.svm_test,
        "--components", 8, *QUICK[:6], "-q",
    )  # fmt: skip
    assert (done.status, done.out, done.err) == (0, "", "")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "1,200 rows" in page
    assert "300 test rows" in page


def test_a_test_file_of_other_classes_is_rejected_before_training(run, compare, rows, tmp_path):
    np.save(tmp_path / "y.npy", np.load(rows / "y.npy") + 100)
    done = run(
        *compare, "-o", tmp_path / "c", "--cells", "exact", *QUICK,
        "--test", rows / "X.npy", "--test-labels", tmp_path / "y.npy",
    )  # fmt: skip
    assert done.status == 2
    message = "extremax: no test row has a class of the training rows"
    assert done.err.splitlines()[-1].startswith(message)
    assert not (tmp_path / "c").exists()


def test_a_missing_likelihood_is_shown_as_unknown(tmp_path, monkeypatch, capsys):
    from extremax.cli.compare import report_result

    row = {"cell": "exact", "log_likelihood": None, "accuracy": 0.5, "start_kept": False}
    monkeypatch.setattr("extremax.report.page.write_report", lambda *_: tmp_path / "report.html")
    monkeypatch.setattr("extremax.report.tables.final_rows", lambda _: [row])
    result = SimpleNamespace(final=[row], failed=[], left_out=[])
    report_result(result, tmp_path, "extremax train", quiet=False)
    shown = capsys.readouterr().err
    assert "exact  log-likelihood unknown, accuracy 50.00%" in shown
    assert shown.startswith("best: exact, log-likelihood unknown")
    report_result(result, tmp_path, None, quiet=False)
    assert "no cell improved on its start" in capsys.readouterr().err


def test_a_stopped_comparison_can_be_resumed(program, rows, tmp_path):
    command = [
        *program, "compare", rows / "X.npy", "--labels", rows / "y.npy", "-o", tmp_path / "c",
        "--cells", "nce×uniform,nce×frequency", *QUICK, "--budget", 1,
    ]  # fmt: skip
    command = [str(part) for part in command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("nce × frequency: tuning"):
            process.send_signal(signal.SIGTERM)
            break
    rest = process.stderr.read()
    assert process.wait() == 143
    last = f"extremax: stopped; rerun the same command to resume from {tmp_path / 'c'}"
    assert rest.splitlines()[-1] == last
    assert "Traceback" not in rest
    finished = len(list((tmp_path / "c" / "runs").rglob("*.json")))
    assert finished >= 3
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert "nce × uniform: tuning" not in done.stderr
    assert len(list((tmp_path / "c" / "runs").rglob("*.json"))) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cells", "nosuch×tree"], "--cells: unknown objective"),
        (["--cells", "nce×nosuch"], "cells: unknown noise"),
        (["--cells", "negative_sampling×softmax"], "cells: nothing to compare"),
        (["--budget", "0"], "--budget must be > 0"),
        (["--tuning", "-1"], "--tuning must be > 0"),
        (["--learning-rates", "a"], "--learning-rates must be a list of numbers such as 0.1,1"),
        (["--learning-rates", "0"], "--learning-rates must be > 0"),
        (["--regularizations", "-1"], "--regularizations must be a list of numbers"),
        (["--weight-decays", "a"], "--weight-decays must be a list of numbers"),
        (["--validation-fraction", "0"], "--validation-fraction must be in (0, 1)"),
        (["--test-fraction", "1"], "--test-fraction must be in (0, 1)"),
        (["--test-fraction", "0.01"], "can be held out for the test"),
        (["--validation-fraction", "0.01"], "can be held out for tuning"),
        (["--test", "nosuch.npy"], "no such file"),
        (["--test-labels", "y.npy"], "--test-labels needs --test"),
        (["--components", "8"], "--components applies to sparse rows and texts"),
        (["--seed", "-1"], "--seed must be at least 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_options_are_rejected_in_one_line(run, compare, tmp_path, options, message):
    done = run(*compare, "-o", tmp_path / "c", "--cells", "exact", *QUICK, *options)
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith("extremax: ")
    assert message in done.err.splitlines()[-1]
    assert not (tmp_path / "c").exists()


def test_a_folder_with_other_files_is_rejected_before_reading(run, compare, tmp_path):
    (tmp_path / "notes").touch()
    done = run(*compare, "-o", tmp_path)
    assert done.status == 2
    assert done.err == (
        f"extremax: {tmp_path} is not empty and holds no comparison; choose a new or empty folder\n"
    )


def test_without_matplotlib_it_is_rejected_before_reading(run, compare, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run(*compare, "-o", tmp_path / "c")
    assert done.status == 2
    assert "need matplotlib" in done.err
