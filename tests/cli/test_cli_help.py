"""Help: options in panels, nothing cut off in 80 columns; completion; flags in messages."""

from __future__ import annotations

import os
import subprocess

import pytest
import typer

from extremax.cli import app
from extremax.cli.errors import explain
from extremax.errors import ArgumentError

GROUP = typer.main.get_command(app)
OPTIONS = {
    (name, parameter.name): parameter
    for name, command in GROUP.commands.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and parameter.name != "help"
}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.parametrize("command", ["", *GROUP.commands])
def test_nothing_is_cut_off_in_80_columns(run, narrow, command):
    shown = run(*filter(None, [command]), "--help")
    assert shown.status == 0
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in shown.out.replace("N,N,…", "")
    if not command:
        text = " ".join(shown.out.replace("│", " ").split())
        for name, one in GROUP.commands.items():
            first = (one.help or "").split("\n")[0]
            assert f"{name} {first}" in text


def test_train_shows_what_is_needed_first(run, narrow):
    lines = run("train", "--help").out.splitlines()
    panels = [line.strip("╭─╮ ") for line in lines if line.startswith("╭")]
    assert panels == [
        "Arguments", "Options", "Reading FILE", "Texts", "Training", "Method",
        "Details of the method", "Running",
    ]  # fmt: skip
    first = next(i for i, line in enumerate(lines) if "Options ─" in line)
    assert "--output" in lines[first + 1]


def test_usage_errors_are_plain(run):
    done = run("predict", "m", "f", "-k", "0")
    assert done.status == 2
    assert done.err.splitlines()[-1] == "Error: Invalid value for '-k': must be at least 1, got 0"


def test_completion_offers_the_choices_of_an_option(program, run):
    assert "--install-completion" in run("--help").out
    words = {"COMP_WORDS": "extremax train --keep-labels ", "COMP_CWORD": "3"}
    done = subprocess.run(
        [program[0], "-c", "from extremax.cli import app; app(prog_name='extremax')"],
        env=os.environ | words | {"_EXTREMAX_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["first", "smallest", "all"], done.stderr


@pytest.mark.parametrize(("command", "name"), OPTIONS, ids=lambda value: value)
def test_messages_name_the_flag_of_every_option(command, name):
    """What the library says of a parameter, the command line says of its flag."""
    if name in ("seed", "as_json"):  # a parameter of noises as well; no parameter of the library
        return
    parameter = OPTIONS[command, name]
    flag = max((*parameter.opts, *parameter.secondary_opts), key=len)
    message = f"{name} must be right; pass {name}='x', or omit {name}=."
    told = explain(ArgumentError(message), GROUP.flags(command))
    assert told == (f"{flag} must be right; pass {flag} x, or omit {flag}.", 2)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("random_state must be at least 0", "--seed must be at least 0"),
        ("n_jobs must be an integer", "--threads must be an integer"),
        ("a learning_rate that is too large", "a --learning-rate that is too large"),
        ("learning_rate/a.svm: no such file", "learning_rate/a.svm: no such file"),
        ("x/text_column.csv: no such file", "x/text_column.csv: no such file"),
        ("label_column.csv:1: bad", "label_column.csv:1: bad"),
        ("the labels of both start in epochs", "the labels of both start in epochs"),
        ("calibrate needs rows: validation_fraction must be > 0",
         "--calibrate needs rows: --validation-fraction must be > 0"),
        ("pass zero_based=True", "pass --zero-based"),
        ("pass one of format=npy, xc", "pass --format with one of npy, xc"),
        ("use search='exact'", "omit --beam"),
        ("seed must be an integer", "seed must be an integer"),
    ],
)  # fmt: skip
def test_only_parameters_become_flags(message, shown):
    assert explain(ArgumentError(message), GROUP.flags("train")) == (shown, 2)


@pytest.mark.parametrize(
    ("command", "content", "options", "flag"),
    [
        ("train", "1 0:1\n", (), "--zero-based"),
        ("train", "1 1:1\n", ("--label-column", "a"), "--label-column applies to parquet, csv and"),
        ("train", "1 1:1\n", ("--labels", "FILE"), "--labels applies to npy and npz"),
        ("train", "1 1:1\n", ("--weight-decay", 1), "use --objective exact"),
        ("train", "1 1:1\n", ("--format", "doc"), "choose one of npy"),
        ("train", "1 1:1\n", ("--max-seconds", 0), "--max-seconds must be None or > 0"),
        ("train", "1 1:1\n", ("--n-models", 10**9), "--n-models must be an integer from 1 to"),
        ("train", "1 1:1\n", ("--n-negatives", 10**9), "--n-negatives must be an integer from 1"),
        ("compare", "1 1:1\n", ("--test-fraction", 2), "--test-fraction must be in (0, 1)"),
        ("compare", "1 1:1\n", ("--learning-rates", "0"), "--learning-rates must be > 0"),
        ("compare", "1 1:1\n", ("--budget", 0), "--budget must be > 0"),
        ("compare", "1 1:1\n", ("--cells", "x"), "--cells: unknown objective 'x'"),
    ],
)
def test_errors_of_the_library_name_flags(run, write, tmp_path, command, content, options, flag):
    file = write("a.svm", content)
    given = [file if option == "FILE" else option for option in options]
    done = run(command, file, "-o", tmp_path / "m", *given)
    assert done.status == 2
    assert flag in done.err
