"""``extremax predict`` with limits, other class frequencies and explanations."""

from __future__ import annotations

import json

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import read


@pytest.fixture(scope="module")
def sparse(files, sparse_model):
    """The model of sparse rows with integer labels, and its test rows."""
    return ExtremeClassifier.load(sparse_model), read(files.svm_test).features


def same(done, expected) -> None:
    """What was printed is this `TopK`."""
    assert (done.status, done.err) == (0, "")
    labels, probabilities = zip(
        *(
            (cells[::2], [float(p) for p in cells[1::2]])
            for cells in (line.split("\t") if line else [] for line in done.out.splitlines())
        ),
        strict=True,
    )
    assert list(labels) == [[str(v) for v in row] for row in expected.lists()]
    flat = expected.log_probs[~np.isneginf(expected.log_probs)]
    np.testing.assert_allclose(np.concatenate(probabilities), np.exp(flat), rtol=1e-4)


def test_classes_below_the_threshold_are_left_out(run, files, sparse_model, sparse):
    model, rows = sparse
    done = run("predict", sparse_model, files.svm_test, "--threshold", 0.5)
    expected = model.predict_topk(rows, 5, threshold=0.5)
    same(done, expected)
    # Line i is for row i, also where nothing is left.
    assert min(map(len, expected.lists())) == 0
    rows_as_json = run("predict", sparse_model, files.svm_test, "--threshold", 0.5, "--jsonl").out
    found = [json.loads(line)["labels"] for line in rows_as_json.splitlines()]
    assert found == [row.tolist() for row in expected.lists()]


@pytest.mark.parametrize("renormalize", [False, True])
def test_labels_of_a_file_are_chosen_from_or_left_out(
    run, write, files, sparse_model, sparse, renormalize
):
    model, rows = sparse
    some = model.classes_[[3, 7, 11, 19]].tolist()
    path = write("some.txt", "".join(f"{label}\n" for label in some) + "\n")
    flags = ("--renormalize",) if renormalize else ()
    same(
        run("predict", sparse_model, files.svm_test, "--among", path, *flags),
        model.predict_topk(rows, 5, among=some, renormalize=renormalize),
    )
    best = model.predict(rows)[:3].tolist()
    path = write("best.txt", "".join(f"{label}\n" for label in (*best, 123456)))
    same(
        run("predict", sparse_model, files.svm_test, "-k", 2, "--exclude", path, *flags),
        model.predict_topk(rows, 2, exclude=best, renormalize=renormalize),
    )


def test_labels_that_are_strings(run, write, files, text_model):
    path = write("some.txt", "class 3\nclass 20\n")
    done = run("predict", text_model, files.tsv_test, "--among", path, "-k", 1, "-q")
    assert {line.split("\t")[0] for line in done.out.splitlines()} == {"class 3", "class 20"}


def test_other_class_frequencies(run, write, files, sparse_model, sparse):
    model, rows = sparse
    same(
        run("predict", sparse_model, files.svm_test, "--tau", 1),
        model.with_prior(tau=1.0).predict_topk(rows, 5),
    )
    shares = {label: 0.0 if label % 2 else 1.0 + label for label in model.classes_.tolist()}
    path = write("prior.tsv", "".join(f"{k}\t{v}\n" for k, v in shares.items()))
    expected = model.with_prior(shares).predict_topk(rows, 5)
    same(run("predict", sparse_model, files.svm_test, "--prior", path), expected)
    assert not (expected.labels % 2).any()
    same(
        run("predict", sparse_model, files.svm_test, "--prior", path, "--beam", 60),
        model.with_prior(shares).predict_topk(rows, 5, search="beam", width=60),
    )


