"""Sessions on the command line: from a file of lines to recommendations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax import ExtremeClassifier, SessionRecommender
from extremax.cli import app
from extremax.data import read

FAST = ("--epochs", 3, "--batch-size", 64, "--n-negatives", 64, "--bag-size", 16)


def lines(n: int, seed: int) -> list[str]:
    """Sessions of one to five items of one of eight kinds."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(f"{kind}{'abcde'[j]}" for j in rng.integers(5, size=rng.integers(1, 6)))
        for kind in rng.integers(8, size=n)
    ]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sessions") / "train.sessions"
    path.write_text("\n".join(["", *lines(500, 0)]) + "\n")
    return path


@pytest.fixture(scope="module")
def model(run, file: Path) -> Path:
    folder = file.parent / "model"
    done = run("train", file, "-o", folder, *FAST)
    assert done.status == 0
    n_alone = sum(" " not in line for line in file.read_text().splitlines() if line)
    assert f"{len(read(file)):,} sequences in" in done.err
    assert f"ignored {n_alone:,} sessions of one item, which nothing follows" in done.err
    assert "  40 classes\n" in done.err
    return folder


def test_the_model_is_that_of_the_recommender(model: Path, file: Path) -> None:
    loaded = SessionRecommender.load(model)
    sessions = [line.split() for line in file.read_text().splitlines() if line]
    trained = SessionRecommender(
        epochs=3, batch_size=64, n_negatives=64, bag_size=16, random_state=0
    ).fit(sessions)
    np.testing.assert_array_equal(
        loaded.predict_log_proba(sessions[:9]), trained.predict_log_proba(sessions[:9])
    )
    items = loaded.recommend(["3a", "3b"], k=5).items
    assert set(items) == {f"3{letter}" for letter in "abcde"}


def test_every_line_gets_a_prediction(run, model: Path, write) -> None:
    path = write("new.sessions", "3a 3b\n\n5c unknown\nunknown\n")
    done = run("predict", model, path, "-k", 2)
    assert (done.status, done.err) == (0, "")
    found = [line.split("\t") for line in done.out.splitlines()]
    sessions = [["3a", "3b"], [], ["5c", "unknown"], ["unknown"]]
    expected = SessionRecommender.load(model).recommend(sessions, k=2)
    assert [row[::2] for row in found] == expected.items.tolist()
    probabilities = [[float(p) for p in row[1::2]] for row in found]
    np.testing.assert_allclose(probabilities, expected.probabilities, rtol=1e-4)


def test_predictions_leave_out_what_follows_a_tab(run, model: Path, write) -> None:
    done = run("predict", model, write("t.sessions", "3a 3b\t5c\n"))
    assert "what follows the TAB of a line is the next item, and ignored\n" in done.err
    assert done.out == run("predict", model, write("u.sessions", "3a 3b\n")).out
    assert run("predict", model, write("t.sessions", "3a 3b\t5c\n"), "-q").err == ""


def test_standard_input(run, model: Path, write) -> None:
    expected = run("predict", model, write("a.sessions", "3a 3b\n5c\n")).out
    arguments = ["predict", str(model), "-", "--format", "sessions"]
    assert CliRunner().invoke(app, arguments, input="3a 3b\n5c\n").stdout == expected


def test_evaluate_takes_sessions_and_pairs(run, model: Path, write) -> None:
    test = lines(60, 1)
    path = write("test.sessions", "\n".join(test))
    figures = json.loads(run("evaluate", model, path, "--json", "-q").out)
    sessions = [line.split() for line in test]
    expected = SessionRecommender.load(model).evaluate(sessions)
    assert figures["rows"] == expected.rows
    assert figures["log_likelihood"] == pytest.approx(expected.log_likelihood, rel=1e-5)
    pairs = [
        " ".join(one[:end]) + "\t" + one[end] for one in sessions for end in range(1, len(one))
    ]
    other = json.loads(
        run("evaluate", model, write("pairs.sessions", "\n".join(pairs)), "--json", "-q").out
    )
    assert other["log_likelihood"] == pytest.approx(figures["log_likelihood"], rel=1e-5)
    assert (other["rows"], other["accuracy"]) == (figures["rows"], figures["accuracy"])


