"""``extremax diagnose``: the diagnosis of the library, on rows drawn from a file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import read
from extremax.diagnostics import diagnose


@pytest.fixture
def run(run):
    """Run on one thread: the small steps of a diagnosis are slow on several busy cores."""

    def one_thread(command, *arguments):
        threads = ("--threads", 1) if command == "diagnose" else ()
        return run(command, *arguments, *threads)

    return one_thread


def test_figures_are_those_of_the_library(run, files, sparse_model):
    done = run("diagnose", sparse_model, files.svm_test, "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    model, data = ExtremeClassifier.load(sparse_model), read(files.svm_test)
    model.n_jobs = 1
    evaluated = model.evaluate(data.features, data.labels)
    assert (found["rows"], found["rows_of_file"]) == (300, 300)
    assert found["accuracy"] == pytest.approx(evaluated.accuracy)
    assert found["log_likelihood"] == pytest.approx(evaluated.log_likelihood, rel=1e-5)
    expected = diagnose(model, data.features, data.labels)
    assert found["calibration_error"] == pytest.approx(expected.reliability.error, abs=1e-4)
    predicted = model.predict_topk(data.features, 1, search="exact").labels[:, 0]
    examples = model.model_.labels.counts[model.model_.labels.encode(predicted)]
    for band, same in zip(found["frequency_bands"], expected.bands, strict=True):
        within = (band["least_examples"] <= examples) & (examples <= band["most_examples"])
        assert band["rows"] == within.sum()
        assert band["calibration_error"] == pytest.approx(same.reliability.error, abs=1e-4)
    assert sum(band["rows"] for band in found["frequency_bands"]) == 300
    assert found["temperature"] == pytest.approx(expected.temperature, rel=1e-3)
    assert sum(found["reliability"]["rows"]) == 300
    tempered = found["tempered"]
    assert tempered["log_likelihood"] >= found["log_likelihood"] - 1e-6
    assert found["noise"] == "tree"
    assert list(found["bias"]) == list(found["signal"]) == ["tree", "uniform", "frequency"]
    for curve in found["bias"].values():
        assert np.all(np.diff(curve["bias"]) < 0)
        assert len(curve["bias"]) == len(curve["draws"]) == len(curve["standard_error"])
    uniform = found["signal"]["uniform"]
    assert uniform["log_q"] == pytest.approx(-np.log(len(model.classes_)), rel=1e-5)
    assert found["signal"]["tree"]["log_q"] > uniform["log_q"]
    assert all(0 < s["covered"] < 1 and 0 < s["relative"] < 1 for s in found["signal"].values())


def test_the_text_shows_the_same_figures(run, files, sparse_model):
    found = json.loads(run("diagnose", sparse_model, files.svm_test, "--json").out)
    text = run("diagnose", sparse_model, files.svm_test).out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.splitlines()[:3] == found["verdict"]
    lines = text.splitlines()[4:11]
    shown = dict(line.split("  ", 1) for line in lines if line[0] != " ")
    assert shown["accuracy"].strip() == f"{found['accuracy']:.2%}"
    assert shown["best temperature"].strip() == f"{found['temperature']:.3f}"
    assert f"{found['calibration_error']:.4f}" in shown["calibration error"]
    first = found["frequency_bands"][0]
    above = first["calibration_error"] - first["calibration_error_by_chance"]
    title = "calibration by number of training examples of the predicted class"
    shown_band = text.splitlines()[text.splitlines().index(title) + 3]
    assert shown_band.startswith(f"{first['least_examples']} to {first['most_examples']} ")
    assert shown_band.split()[3] == str(first["rows"])
    assert shown_band.endswith(f"{above:+.4f}")
    own = next(line for line in text.splitlines() if line.startswith("tree (its own)"))
    curve = found["bias"]["tree"]
    shares = [f"{b / curve['gradient']:.3f}" for b in curve["bias"]]
    assert own.split()[3:] == shares


def test_rows_are_drawn_from_all_of_the_file_and_the_same_each_time(
    run, files, sparse_model, monkeypatch
):
    whole = json.loads(run("diagnose", sparse_model, files.svm_test, "--json").out)
    monkeypatch.setattr("extremax.cli.rows.ROWS", 32)
    one = run("diagnose", sparse_model, files.svm_test, "--rows", 80, "--json").out
    assert run("diagnose", sparse_model, files.svm_test, "--rows", 80, "--json").out == one
    found = json.loads(one)
    assert (found["rows"], found["rows_of_file"]) == (80, 300)
    assert sum(found["reliability"]["rows"]) == 80
    # Frequencies are those of the whole file, whatever rows are drawn.
    again = json.loads(run("diagnose", sparse_model, files.svm_test, "--json").out)
    assert again["log_likelihood"] == pytest.approx(whole["log_likelihood"], rel=1e-5)
    assert again["signal"]["frequency"]["log_q"] == pytest.approx(
        whole["signal"]["frequency"]["log_q"]
    )
    shown = run("diagnose", sparse_model, files.svm_test, "--rows", 80).out
    assert shown.splitlines()[4].endswith("80 of 300")


def test_texts_and_rows_of_unseen_classes(run, files, text_model, write):
    more = files.tsv_test.read_text() + "nobody\town3 mark3\n\tno label\n"
    found = json.loads(run("diagnose", text_model, write("t.tsv", more), "--json").out)
    assert (found["rows"], found["unseen_class_rows_of_file"]) == (51, 1)
    assert np.isfinite(found["log_likelihood"])


def test_rows_that_stay_sparse(run, files, bag_model, monkeypatch):
    model, data = ExtremeClassifier.load(bag_model), read(files.tsv_test)
    # Several blocks.
    monkeypatch.setattr("extremax.cli.rows.ROWS", 16)
    done = run("diagnose", bag_model, files.tsv_test, "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["rows"], found["noise"]) == (50, "sparse_tree")
    evaluated = model.evaluate(data.features, data.labels)
    assert found["accuracy"] == evaluated.accuracy
    assert found["log_likelihood"] == pytest.approx(evaluated.log_likelihood, abs=1e-5)


def test_a_model_trained_without_noise_has_no_own_noise(run, files, tmp_path):
    options = ("--objective", "exact", "--epochs", 1, "--components", 8, "-q")
    assert run("train", files.svm, "-o", tmp_path / "m", *options).status == 0
    found = json.loads(run("diagnose", tmp_path / "m", files.svm_test, "--json").out)
    assert found["noise"] is None
    assert list(found["bias"]) == ["uniform", "frequency"]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_format_of_the_picture_follows_its_name(
    run, files, sparse_model, tmp_path, suffix, start
):
    path = tmp_path / f"d{suffix}"
    done = run("diagnose", sparse_model, files.svm_test, "--rows", 100, "--picture", path)
    assert done.status == 0
    assert path.read_bytes().startswith(start)
    assert f"drew the diagnosis: {path}" in done.err


def test_mistakes_are_one_line_and_status_2(run, files, text_model, sparse_model, write, tmp_path):
    cases = [
        (("diagnose", tmp_path / "none", files.svm_test), "none does not exist"),
        (("diagnose", sparse_model, tmp_path / "none.svm"), "none.svm"),
        (
            ("diagnose", sparse_model, files.svm_test, "--picture", tmp_path / "a.txt"),
            "must end in .png",
        ),
        (("diagnose", sparse_model, files.tsv_test), "the training data are sparse rows"),
        (("diagnose", text_model, write("a.tsv", "")), "no rows"),
        (("diagnose", text_model, write("b.tsv", "\ta\n")), "no row has a label"),
        (("diagnose", text_model, write("c.tsv", "other\town3\n")), "such as 'class 0'"),
        (("diagnose", sparse_model, files.svm_test, "--rows", 0), "at least 1"),
    ]
    for command, message in cases:
        done = run(*command)
        assert (done.status, done.out) == (2, ""), command
        assert message in done.err, command
