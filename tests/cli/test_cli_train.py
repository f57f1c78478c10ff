"""``extremax train``: input, messages, the saved model, and options that are rejected."""

from __future__ import annotations

import shutil
import sys

import pytest

from extremax import ExtremeClassifier
from extremax.data import read
from extremax.features import Encoder
from extremax.storage.folder import MANIFEST, model_folder


def same_tensors(a, b) -> bool:
    """Whether two models have equal tensors, compared by the checksums of their files."""
    first, second = (model_folder(path).read_settings()["files"] for path in (a, b))
    return first == second


def test_saves_the_model_that_the_classifier_fits(run, files, sparse_model, tmp_path):
    data = read(files.svm)
    encoder = Encoder(n_components=16)
    model = ExtremeClassifier(noise="tree", encoder=encoder, epochs=3, random_state=0)
    model.fit(data.features, data.labels).save(tmp_path / "own")
    assert same_tensors(sparse_model, tmp_path / "own")


def test_prints_the_input_and_the_result(run, write, tmp_path):
    lines = [f"__label__c{i % 40} __label__b{i % 40} word{i % 40} w{i % 7}" for i in range(900)]
    file = write("a.ft", "\n".join([*lines, "nobody", "nothing"]) + "\n")
    done = run("train", file, "-o", tmp_path / "m", "--components", 16, "--epochs", 2)
    assert (done.status, done.out) == (0, "")
    assert f"read {file}: 900 texts" in done.err
    assert "dropped 2 more rows without a label" in done.err
    assert "900 with several labels: kept the first" in done.err
    assert "40 classes" in done.err
    assert "epoch 2/2" in done.err
    assert "held out: log-likelihood -" in done.err
    assert f"saved the model: {tmp_path / 'm'} (" in done.err
    assert set(ExtremeClassifier.load(tmp_path / "m").classes_) == {f"c{i}" for i in range(40)}
    smallest = ("--keep-labels", "smallest", "--noise", "uniform", "--quiet", "--force")
    done = run("train", file, "-o", tmp_path / "m", "--components", 8, "--epochs", 1, *smallest)
    assert (done.status, done.out, done.err) == (0, "", "")
    model = ExtremeClassifier.load(tmp_path / "m")
    assert set(model.classes_) == {f"b{i}" for i in range(40)}
    assert type(model.model_.noise).__name__ == "UniformNoise"


def test_objective_noise_and_start_take_parameters(run, files, tmp_path):
    objective, noise = "nce(regularization=0.01)", "frequency(power=0.75)"
    options = ("--labels", files.npy_labels, "--epochs", 1, "--objective", objective)
    options = (*options, "--noise", noise, "--start", "zeros", "--batch-size", 64, "--calibrate")
    assert run("train", files.npy, "-o", tmp_path / "m", *options).status == 0
    classifier = ExtremeClassifier.load(tmp_path / "m")
    assert (classifier.start, classifier.batch_size) == ("zeros", 64)
    model = classifier.model_
    assert (model.objective.regularization, model.noise.power) == (0.01, 0.75)
    assert model.blend.temperature != 1.0
    assert run("plan", files.npy, *options, "--json").status == 0


def test_a_start_that_sparse_rows_do_not_have_is_rejected(run, files, tmp_path):
    done = run("train", files.svm, "-o", tmp_path / "m", "--start", "class_means")
    assert done.status == 2
    assert "--start must be one of 'frequencies', 'zeros'" in done.err


def test_dense_rows_with_labels_in_a_second_file(run, files, tmp_path):
    picture = tmp_path / "curve.png"
    options = ("--labels", files.npy_labels, "--epochs", 3, "--picture", picture)
    done = run("train", files.npy, "-o", tmp_path / "m", *options)
    assert done.status == 0
    assert "1,500 dense rows" in done.err
    assert "60 classes, 20 features" in done.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.png", "m"]