def test_options_without_effect_on_sessions_are_rejected(run, write, tmp_path: Path) -> None:
    path = write("a.sessions", "\n".join(lines(20, 0)))
    done = run("train", path, "-o", tmp_path / "model", "--accumulators", "row")
    assert done.status != 0
    assert "--accumulators applies to dense and sparse rows, but the rows of" in done.err


def test_info_says_what_the_model_reads(run, model: Path) -> None:
    out = run("info", model).out
    for line in (
        "40 names",
        "sequences of items, which are the classes",
        "one vector per item, 16",
    ):
        assert line in out
    assert "log(1 + visited_together/ε)" in out


def test_diagnose(run, model: Path, write) -> None:
    path = write("test.sessions", "\n".join(lines(100, 2)))
    done = run("diagnose", model, path, "--json", "-q")
    assert done.status == 0
    assert json.loads(done.out)["rows"] == len(read(path))


def test_plan(run, file: Path) -> None:
    done = run("plan", file, "--json", *FAST)
    assert done.status == 0
    problem = json.loads(done.out)["problem"]
    rows = read(file)
    assert (problem["rows"], problem["classes"], problem["kind"]) == (len(rows), 40, "sequences")
    assert problem["nonzeros"] == pytest.approx(rows.features.sizes.mean())
    assert "items each, 40 classes" in run("plan", file, *FAST).out


def test_other_commands_and_options_are_refused_in_a_line(
    run, file: Path, model: Path, files, write, tmp_path: Path
) -> None:
    pairs = write("pairs.sessions", "a b\tc\n")
    output = ("-o", tmp_path / "other")
    refused = {
        ("compare", file, *output): "not sessions",
        ("train", pairs, *output): "lines of prefix<TAB>next item, which are for `extremax evalu",
        ("plan", pairs): "train on whole sessions, one per line",
        ("train", file, *output, "--components", 8): "are sequences; omit --components",
        ("train", file, *output, "--ngrams", "2"): "are sequences; omit --ngrams",
        ("train", file, *output, "--tree-components", 8): "are sequences; omit --tree-components",
        ("train", file, *output, "--noise", "tree"): "needs dense rows, and these are sequences",
        ("train", file, *output, "--keep-labels", "all"): "--keep-labels all is for rows with",
        ("train", file, *output, "--weight-decay", 1): "--weight-decay must be 0",
        ("predict", model, files.svm_test): "contains sparse rows, but the training data are seq",
        ("predict", model, files.tsv_test): "contains texts, but the training data are sequences",
        ("predict", model, file, "--beam", 8): "omit --beam",
        ("train", write("one.sessions", "a\nb\n"), *output): "no session has two items",
    }
    for arguments, message in refused.items():
        done = run(*arguments, "-q")
        assert (done.status, done.out) == (2, "")
        assert message in done.err
        assert "--components 256" not in done.err
        assert done.err.count("\n") == 1
    assert not (tmp_path / "other").exists()


def test_other_models_refuse_sessions(
    run, file: Path, text_model: Path, sparse_model: Path
) -> None:
    for folder, name in ((text_model, "texts"), (sparse_model, "sparse rows")):
        done = run("predict", folder, file)
        assert done.status == 2
        assert f"this file contains sequences, but the training data are {name}" in done.err


def test_a_saved_recommender_is_a_model_of_the_command_line(run, tmp_path: Path, write) -> None:
    sessions = [line.split() for line in lines(300, 3)]
    model = SessionRecommender(epochs=1, n_negatives=64, bag_size=8, random_state=0).fit(sessions)
    model.save(tmp_path / "model")
    done = run("predict", tmp_path / "model", write("a.sessions", "3a\n"), "-k", 1)
    assert done.out.split("\t")[0] == model.recommend(["3a"], k=1).items[0]
    loaded = ExtremeClassifier.load(tmp_path / "model")
    assert loaded.predict_topk([["3a"]], 1).labels[0, 0] == model.recommend(["3a"], k=1).items[0]
