"""``extremax evaluate``: the metrics of the classifier, computed block by block."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import read
from extremax.evaluation import Evaluation


def test_figures_are_those_of_the_classifier(run, files, sparse_model, monkeypatch):
    monkeypatch.setattr("extremax.cli.rows.ROWS", 128)
    done = run("evaluate", sparse_model, files.svm_test, "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    model, data = ExtremeClassifier.load(sparse_model), read(files.svm_test)
    expected = model.evaluate(data.features, data.labels)
    best = model.predict_topk(data.features, 5).labels
    assert found["rows"] == 300
    assert found["unseen_class_rows"] == expected.unseen
    assert found["accuracy"] == pytest.approx(expected.accuracy)
    assert found["log_likelihood"] == pytest.approx(expected.log_likelihood, rel=1e-5)
    assert found["top5_accuracy"] == pytest.approx(np.mean(best == data.labels[:, None]) * 5)
    assert found["top5_accuracy"] > found["accuracy"] > 0
    assert found["probabilities"] == "bias-corrected"


def test_unseen_classes_are_counted_wrong_and_left_out_of_the_likelihood(run, write, text_model):
    known = "class 3\town3 mark3\n" * 3
    seen = json.loads(run("evaluate", text_model, write("a.tsv", known), "--json").out)
    both = write("b.tsv", known + "nobody\town3 mark3\n\tno label\n")
    found = json.loads(run("evaluate", text_model, both, "--json").out)
    assert (seen["accuracy"], seen["unseen_class_rows"]) == (1.0, 0)
    assert (found["rows"], found["unseen_class_rows"], found["accuracy"]) == (4, 1, 0.75)
    assert found["unlabeled_rows"] == 1
    # The last bit of float32 logits of about ten may depend on the other rows: 1e-6 each.
    assert found["log_likelihood"] == pytest.approx(seen["log_likelihood"], abs=2e-6)
    lines = run("evaluate", text_model, both).out.splitlines()
    shown = {line[:17].strip(): line[17:].strip() for line in lines}
    assert shown["rows"] == "4 (1 more have no label)"
    assert shown["of unseen classes"] == "1"
    assert shown["accuracy"] == "75.00%"
    assert "over rows of known classes" in shown["log-likelihood"]
    assert shown["figures"] == "exact: every class of every row was scored"
    assert shown["probabilities"].startswith("softmax over all classes; the bias of drawing")


def test_only_unknown_labels_are_explained(run, write, files, text_model, tmp_path):
    options = ("--labels", files.npy_labels, "--epochs", 1, "-q")
    assert run("train", files.npy, "-o", tmp_path / "m", *options).status == 0
    X = np.load(files.npy)[:4]
    np.save(tmp_path / "X.npy", X)
    # The same numbers in a text file are strings.
    labels = write("y.txt", "".join(f"{v}\n" for v in np.load(files.npy_labels)[:4]))
    done = run("evaluate", tmp_path / "m", tmp_path / "X.npy", "--labels", labels, "--json")
    assert done.status == 0
    assert json.loads(done.out)["log_likelihood"] is None
    assert "its labels are numbers, this file's are strings" in done.err
    done = run("evaluate", text_model, write("a.tsv", "other\town3\n"))
    assert "such as 'class 0'; this file has 'other'" in done.err


@pytest.mark.parametrize(("content", "message"), [("", "no rows"), ("\ta\n", "no row has a label")])
def test_nothing_to_evaluate(run, write, text_model, content, message):
    done = run("evaluate", text_model, write("a.tsv", content))
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_evaluations_add_up(sparse_model, files):
    model, data = ExtremeClassifier.load(sparse_model), read(files.svm_test)
    whole = model.evaluate(data.features, data.labels)
    blocks = [slice(0, 50), slice(50, 100), slice(100, None)]
    parts = [model.evaluate(data.features[block], data.labels[block]) for block in blocks]
    total = sum(parts, Evaluation())
    assert (total.rows, total.unseen) == (whole.rows, whole.unseen)
    assert total.accuracy == pytest.approx(whole.accuracy)
    assert total.top5_accuracy == pytest.approx(whole.top5_accuracy)
    assert total.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-5)
    assert Evaluation().log_likelihood == -np.inf


def test_bad_values_are_reported_with_the_file(run, files, tmp_path, monkeypatch):
    options = ("--labels", files.npy_labels, "--epochs", 1, "-q")
    assert run("train", files.npy, "-o", tmp_path / "m", *options).status == 0
    X = np.load(files.npy)
    X[130, 4] = np.nan
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr("extremax.cli.rows.ROWS", 64)
    done = run("evaluate", tmp_path / "m", tmp_path / "X.npy", "--labels", files.npy_labels)
    assert done.status == 2
    # Counted from 1, and rows from the start of the file.
    assert done.err.startswith(f"extremax: {tmp_path}/X.npy: ")
    assert "NaN in row 131, column 5;" in done.err


def test_ranks_that_are_asked_for(run, files, sparse_model, monkeypatch):
    monkeypatch.setattr("extremax.cli.rows.ROWS", 128)
    model, data = ExtremeClassifier.load(sparse_model), read(files.svm_test)
    expected = model.evaluate(data.features, data.labels, k=20)
    found = json.loads(run("evaluate", sparse_model, files.svm_test, "-k", "20, 1", "--json").out)
    lines = run("evaluate", sparse_model, files.svm_test, "--k", "1,20").out.splitlines()
    shown = {line[:17].strip(): line[17:].strip() for line in lines}
    for key, values in {
        "recall": expected.ranking.recall,
        "macro_recall": expected.by_class.macro_recall,
        "coverage": expected.by_class.coverage,
    }.items():
        assert found[f"{key}_at_1"] == pytest.approx(values[0])
        assert found[f"{key}_at_20"] == pytest.approx(values[19])
        text = f"{values[0]:.2%} at 1, {values[19]:.2%} at 20"
        assert shown[key.replace("_", " ")] == text
    usual = json.loads(run("evaluate", sparse_model, files.svm_test, "--json").out)
    assert usual["macro_recall_at_5"] == pytest.approx(expected.by_class.macro_recall[4])
    assert "recall_at_5" not in usual


def test_answers_at_a_threshold_are_those_of_predict(run, files, sparse_model, monkeypatch):
    monkeypatch.setattr("extremax.cli.rows.ROWS", 128)
    given = ("--threshold", 0.2)
    found = json.loads(run("evaluate", sparse_model, files.svm_test, *given, "--json").out)
    lines = run("predict", sparse_model, files.svm_test, *given).out.splitlines()
    answers = [[int(label) for label in line.split("\t")[:-1:2]] for line in lines]
    truth = read(files.svm_test).labels.tolist()
    right = sum(label in row for row, label in zip(answers, truth, strict=True))
    answered = sum(map(bool, answers))
    assert 0 < answered < 300
    assert (found["threshold"], found["answered_rows"]) == (0.2, answered)
    assert found["precision"] == pytest.approx(right / sum(map(len, answers)))
    assert found["recall"] == pytest.approx(right / 300)
    shown = run("evaluate", sparse_model, files.svm_test, *given).out
    assert re.search(rf"answered at 0\.2 +{answered / 300:.2%} of rows\n", shown)
    # Nobody is that sure.
    sure = run("evaluate", sparse_model, files.svm_test, "--threshold", 1)
    assert re.search(r"  precision +no answer\n", sure.out)
    wrong = run("evaluate", sparse_model, files.svm_test, "--threshold", 2)
    assert (wrong.status, wrong.out) == (2, "")
    assert "--threshold must be a number from 0 to 1, got 2.0" in wrong.err


def test_per_class_says_what_is_mistaken_for_what(run, files, sparse_model, tmp_path, monkeypatch):
    monkeypatch.setattr("extremax.cli.rows.ROWS", 128)
    path = tmp_path / "classes.tsv"
    done = run("evaluate", sparse_model, files.svm_test, "--per-class", path, "--json")
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t"))
    assert done.err == f"wrote {len(lines)} classes: {path}\n"
    predicted = run("predict", sparse_model, files.svm_test, "-k", 1).out.splitlines()
    best = [int(line.split("\t")[0]) for line in predicted]
    pairs = Counter(zip(read(files.svm_test).labels.tolist(), best, strict=True))
    for line in lines:
        label = int(line["label"])
        n, a = (sum(m for pair, m in pairs.items() if pair[i] == label) for i in (0, 1))
        assert (int(line["support"]), int(line["predicted"])) == (n, a)
        assert int(line["correct"]) == pairs[label, label]
        assert line["recall"] == (f"{pairs[label, label] / n:.4f}" if n else "")
        if line["mistaken_for_1"]:
            wrong = {pair[1]: m for pair, m in pairs.items() if pair[0] == label != pair[1]}
            assert wrong[int(line["mistaken_for_1"])] == max(wrong.values()) == int(line["rows_1"])
    assert any(line["mistaken_for_1"] for line in lines)
    missed = [int(line["support"]) - int(line["correct"]) for line in lines]
    assert missed == sorted(missed, reverse=True)
    assert sum(int(line["correct"]) for line in lines) / 300 == json.loads(done.out)["accuracy"]
    done = run("evaluate", sparse_model, files.svm_test, "--per-class", tmp_path / "no" / "a.tsv")
    assert (done.status, done.out) == (2, "")


@pytest.mark.parametrize("text", ["", "0", "1,,2", "-1", "five"])
def test_ranks_that_are_none(run, files, sparse_model, text):
    done = run("evaluate", sparse_model, files.svm_test, "--k", text)
    assert (done.status, done.out) == (2, "")
    assert f"-k must be numbers of at least 1 such as 1,5,20, got {text!r}" in done.err


def test_exports_what_an_evaluator_of_calibration_reads(
    run, files, sparse_model, tmp_path, monkeypatch
):
    monkeypatch.setattr("extremax.cli.rows.ROWS", 128)
    path = tmp_path / "a.npz"
    done = run("evaluate", sparse_model, files.svm_test, "-k", "1,7", "--export", path, "--json")
    assert done.err == f"wrote 300 rows: {path}\n"
    saved, found = np.load(path), json.loads(done.out)
    assert saved["scores"].shape == (300, 7)
    assert saved["true_positives"][:, 0].mean() == pytest.approx(found["accuracy"])
    assert saved["true_positives"].sum() / len(saved["labels"]) == pytest.approx(
        found["recall_at_7"]
    )
    data = read(files.svm_test)
    classes = ExtremeClassifier.load(sparse_model).classes_
    rows, truth = saved["labels"].T
    assert rows.tolist() == list(range(300))
    known = truth >= 0
    assert (classes[truth[known]] == data.labels[known]).all()
    done = run("evaluate", sparse_model, files.svm_test, "--export", tmp_path / "no" / "a.npz")
    assert (done.status, done.out) == (2, "")
    assert "no such folder" in done.err
