"""``extremax predict``: line i is for row i, on stdout or in a file."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import read


def parsed(out: str) -> tuple[list[list[str]], np.ndarray]:
    """Labels and probabilities of TSV lines."""
    cells = [line.split("\t") for line in out.splitlines()]
    labels = [row[::2] for row in cells]
    return labels, np.array([[float(p) for p in row[1::2]] for row in cells])


def test_prints_the_best_classes_of_every_row(run, files, text_model):
    done = run("predict", text_model, files.tsv_test, "-k", 3)
    note = f"{files.tsv_test}: what precedes the first TAB of a line is its label, and ignored\n"
    assert (done.status, done.err) == (0, note)
    assert run("predict", text_model, files.tsv_test, "-k", 3, "-q").err == ""
    labels, probabilities = parsed(done.out)
    data = read(files.tsv_test)
    expected = ExtremeClassifier.load(text_model).predict_topk(data.features, 3)
    assert labels == expected.labels.tolist()
    np.testing.assert_allclose(probabilities, np.exp(expected.log_probs), rtol=1e-4)
    # The file contains the labels, and the classifier finds most of them.
    assert np.mean([row[0] == y for row, y in zip(labels, data.labels, strict=True)]) > 0.8


def test_predictions_do_not_depend_on_the_size_of_blocks(run, files, text_model, monkeypatch):
    whole = run("predict", text_model, files.tsv_test).out
    monkeypatch.setattr("extremax.cli.rows.ROWS", 7)
    labels, probabilities = parsed(run("predict", text_model, files.tsv_test).out)
    assert labels == parsed(whole)[0]
    np.testing.assert_allclose(probabilities, parsed(whole)[1], rtol=1e-4)


def test_json_lines_by_option_or_name(run, files, sparse_model, tmp_path):
    printed = run("predict", sparse_model, files.svm_test, "--jsonl", "-k", 2).out
    named = tmp_path / "p.jsonl"
    done = run("predict", sparse_model, files.svm_test, "-o", named, "-k", 2)
    assert (done.out, done.err) == ("", f"wrote 300 rows: {named}\n")
    assert named.read_text() == printed
    row = json.loads(printed.splitlines()[0])
    assert len(row["labels"]) == len(row["probabilities"]) == 2
    assert isinstance(row["labels"][0], int)
    tsv = run("predict", sparse_model, files.svm_test, "-o", named, "-k", 2, "--tsv", "-q")
    assert (tsv.out, tsv.err) == ("", "")
    assert named.read_text().splitlines()[0].split("\t")[::2] == [str(v) for v in row["labels"]]


def test_a_beam_as_wide_as_the_classes_finds_what_exact_search_finds(run, files, sparse_model):
    exact, _ = parsed(run("predict", sparse_model, files.svm_test, "-k", 1).out)
    wide, _ = parsed(run("predict", sparse_model, files.svm_test, "-k", 1, "--beam", 60).out)
    narrow, _ = parsed(run("predict", sparse_model, files.svm_test, "-k", 1, "--beam", 1).out)
    assert wide == exact
    assert narrow != exact


def test_a_beam_for_texts_that_stay_sparse(run, files, bag_model):
    usual, _ = parsed(run("predict", bag_model, files.tsv_test, "-k", 1).out)
    wide, _ = parsed(run("predict", bag_model, files.tsv_test, "-k", 1, "--beam", 30).out)
    assert wide == usual


def test_a_beam_needs_a_model_that_can_be_searched(run, files, tmp_path):
    options = ("--noise", "uniform", "--epochs", 1, "--components", 4, "-q")
    assert run("train", files.svm, "-o", tmp_path / "m", *options).status == 0
    done = run("predict", tmp_path / "m", files.svm_test, "--beam", 8)
    assert (done.status, done.out) == (2, "")
    assert "--beam needs a model that can be searched" in done.err
    assert "was trained with UniformNoise; omit --beam" in done.err


def test_narrow_sparse_rows_are_padded(run, write, sparse_model):
    # Only the second of twenty features is used; one row has no label.
    done = run("predict", sparse_model, write("a.svm", "2:1\n7 2:1 # labeled\n"), "-k", 1)
    assert done.status == 0
    first, second = done.out.splitlines()
    assert first == second


def test_wide_sparse_rows_are_rejected_with_their_position(run, write, sparse_model, monkeypatch):
    monkeypatch.setattr("extremax.cli.rows.ROWS", 2)
    file = write("a.svm", "1 2:1\n1 3:1\n1\n1 2:1 21:1\n")
    done = run("predict", sparse_model, file)
    assert done.status == 2
    # Earlier rows were predicted: data and errors do not mix.
    assert len(done.out.splitlines()) == 2
    assert done.err == (
        f"extremax: {file}: row 4 has a value for feature 21 (counted from 1), "
        "but the training data have 20 features\n"
    )


def test_a_file_of_another_kind_is_rejected(run, files, sparse_model, text_model, write):
    done = run("predict", sparse_model, files.tsv_test)
    assert done.status == 2
    assert "this file contains texts, but the training data are sparse rows" in done.err
    done = run("predict", text_model, files.svm_test)
    assert "this file contains sparse rows, but the training data are texts" in done.err


def test_dense_rows_of_another_width_are_rejected(run, files, tmp_path):
    options = ("--labels", files.npy_labels, "--epochs", 1, "-q")
    assert run("train", files.npy, "-o", tmp_path / "m", *options).status == 0
    np.save(tmp_path / "X.npy", np.zeros((3, 7), np.float32))
    done = run("predict", tmp_path / "m", tmp_path / "X.npy")
    assert done.status == 2
    assert done.err.startswith(f"extremax: {tmp_path}/X.npy: X has 7 features, but ")


def test_columns_of_parquet(run, files, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    X, y = np.load(files.npy), np.load(files.npy_labels)
    columns = {f"x{j}": X[:, j] for j in range(X.shape[1])} | {"kind": y}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    name = ("--label-column", "kind")
    options = ("-o", tmp_path / "m", "--epochs", 1, "-q", *name)
    assert run("train", tmp_path / "a.parquet", *options).status == 0
    done = run("predict", tmp_path / "m", tmp_path / "a.parquet", *name)
    assert (done.status, len(done.out.splitlines())) == (0, 1500)
    # Without the name, the labels are one feature too many.
    assert run("predict", tmp_path / "m", tmp_path / "a.parquet").status == 2


def test_blank_lines_of_a_text_are_rows(run, write, text_model):
    done = run("predict", text_model, write("a.tsv", "own3 mark3\n\nown4 mark4\n"), "-k", 1)
    labels, _ = parsed(done.out)
    assert (labels[0], labels[2], len(labels)) == (["class 3"], ["class 4"], 3)


def test_texts_without_labels_need_no_note(run, write, text_model):
    done = run("predict", text_model, write("a.tsv", "own3 mark3\n\tan empty label\n"), "-k", 1)
    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize("value", [np.nan, 3e38])
def test_a_row_that_cannot_be_scored_is_named(run, files, tmp_path, monkeypatch, value):
    options = ("--labels", files.npy_labels, "--epochs", 1, "-q")
    assert run("train", files.npy, "-o", tmp_path / "m", *options).status == 0
    X = np.load(files.npy)[:90]
    X[77, 4] = value
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr("extremax.cli.rows.ROWS", 64)
    done = run("predict", tmp_path / "m", tmp_path / "X.npy", "--jsonl")
    assert (done.status, len(done.out.splitlines())) == (2, 64)
    assert done.err.startswith(f"extremax: {tmp_path}/X.npy: ")
    assert "in row 78, column 5;" in done.err


@pytest.mark.parametrize("option", ["--beam", "-k", "--threads"])
def test_numbers_below_one_are_refused(run, files, sparse_model, option):
    done = run("predict", sparse_model, files.svm_test, option, -5)
    assert (done.status, done.out) == (2, "")
    assert f"'{option}': must be at least 1, got -5" in done.err


def test_more_threads_than_any_machine_has(program, run, files, sparse_model):
    command = [*program, "predict", str(sparse_model), str(files.svm_test), "-k", "1"]
    done = subprocess.run([*command, "--threads", "1000000"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("predict", sparse_model, files.svm_test, "-k", 1).out


def test_a_full_disk(run, files, sparse_model, tmp_path):
    done = run("predict", sparse_model, files.svm_test, "-o", "/dev/full")
    assert done.status == 2
    assert done.err == "extremax: /dev/full: No space left on device\n"
    missing = run("predict", sparse_model, files.svm_test, "-o", tmp_path / "no" / "p.tsv")
    assert missing.status == 2
    assert missing.err == f"extremax: {tmp_path / 'no'}: no such folder\n"


def test_an_error_half_way_leaves_no_file(run, write, sparse_model, tmp_path):
    file = write("a.svm", "1 2:1\n1 2:x\n")
    done = run("predict", sparse_model, file, "-o", tmp_path / "p.tsv")
    assert done.status == 2
    assert done.err.startswith(f"extremax: {file}:2:5: ")
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


def test_a_terminal_shows_the_count_and_the_file_gets_the_data(
    run, program, sparse_model, write, tmp_path
):
    # So few rows that they would not fill the terminal if they went there by mistake.
    file = write("few.svm", "1 2:1\n1 3:1\n")
    terminal, writer = os.openpty()
    command = [*program, "predict", str(sparse_model), str(file)]
    with (tmp_path / "p.tsv").open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=writer)
    os.close(writer)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert done.returncode == 0
    assert (tmp_path / "p.tsv").read_text() == run("predict", sparse_model, file).out
    assert "predicted" in shown
    # The cursor, hidden while the count is shown, is restored.
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("target", ["pipe", "full"])
def test_a_closed_pipe_and_a_full_stdout(program, files, sparse_model, write, target):
    # More output than a pipe holds, so that the reader closes it before the end.
    file = write("many.svm", files.svm_test.read_text() * 20)
    command = [*program, "predict", str(sparse_model), str(file), "-k", "60"]
    if target == "full":
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert done.stderr == "extremax: standard output: No space left on device\n"
        return
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141
