"""Files that commands read: tables with named columns, several files, standard input."""

from __future__ import annotations

import csv
import gzip
import json

import pytest
from typer.testing import CliRunner

from extremax.cli import app


def rows(file) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text().splitlines()]


def labels(predictions: str) -> list[list[str]]:
    return [line.split("\t")[::2] for line in predictions.splitlines()]


@pytest.fixture(scope="module")
def tables(files, tmp_path_factory):
    """The rows of the tsv files as csv, with other names and one more column."""
    folder = tmp_path_factory.mktemp("tables")
    for name, file in (("a.csv", files.tsv), ("t.csv", files.tsv_test)):
        with open(folder / name, "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["id", "title", "subject"])
            writer.writerows([i, text, label] for i, (label, text) in enumerate(rows(file)))
    return folder


COLUMNS = ("--text-column", "title", "--label-column", "subject")
QUICK = ("--components", 32, "--noise", "tree", "--epochs", 5, "--quiet")


def test_a_table_trains_the_model_of_its_texts(run, files, tables, text_model, tmp_path):
    assert run("train", tables / "a.csv", "-o", tmp_path / "m", *COLUMNS, *QUICK).status == 0
    expected = run("predict", text_model, files.tsv_test).out
    done = run("predict", tmp_path / "m", tables / "t.csv", "--text-column", "title")
    assert (done.status, done.err, done.out) == (0, "", expected)
    figures = run("evaluate", text_model, files.tsv_test, "--json").out
    assert run("evaluate", tmp_path / "m", tables / "t.csv", *COLUMNS, "--json").out == figures


def test_a_missing_column_names_the_flag(run, tables, tmp_path):
    train = ("train", tables / "a.csv", "-o", tmp_path / "m")
    done = run(*train, "--label-column", "subject")
    assert done.status == 2
    assert done.err == (
        f"extremax: {tables / 'a.csv'}:1: no column 'text'; pass the column of texts as "
        "--text-column, one of: id, title, subject\n"
    )
    done = run(*train, "--text-column", "title")
    assert "pass the column of labels as --label-column, one of: id," in done.err


def test_several_files_and_a_pattern(run, files, text_model, tmp_path):
    lines = files.tsv_test.read_text().splitlines(keepends=True)
    (tmp_path / "p-1.tsv").write_text("".join(lines[:20]))
    (tmp_path / "p-2.tsv.gz").write_bytes(gzip.compress("".join(lines[20:]).encode()))
    expected = labels(run("predict", text_model, files.tsv_test).out)
    figures = json.loads(run("evaluate", text_model, files.tsv_test, "--json").out)
    for given in ((tmp_path / "p-*",), (tmp_path / "p-1.tsv", tmp_path / "p-2.tsv.gz")):
        assert labels(run("predict", text_model, *given).out) == expected
        found = json.loads(run("evaluate", text_model, *given, "--json").out)
        assert found["accuracy"] == figures["accuracy"]
        # The last bit of a sum may depend on the other rows of its block.
        assert found["log_likelihood"] == pytest.approx(figures["log_likelihood"], rel=1e-5)
    done = run("train", tmp_path / "p-*", "-o", tmp_path / "m", "--epochs", 1, "--components", 8)
    assert f"read {tmp_path / 'p-*'} (2 files): 50 texts in " in done.err
    done = run("predict", text_model, tmp_path / "q-*")
    assert (done.status, done.err) == (
        2, f"extremax: {tmp_path / 'q-*'}: no file matches this pattern\n",
    )  # fmt: skip


def test_errors_name_the_row_in_its_own_file(run, files, sparse_model, write):
    good, bad = write("a.svm", "1 1:1\n2 2:1\n"), write("b.svm", "1 1:1\n2 99:1\n")
    done = run("predict", sparse_model, good, bad)
    assert done.status == 2
    assert f"{bad}: row 2 has a value for feature 99" in done.err


def test_standard_input_and_output(run, files, text_model, tmp_path, monkeypatch):
    """Train, evaluate and predict read ``-``, and predict writes to it."""

    def piped(*command: object) -> str:
        file = files.tsv if command[0] == "train" else files.tsv_test
        line = [*map(str, command), "-", "--format", "tsv"]
        done = CliRunner().invoke(app, line, input=file.read_text())
        assert done.exit_code == 0, done.stderr
        return done.stdout

    monkeypatch.chdir(tmp_path)
    piped("train", "-o", "m", *QUICK)
    assert json.loads(piped("evaluate", "m", "--json"))["rows"] == 50
    expected = run("predict", text_model, files.tsv_test).out
    assert piped("predict", "m", "-o", "-") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
