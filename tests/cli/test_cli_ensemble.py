"""``--n-models`` and ``--label-texts``: training, what is printed of it, and plans."""

from __future__ import annotations

import json

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.cli.console import figures
from extremax.data import read
from extremax.features import Encoder
from extremax.planning import Workload, estimate_memory, model_bytes

FEW = ("--epochs", 2, "--bag-size", 8, "--threads", 1)


@pytest.fixture(scope="module")
def trained(run, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble")
    picture = folder / "curve.svg"
    done = run(
        "train", files.tsv, "-o", folder / "m", "--n-models", 2, *FEW, "--picture", picture,
        "--checkpoint", folder / "run",
    )  # fmt: skip
    assert done.status == 0
    return folder, done.err


def test_trains_the_ensemble_that_the_classifier_fits(files, trained):
    folder, said = trained
    data = read(files.tsv)
    model = ExtremeClassifier(n_models=2, epochs=2, bag_size=8, n_jobs=1, random_state=0)
    model.fit(data.features, data.labels)
    loaded = ExtremeClassifier.load(folder / "m")
    texts = data.features[:20]
    assert loaded.predict_proba(texts).tobytes() == model.predict_proba(texts).tobytes()
    for number in (1, 2):
        assert f"model {number} of 2" in said
        assert f"model {number}, kept " in said
    validation = loaded.validation_
    assert f"held out: {figures(validation)} (finished model, {validation['rows']} rows)" in said
    assert not (folder / "run").exists()
    picture = (folder / "curve.svg").read_text()
    assert "model 1" in picture
    assert "model 2" in picture


def test_info_says_how_many_models_there_are(run, trained):
    done = run("info", trained[0] / "m")
    assert done.status == 0
    assert "models" in done.out
    assert "2, whose probabilities are averaged" in done.out
    # Those of the first.
    assert "trained" in done.out
    assert "2 epochs in" in done.out
    shown = json.loads(run("info", trained[0] / "m", "--json").out)
    assert len(shown["others"]) == 1


def test_predicts_and_evaluates(run, files, trained):
    done = run("evaluate", trained[0] / "m", files.tsv, "--json")
    assert json.loads(done.out)["accuracy"] > 0.8
    done = run("predict", trained[0] / "m", files.tsv, "-k", 1, "-q")
    assert done.status == 0
    assert len(done.out.splitlines()) == len(read(files.tsv))


def test_a_plan_counts_every_model(files):
    data = read(files.tsv)
    work = Workload.of(data, 30, Encoder())
    one, three = (ExtremeClassifier("sampled_softmax", n_models=n, n_jobs=1) for n in (1, 3))
    items = [estimate_memory(work, model).items for model in (one, three)]
    for name in ("head", "Adagrad accumulators", "noise"):
        assert items[1][name] == 3 * items[0][name]
    for name in ("data", "encoded rows", "encoder", "further experts"):
        assert items[1][name] == items[0][name]
    assert 1.5 < model_bytes(work, three) / model_bytes(work, one) < 3.0


def test_a_plan_takes_the_options_of_train(run, files, write):
    names = write("names.tsv", "class 1\tone\n")
    done = run(
        "plan", files.tsv, "--n-models", 3, "--label-texts", names, "-o", "x", "--json", *FEW
    )
    assert done.status == 0
    assert any(
        name.startswith("3 times 2 epochs") for name in json.loads(done.out)["seconds"]["steps"]
    )


def test_label_texts_become_classes(run, files, write, tmp_path):
    names = write("names.tsv", "class 1\town1 first\n\nbrand new\tzebra crossing\n")
    done = run("train", files.tsv, "-o", tmp_path / "m", "--label-texts", names, *FEW)
    assert done.status == 0
    model = ExtremeClassifier.load(tmp_path / "m")
    data = read(files.tsv)
    fitted = ExtremeClassifier(epochs=2, bag_size=8, n_jobs=1, random_state=0).fit(
        data.features,
        data.labels,
        label_texts={"class 1": "own1 first", "brand new": "zebra crossing"},
    )
    texts = [*data.features[:20], "zebra crossing"]
    assert model.predict_proba(texts).tobytes() == fitted.predict_proba(texts).tobytes()
    assert "brand new" in model.classes_


def test_numbers_are_read_as_numbers(run, write, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {"label": np.arange(300) % 10, "text": [f"w{i % 10} x{i % 3}" for i in range(300)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    names = write("names.tsv", "10\tzebra\n")
    done = run("train", tmp_path / "a.parquet", "-o", tmp_path / "m", "--label-texts", names, *FEW)
    assert done.status == 0
    assert ExtremeClassifier.load(tmp_path / "m").classes_.tolist() == list(range(11))
    names = write("words.tsv", "ten\tzebra\n")
    done = run("train", tmp_path / "a.parquet", "-o", tmp_path / "n", "--label-texts", names, *FEW)
    assert done.status == 2
    assert "label 'ten' is no number" in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("class 1\tone\nclass 2 two\n", "line 2"),
        ("class 1\tone\nclass 1\ttwo\n", "label 'class 1' again (--label-texts)"),
    ],
)
def test_wrong_files_are_refused_before_training(run, files, write, tmp_path, content, message):
    names = write("names.tsv", content)
    done = run("train", files.tsv, "-o", tmp_path / "m", "--label-texts", names)
    assert done.status == 2
    assert message in done.err.replace("names.tsv:2", "line 2")
    assert not (tmp_path / "m").exists()


def test_label_texts_are_for_texts(run, files, write, tmp_path):
    names = write("names.tsv", "1\tone\n")
    done = run("train", files.svm, "-o", tmp_path / "m", "--label-texts", names)
    assert done.status == 2
    assert "--label-texts applies to texts" in done.err