def test_a_model_is_replaced_only_with_force(run, files, tmp_path):
    folder = tmp_path / "m"
    train = ("train", files.npy, "-o", folder, "--labels", files.npy_labels, "--epochs", 1, "-q")
    assert run(*train).status == 0
    before = (folder / MANIFEST).read_bytes()
    refused = run(*train, "--seed", 1)
    assert refused.status == 2
    assert (
        refused.err == f"extremax: {folder} already contains a model; use --force to replace it\n"
    )
    assert (folder / MANIFEST).read_bytes() == before
    assert run(*train, "--seed", 1, "--force").status == 0
    assert (folder / MANIFEST).read_bytes() != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise", "nosuch"], "--noise must be one of auto, tree, "),
        (["--objective", "nosuch"], "--objective must be one of auto, "),
        (["--noise", "uniform", "--tree-components", "8"], "applies to --noise tree and mixture"),
        (
            ["--noise", "tree(n_components=4)", "--tree-components", "8"],
            "--tree-components applies to --noise tree and mixture, not tree(n_components=4)",
        ),
        (["--noise", "tree(leaves=4)"], "--noise: TreeNoise has no parameter 'leaves' = 4; it has"),
        (["--noise", "nosuch(a=4)"], "--noise must be one of auto, tree, "),
        (["--noise", "tree(4)"], "--noise: noise must be a name or a name with parameters"),
        (["--objective", "nce(regularization=x)"], "--objective: regularization must be a number"),
        (["--calibrate", "--validation-fraction", "0"], "--calibrate needs held-out rows"),
        (["--ngrams", "2-4"], "--ngrams applies to texts"),
        (["--analyzer", "char_wb"], "--analyzer applies to texts"),
        (["--components", "8"], "--components applies to sparse rows and texts"),
        (["--learning-rate", "0"], "--learning-rate must be > 0"),
        (["--weight-decay", "-1"], "--weight-decay must be a number from 0 to 1e6, got -1.0"),
        (["--validation-fraction", "1"], "--validation-fraction must be in [0, 1)"),
        (["--picture", "c.png", "--validation-fraction", "0"], "--picture plots held-out figures"),
        (["--picture", "c.xyz"], "must end in .png, .pdf or .svg"),
        (["--label-column", "a"], "--label-column applies to parquet, csv and tsv files"),
        (["--seed", "-1"], "--seed must be at least 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_options_are_rejected_in_one_line(run, files, tmp_path, options, message):
    train = ("train", files.npy, "-o", tmp_path / "m", "--labels", files.npy_labels)
    done = run(*train, *options)
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith("extremax: ")
    assert message in done.err.splitlines()[-1]
    assert not (tmp_path / "m").exists()


def test_weight_decay_needs_a_linear_head(run, files, tmp_path):
    done = run("train", files.svm, "-o", tmp_path / "m", "--weight-decay", 0.1)
    assert done.status == 2
    assert "--weight-decay must be 0 with SampledSoftmax on sparse rows" in done.err
    assert "use --objective exact, or project the rows with --components 256" in done.err


def test_the_picture_begins_at_the_start(run, files, tmp_path, monkeypatch):
    """So that its ring is there if no epoch was better."""
    drawn = {}
    monkeypatch.setattr("extremax.report.learning_curves", lambda runs, path: drawn.update(runs))
    options = ("--labels", files.npy_labels, "--epochs", 1, "--picture", tmp_path / "c.png")
    assert run("train", files.npy, "-o", tmp_path / "m", *options).status == 0
    ((first, second),) = drawn.values()
    assert (first["epoch"], second["epoch"]) == (0, 1)
    assert first["seconds"] <= second["seconds"]


def test_a_picture_without_matplotlib_is_rejected_before_training(
    run, files, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("train", files.tsv, "-o", tmp_path / "m", "--picture", tmp_path / "c.png")
    assert done.status == 2
    assert done.err == "extremax: plots need matplotlib: pip install 'extremax[report]'\n"


def test_a_model_too_large_for_the_disk_is_rejected_before_training(
    run, files, tmp_path, monkeypatch
):
    space = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: space)
    done = run("train", files.npy, "-o", tmp_path / "m", "--labels", files.npy_labels)
    assert done.status == 2
    assert "but only 1 kB are free there" in done.err
    assert "epoch" not in done.err
    assert not (tmp_path / "m").exists()


def test_too_few_rows_to_hold_out(run, write, tmp_path):
    file = write("a.svm", "1 1:1\n2 2:1\n1 1:2\n2 2:2\n" * 5)
    done = run("train", file, "-o", tmp_path / "m", "--epochs", 1, "--picture", tmp_path / "c.png")
    assert done.status == 0
    assert "no rows were held out" in done.err
    assert "no learning curve" in done.err
    assert not (tmp_path / "c.png").exists()


def test_a_finished_run_leaves_no_checkpoint(run, files, tmp_path):
    options = ("--labels", files.npy_labels, "--epochs", 2, "-q", "--checkpoint", tmp_path / "c")
    assert run("train", files.npy, "-o", tmp_path / "m", *options).status == 0
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    # Other files stay.
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes").touch()
    assert run("train", files.npy, "-o", tmp_path / "m", "--force", *options).status == 0
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["notes"]