@pytest.mark.parametrize("kind", ["text", "sparse", "dense"])
def test_explanations(run, files, text_model, sparse_model, tmp_path, kind):
    if kind == "text":
        model, path = text_model, tmp_path / "t.tsv"
        path.write_text("".join(files.tsv_test.read_text().splitlines(keepends=True)[:3]))
    elif kind == "sparse":
        model, path = sparse_model, tmp_path / "t.svm"
        path.write_text("".join(files.svm_test.read_text().splitlines(keepends=True)[:3]))
    else:
        model, path = tmp_path / "m", tmp_path / "X.npy"
        options = ("--labels", files.npy_labels, "--epochs", 1, "-q")
        assert run("train", files.npy, "-o", model, *options).status == 0
        np.save(path, np.load(files.npy)[:3])
    # All of the file, of which three rows may use fewer features.
    whole = files.svm_test if kind == "sparse" else path
    features = np.load(path) if kind == "dense" else read(whole).features[:3]
    loaded = ExtremeClassifier.load(model)
    done = run("predict", model, path, "-k", 2, "--explain", "--jsonl", "-q")
    assert (done.status, done.err) == (0, "")
    lines = [json.loads(line) for line in done.out.splitlines()]
    best = loaded.predict_topk(features, 2).labels.tolist()
    assert [line["labels"] for line in lines] == best
    texts = []
    for i, line in enumerate(lines):
        for label, p, pairs in zip(
            line["labels"], line["probabilities"], line["explanations"], strict=True
        ):
            one = loaded.explain(features[i], label)
            assert p == pytest.approx(np.exp(one.log_prob), rel=1e-4)
            assert [part for part, _ in pairs] == one.parts
            np.testing.assert_allclose([v for _, v in pairs], one.contributions, atol=1e-4)
            texts.append(str(one).splitlines()[0])
    # As text, with an empty line after each row.
    out = tmp_path / "why.txt"
    assert run("predict", model, path, "-k", 2, "--explain", "-o", out, "-q").status == 0
    blocks = out.read_text().split("\n\n")
    assert len(blocks) == 4
    assert blocks[3] == ""
    assert [line for line in out.read_text().splitlines() if ": p = " in line] == texts


def test_explained_sessions_and_rows_without_a_class(run, write, tmp_path):
    sessions = write("a.sessions", "a b c\nb c a\na b c\nc b\n" * 20)
    done = run("train", sessions, "-o", tmp_path / "m", "--epochs", 1, "-q")
    assert done.status == 0
    asked = write("t.sessions", "a b\nc\n")
    done = run("predict", tmp_path / "m", asked, "-k", 1, "--explain", "--jsonl")
    parts = [[p for p, _ in json.loads(line)["explanations"][0]] for line in done.out.splitlines()]
    assert [sorted(row) for row in parts] == [["a", "b"], ["c"]]
    done = run("predict", tmp_path / "m", asked, "--threshold", 1, "--explain")
    assert done.out == "no class\n\n" * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--threshold", "1.5"), "--threshold must be a number from 0 to 1, got 1.5"),
        (("--threshold", "nan"), "--threshold must be a number from 0 to 1, got nan"),
        (("--among", "LABELS", "--beam", "4"), "--among scores all of its labels; omit --beam"),
        (("--renormalize",), "--renormalize needs --among or --exclude"),
        (("--prior", "LABELS", "--tau", "1"), "--prior and --tau contradict each other"),
        (("--tau", "nan"), "--tau must be a number from −10 to 10, got nan"),
        (("--explain", "--tsv"), "--explain prints text or, with --jsonl, JSON lines; omit --tsv"),
        (("--among", "LABELS"), "LABELS:2: label 'nobody' is none that training saw (--among)"),
        (("--among", "EMPTY"), "EMPTY: the file has no labels (--among)"),
        (("--prior", "LABELS"), "LABELS:1: expected label, TAB, number, got '1' (--prior)"),
        (("--prior", "SHARES"), "SHARES: prior has no share of 2 and"),
        (("--prior", "TWICE"), "TWICE:3: label '1' again (--prior)"),
        (("--prior", "MINUS"), "MINUS: prior must have finite numbers of at least 0, got -1.0"),
        (("--among", "NO FILE"), "NO FILE: No such file or directory"),
    ],
)
def test_mistakes_name_the_option_and_the_file(
    run, files, sparse_model, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "LABELS": "1\nnobody\n",
        "EMPTY": "\n",
        "SHARES": "0\t1\n1\t2\n",
        "TWICE": "0\t1\n1\t2\n1\t3\n",
        "MINUS": "0\t1\n1\t-1\n",
    }.items():
        (tmp_path / name).write_text(content)
    done = run("predict", sparse_model, files.svm_test, *arguments)
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_excluding_nothing_is_mentioned(run, write, files, sparse_model, sparse):
    path = write("no.txt", "nobody\n")
    done = run("predict", sparse_model, files.svm_test, "--exclude", path)
    assert "no label is a class of the model, so that none is left out (--exclude)" in done.err
    assert done.out == run("predict", sparse_model, files.svm_test).out
    assert run("predict", sparse_model, files.svm_test, "--exclude", path, "-q").err == ""
