"""``extremax info``: a description of a model, read from its manifest alone."""

from __future__ import annotations

import json
import shutil

import pytest

from extremax import ExtremeClassifier
from extremax.cli.train import kept_record
from extremax.storage.folder import MANIFEST, model_folder


def test_shows_what_a_model_is(run, text_model, sparse_model):
    done = run("info", text_model)
    assert (done.status, done.err) == (0, "")
    shown = {line[:13].strip(): line[13:].strip() for line in done.out.splitlines()}
    assert shown["classes"] == "30 names"
    # Thirty classes with two distinctive words each, and twenty common words.
    assert shown["features"] == "texts: word n-grams of 1, 80 buckets, projected to 32"
    assert shown["noise"].startswith("tree(")
    assert shown["objective"].startswith("negative_sampling(")
    assert shown["probabilities"].startswith("softmax over all classes; the bias")
    assert shown["trained"].startswith("5 epochs in ")
    assert shown["last epoch"].startswith("surrogate loss ")
    assert shown["held out"].startswith("log-likelihood -")
    assert not {"head", "logits"} & set(shown)
    features = run("info", sparse_model).out.splitlines()[3]
    assert features.endswith("20, sparse, projected to 16")


def test_models_of_sparse_rows_blend_a_bag_and_a_tree(run, bag_model):
    done = run("info", bag_model)
    assert (done.status, done.err) == (0, "")
    shown = {line[:13].strip(): line[13:].strip() for line in done.out.splitlines()}
    assert shown["features"] == "texts: word n-grams of 1, 80 buckets"
    assert shown["head"] == "learned bag of features, 24 dimensions"
    assert shown["noise"].startswith("sparse_tree(")
    blend = ExtremeClassifier.load(bag_model).model_.blend
    (weight,), (votes,) = blend.levels, blend.experts
    terms = f"score + {weight:g} log q + {votes:g} log(1 + similar_rows/ε) {blend.prior:+g} log n"
    assert shown["logits"] == f"({terms}) / {blend.temperature:g}, q of the noise"


def test_exact_softmax_on_sparse_rows_has_no_bag(run, files, tmp_path):
    options = ("--objective", "exact", "--epochs", 1, "-q")
    assert run("train", files.tsv, "-o", tmp_path / "m", *options).status == 0
    done = run("info", tmp_path / "m")
    assert "one weight per class and feature that occur together\n" in done.out
    assert "learned bag" not in done.out


def test_needs_no_tensors(run, text_model, tmp_path):
    (tmp_path / "m").mkdir()
    shutil.copy(text_model / MANIFEST, tmp_path / "m")
    assert run("info", tmp_path / "m").status == 0


def test_json(run, text_model):
    found = json.loads(run("info", text_model, "--json").out)
    assert found["labels"]["n_classes"] == 30
    assert found["bytes"] == sum(p.stat().st_size for p in text_model.iterdir())


def test_other_folders_are_rejected(run, tmp_path):
    done = run("info", tmp_path)
    assert (done.status, done.out) == (2, "")
    assert done.err == (f"extremax: {tmp_path} has no manifest.json: it is not an extremax model\n")
    model_folder(tmp_path).write({}, {})
    done = run("info", tmp_path)
    assert done.status == 2
    assert "lacks 'labels'" in done.err


@pytest.mark.parametrize(
    ("start", "epochs", "kept"),
    [(-1.0, (-3.0, -2.0), 0), (-4.0, (-3.0, -2.0), 2), (-4.0, (-2.0, -3.0), 1)],
)
def test_the_head_that_is_kept_may_be_the_start(start, epochs, kept):
    first = {"epoch": 0, "log_likelihood": start}
    history = [{"epoch": i, "log_likelihood": v} for i, v in enumerate(epochs, 1)]
    assert kept_record(history, [first])["epoch"] == kept
    assert kept_record([{"epoch": 1}]) is None


def test_a_start_that_training_did_not_improve_is_kept(run, files, tmp_path):
    model = tmp_path / "wild"
    wild = ("--learning-rate", 300, "--epochs", 2, "--components", 8)
    done = run("train", files.tsv, "-o", model, *wild)
    assert done.status == 0, done.err
    settings = model_folder(model).read_settings()
    assert settings["evaluations"][0]["log_likelihood"] > max(
        record["log_likelihood"] for record in settings["history"]
    )
    assert "did not improve it" in done.err
    assert "none (the start)" in run("info", model).out
