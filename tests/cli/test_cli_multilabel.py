"""Files with several labels per row: training and evaluation with all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import read
from extremax.evaluation import Evaluation, class_lists, tally_ranking

N_CLASSES = 24


def rows(n: int, seed: int) -> list[str]:
    """fastText lines with one to three labels, two words per label, and a common word."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        labels = rng.choice(N_CLASSES, rng.integers(1, 4), replace=False)
        names = " ".join(f"__label__c{label}" for label in labels)
        words = " ".join(f"own{label} mark{label}" for label in labels)
        lines.append(f"{names} {words} common{rng.integers(0, 5)}")
    return lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("multilabel")
    (path / "a.ft").write_text("\n".join([*rows(700, 0), "nobody"]) + "\n")
    unseen = "__label__new __label__c1 own1 mark1"
    (path / "t.ft").write_text("\n".join([*rows(60, 1), unseen, "nothing"]) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(folder: Path, run: Callable) -> tuple[Path, str]:
    """A model trained on all labels, and the messages of its training."""
    done = run("train", folder / "a.ft", "-o", folder / "m", "--keep-labels", "all", "--epochs", 3)
    assert (done.status, done.out) == (0, "")
    return folder / "m", done.err


def test_trains_on_all_labels(folder, trained, tmp_path):
    model, messages = trained
    data = read(folder / "a.ft", keep_labels="all")
    assert "700 texts" in messages
    assert "dropped 1 more rows without a label" in messages
    n_multilabel = sum(len(labels) > 1 for labels in data.labels.tolist())
    assert f"{n_multilabel} with several labels: {len(data.labels.values):,} pairs" in messages
    assert f"{N_CLASSES} classes" in messages
    labels = ExtremeClassifier.load(model).model_.labels
    assert labels.multilabel
    assert labels.n_rows == 700
    counts = dict.fromkeys(labels.values, 0)
    for row in data.labels.tolist():
        for label in row:
            counts[label] += 1
    assert labels.counts.tolist() == list(counts.values())


def test_evaluates_all_labels_of_a_model_trained_on_all(run, folder, trained, monkeypatch):
    model, _ = trained
    monkeypatch.setattr("extremax.cli.rows.ROWS", 16)
    done = run("evaluate", model, folder / "t.ft", "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)

    loaded, data = ExtremeClassifier.load(model), read(folder / "t.ft", keep_labels="all")
    log_p = loaded.predict_log_proba(data.features)
    order = np.argsort(-log_p, axis=1)[:, :5]
    place = {label: i for i, label in enumerate(loaded.classes_)}
    truth = data.labels.tolist()
    seen = [
        log_p[i, place[label]] for i, row in enumerate(truth) for label in row if label in place
    ]
    assert found["rows"] == len(truth) == 61
    assert found["unlabeled_rows"] == 1
    assert found["labels"] == sum(len(row) for row in truth)
    assert found["unseen_class_labels"] == 1
    assert found["log_likelihood"] == pytest.approx(np.mean(seen), rel=1e-4)
    for k in (1, 3, 5):
        hits = [len({loaded.classes_[j] for j in order[i, :k]} & set(truth[i])) for i in range(61)]
        assert found[f"precision_at_{k}"] == pytest.approx(sum(hits) / 61 / k)
        shares = [hit / len(row) for hit, row in zip(hits, truth, strict=True)]
        assert found[f"recall_at_{k}"] == pytest.approx(sum(shares) / 61)
    # The words determine the labels, so the model is far better than chance.
    assert found["precision_at_1"] > 0.5
    labels = loaded.model_.labels
    indices = class_lists(loaded.model_, data.labels, len(data))
    ranking = tally_ranking(order, indices, labels.counts, labels.n_rows)
    for k in (1, 3, 5):
        assert found[f"ndcg_at_{k}"] == pytest.approx(ranking.ndcg[k - 1])
        scored = found[f"propensity_scored_precision_at_{k}"]
        assert scored == pytest.approx(ranking.scored_precision[k - 1])
    assert "accuracy" not in found


def test_the_table_shows_the_same(run, folder, trained):
    model, _ = trained
    found = json.loads(run("evaluate", model, folder / "t.ft", "--json").out)
    lines = run("evaluate", model, folder / "t.ft").out.splitlines()
    shown = {line[:29].strip(): line[29:].strip() for line in lines}
    assert shown["rows"] == "61 (1 more have no label)"
    assert shown["labels"] == str(found["labels"])
    assert shown["of unseen classes"] == "1"
    for name in ("precision", "recall", "nDCG", "propensity-scored precision"):
        key = name.lower().replace("-", "_").replace(" ", "_")
        values = [f"{found[f'{key}_at_{k}']:.2%} at {k}" for k in (1, 3, 5)]
        assert shown[name] == ", ".join(values)
    assert shown["log-likelihood"].endswith("(over labels of known classes)")


def test_one_label_per_row_can_be_requested(run, folder, trained):
    model, _ = trained
    one = run("evaluate", model, folder / "t.ft", "--json", "--keep-labels", "first")
    found = json.loads(one.out)
    data, loaded = read(folder / "t.ft"), ExtremeClassifier.load(model)
    assert found["accuracy"] == loaded.evaluate(data.features, data.labels).accuracy
    assert "precision_at_1" not in found


def test_multilabel_metrics_of_one_label_per_row_are_accuracies(run, files, text_model):
    one = json.loads(run("evaluate", text_model, files.tsv_test, "--json").out)
    options = ("--json", "--keep-labels", "all")
    multilabel = json.loads(run("evaluate", text_model, files.tsv_test, *options).out)
    assert (
        multilabel["precision_at_1"] == multilabel["recall_at_1"] == pytest.approx(one["accuracy"])
    )
    assert multilabel["recall_at_5"] == pytest.approx(one["top5_accuracy"])
    assert multilabel["log_likelihood"] == pytest.approx(one["log_likelihood"], abs=1e-6)
    assert multilabel["labels"] == multilabel["rows"] == one["rows"]


def test_evaluations_add_up(folder, trained):
    model, data = ExtremeClassifier.load(trained[0]), read(folder / "t.ft", keep_labels="all")
    whole = model.evaluate(data.features, data.labels)
    blocks = [slice(0, 7), slice(7, 30), slice(30, None)]
    parts = [model.evaluate(data.features[block], data.labels[block]) for block in blocks]
    total = sum(parts, Evaluation())
    assert (total.rows, total.labels, total.unseen) == (whole.rows, whole.labels, whole.unseen)
    np.testing.assert_allclose(total.ranking.precision, whole.ranking.precision)
    assert total.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-5)


def test_fewer_classes_than_ranks(run, write, tmp_path):
    file = write("a.svm", "1,2 1:1\n2 2:1\n3 3:1\n" * 20)
    options = ("--keep-labels", "all", "--epochs", 1, "-q")
    assert run("train", file, "-o", tmp_path / "m", *options).status == 0
    found = json.loads(run("evaluate", tmp_path / "m", file, "--json").out)
    # All three classes are ranked, so all labels are found: 80 of 300 positions.
    assert found["recall_at_5"] == pytest.approx(1)
    assert found["precision_at_5"] == pytest.approx(80 / 300)
    assert found["propensity_scored_precision_at_5"] == pytest.approx(1)


def test_only_unknown_labels_are_explained(run, write, trained):
    model, _ = trained
    done = run("evaluate", model, write("a.ft", "__label__x __label__y own1\n"))
    assert done.status == 0
    assert "no label is a class of the model, such as 'c0'; this file has 'x'" in done.err


def test_plan_counts_pairs(run, folder):
    data = read(folder / "a.ft", keep_labels="all")
    options = ("--epochs", 1, "--keep-labels", "all", "--json")
    found = json.loads(run("plan", folder / "a.ft", *options).out)
    single = json.loads(run("plan", folder / "a.ft", "--epochs", 1, "--json").out)
    assert single["problem"]["rows"] == 700
    assert found["problem"]["rows"] == len(data.labels.values)
    assert found["problem"]["classes"] == N_CLASSES
    # The texts are in memory once, whatever the number of their labels.
    kept, once = found["memory"]["items"]["data"], single["memory"]["items"]["data"]
    assert kept == pytest.approx(once, rel=1e-3)
    shown = run("plan", folder / "a.ft", "--epochs", 1, "--keep-labels", "all").out
    assert f"{len(data.labels.values):,} pairs of texts and labels" in shown


def test_compare_uses_one_label_per_row(run, folder, tmp_path):
    done = run("compare", folder / "a.ft", "--out", tmp_path / "c", "--keep-labels", "all")
    assert done.status == 2
    assert "'all' is not one of 'first', 'smallest'" in done.err


def test_diagnose_uses_the_labels_that_the_model_was_trained_on(run, folder, trained):
    model, path = trained[0], folder / "t.ft"
    loaded, data = ExtremeClassifier.load(model), read(path, keep_labels="all")
    shown = json.loads(run("diagnose", model, path, "--json").out)
    result = loaded.evaluate(data.features, data.labels)
    assert shown["rows"] == shown["rows_of_file"] == result.rows
    assert shown["accuracy"] == pytest.approx(result.accuracy)
    assert shown["log_likelihood"] == pytest.approx(result.log_likelihood, rel=1e-4)
    first = json.loads(run("diagnose", model, path, "--json", "--keep-labels", "first").out)
    assert first["accuracy"] < shown["accuracy"]
