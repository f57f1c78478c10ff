"""``extremax plan``: estimated memory agrees with real runs, and it takes the options of train."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from extremax import ExtremeClassifier
from extremax.data import Dataset
from extremax.features import Encoder, HashedText
from extremax.noise import SparseTreeNoise
from extremax.planning import Workload, available_bytes, estimate_memory, model_bytes
from extremax.planning.memory import held_out_rows, resident_bytes
from extremax.rows import Sizes, SparseRows

ROWS, FEATURES, CLASSES = 60_000, 128, 20_000

FIT = """
from extremax import ExtremeClassifier
from extremax.data import clustered

X, y = clustered({rows}, {classes}, {features})
ExtremeClassifier(epochs=2, random_state=0).fit(X, y)
"""


def test_memory_is_that_of_a_real_fit(program):
    # The first run compiles kernels, which takes additional memory.
    for rows, classes in ((ROWS // 100, CLASSES // 100), (ROWS, CLASSES)):
        fit = FIT.format(rows=rows, features=FEATURES, classes=classes)
        measured = _peak_of([sys.executable, "-c", fit])
    sizes = ["--rows", str(ROWS), "--features", str(FEATURES), "--classes", str(CLASSES)]
    command = [*program, "plan", *sizes, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    memory = json.loads(done.stdout)["memory"]
    assert memory["peak"] == pytest.approx(measured, rel=0.25)
    # A head of C × (K + 1) floats, rows of K floats.
    assert memory["items"]["head"] == 4 * CLASSES * (FEATURES + 1)
    assert memory["items"]["data"] == 4 * ROWS * FEATURES
    parts = sum(memory["items"].values()) + sum(memory["passing"].values())
    assert memory["peak"] == pytest.approx(parts, abs=20)


@pytest.mark.parametrize("components", [(), ("--components", "64")], ids=["sparse", "projected"])
def test_sparse_rows_as_they_are_and_projected(program, tmp_path, components):
    rng = np.random.default_rng(0)
    n_rows, n_features, n_values = 10_000, 100_000, 20
    columns = np.sort(rng.integers(1, n_features, (n_rows, n_values)), axis=1)
    columns[0, -1] = n_features
    lines = (" ".join(f"{j}:1" for j in sorted(set(row))) for row in columns.tolist())
    file = tmp_path / "a.svm"
    file.write_text("".join(f"{i % 500} {line}\n" for i, line in enumerate(lines)))
    options = ["--epochs", "1", *components, "-q"]
    # The first run compiles kernels, which takes additional memory.
    subprocess.run([*program, "train", str(file), "-o", str(tmp_path / "first"), *options])
    planned = subprocess.run(
        [*program, "plan", str(file), "--json", *options], capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    problem = plan["problem"]
    assert (problem["rows"], problem["classes"]) == (n_rows, 500)
    assert (problem["features"], problem["width"]) == (n_features, 64 if components else n_features)
    assert problem["encoded"] == ("dense rows" if components else "sparse rows")
    assert (problem["kind"], problem["multilabel"]) == ("sparse", False)
    measured = _peak_of([*program, "train", str(file), "-o", str(tmp_path / "m"), *options])
    assert plan["memory"]["peak"] == pytest.approx(measured, rel=0.25)
    saved = sum(p.stat().st_size for p in (tmp_path / "m").iterdir())
    assert plan["disk"] == pytest.approx(saved, rel=0.1)


def _peak_of(command: list[str]) -> int:
    """Measure ru_maxrss of a command from a small process without other children, because the
    value of a child starts at that of its parent."""
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_shows_memory_and_time_of_a_file(run, files):
    # All options of a training command are accepted, also those without effect on a plan.
    train = ("-o", "m", "--checkpoint", "c", "--seed", 3, "--learning-rate", 0.1, "--force")
    done = run("plan", files.tsv, "--components", 8, "--epochs", 2, *train)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{files.tsv}: 900 texts, ")
    assert ", 30 classes\n" in done.out
    for part in ("head", "Adagrad accumulators", "encoder", "libraries", "peak", "2 epochs at"):
        assert f"\n  {part}" in done.out
    assert "model on disk: " in done.out


def test_sizes_of_a_large_file_are_called_about(run, files, monkeypatch):
    monkeypatch.setattr("extremax.planning.sizes._MOST_BYTES", files.tsv.stat().st_size // 2)
    done = run("plan", files.tsv, "--components", 8, "--epochs", 1, "--noise", "uniform")
    assert (done.status, done.err) == (0, "")
    found = re.match(r".*: about (\d+) texts, .* n-grams each, about 30 classes\n", done.out)
    assert found is not None
    # Lines are of about the same length, and two digits are shown.
    assert int(found[1]) == pytest.approx(900, rel=0.05)
    assert int(found[1]) % 10 == 0


def test_texts_that_stay_sparse(run, files):
    done = run("plan", files.tsv, "--json", "--objective", "sampled_softmax")
    assert (done.status, done.err) == (0, "")
    plan = json.loads(done.out)
    # Thirty classes with two distinctive words each, and twenty common words; 128 dimensions.
    assert plan["problem"]["features"] == 80
    items = plan["memory"]["items"]
    # A vector and its accumulator each, and a bias and its accumulator per class.
    assert items["head"] + items["Adagrad accumulators"] == 4 * (30 * 131 + 80 * 129)
    steps = plan["seconds"]["steps"]
    names = ["reading", "hashing the texts", "fitting the noise", "evaluating held-out rows"]
    assert {*names, "blending the experts"} <= set(steps)
    assert [name for name in steps if name.startswith("5 epochs at ")]
    assert all(seconds > 0 for seconds in steps.values())
    # Head and noise are not blended.
    for other in (("--noise", "frequency"), ("--objective", "negative_sampling")):
        less = json.loads(run("plan", files.tsv, "--json", *other).out)["seconds"]["steps"]
        assert "blending the experts" not in less


def test_exact_softmax_on_texts_that_stay_sparse(run, files):
    done = run("plan", files.tsv, "--json", "--objective", "exact")
    assert (done.status, done.err) == (0, "")
    plan = json.loads(done.out)
    # At most one weight per word of each text, not one per class and word.
    assert 0 < plan["memory"]["items"]["head"] <= 900 * 5 * 24 + 30 * 8
    assert "blending the experts" not in plan["seconds"]["steps"]


def test_the_vocabulary_is_extrapolated_from_the_first_texts():
    def planned(texts: list[str], n_rows: int) -> Workload:
        few = texts[:2_000]
        return Workload.of(Dataset(few, np.zeros(len(few), np.int64), ()), 1, Encoder(), n_rows)

    # Each text adds two words, some of which share a bucket.
    texts = [f"one{i} two{i}" for i in range(40_000)]
    for n_rows in (1_500, 40_000):
        whole = HashedText().fit_transform(texts[:n_rows]).shape[1]
        assert planned(texts[:n_rows], n_rows).features == pytest.approx(whole, rel=0.02)
    # No new words after the first fifty texts.
    same = planned([f"common{i % 50}" for i in range(2_000)], 40_000)
    assert (same.features, same.encoded.width, same.rows) == (50, 50, 40_000)


def _sparse(
    rows=100_000, features=10_000, classes=5_000, nonzeros=10.0, multilabel=False
) -> Workload:
    sample = csr_matrix((1, features), dtype=np.float32)
    plan = Encoder().plan(sample, rows, features, nonzeros, multilabel)
    row_bytes = SparseRows.bytes_per_row(nonzeros)
    return Workload(
        rows, features, classes, nonzeros, row_bytes, "sparse", "sparse rows", plan, multilabel
    )


def test_memory_of_sparse_rows_grows_with_the_sizes():
    model = ExtremeClassifier()
    small = estimate_memory(_sparse(), model).peak
    for grown in (
        _sparse(rows=1_000_000),
        _sparse(features=1_000_000),
        _sparse(classes=500_000),
        _sparse(nonzeros=100.0),
        _sparse(multilabel=True),
    ):
        assert estimate_memory(grown, model).peak > small
    assert estimate_memory(_sparse(), ExtremeClassifier(bag_size=1000)).peak > small
    bag = 4 * (5_000 + 10_000) * (128 + 2)
    assert model_bytes(_sparse(), ExtremeClassifier(noise="uniform")) == pytest.approx(bag, rel=0.1)
    # One weight per value and level, two levels.
    tree = 5.5 * 2 * 100_000 * 10 + 64 * 5_000
    alone = ExtremeClassifier(similar_rows=False)
    assert model_bytes(_sparse(), alone) == pytest.approx(bag + tree, rel=0.15)
    # Row and value of every value.
    kept = 8 * 100_000 * 10
    assert model_bytes(_sparse(), model) == pytest.approx(bag + tree + kept, rel=0.1)


def test_the_root_of_the_sparse_tree_has_one_number_per_row_and_child():
    # 256 classes are the children of one node; a fit uses at most two million rows.
    for n_rows, used in ((1_000_000, 1_000_000), (8_000_000, 2**21)):
        work = _sparse(rows=n_rows, features=100, classes=256, nonzeros=1.0)
        memory = estimate_memory(
            work, ExtremeClassifier(validation_fraction=0.0, similar_rows=False)
        )
        assert memory.phase == "fitting the noise"
        assert memory.passing == pytest.approx(4 * used * 256, rel=0.3)


def test_the_work_of_the_sparse_tree_is_that_of_its_longest_path():
    def work(n_classes: int, n_threads: int, penalty: str | float = 1.0) -> float:
        sizes = Sizes(1_000, 100, n_classes, 1.0)
        return SparseTreeNoise(lambda_=penalty).fit_work(sizes, n_threads)

    # One level of 256 children; two levels of 16 and 32.
    assert work(256, 1) == 1_000 * 256
    assert work(512, 1) == 1_000 * (16 + 32)
    # Three more fits to choose the penalty.
    assert work(256, 1, "auto") == 4 * 1_000 * 256
    # One thread fits the root, whatever the number of threads.
    assert work(256, 4) == 1_000 * 256


def test_the_first_row_need_not_have_a_label(run, write):
    done = run("plan", write("a.svm", " 1:1\n" + "1 1:1\n2 2:1\n" * 50), "--epochs", 1)
    assert done.status == 0
    assert "100 sparse rows, 2 features, 2 classes" in done.out


def test_a_limit_of_seconds_limits_the_plan(run):
    sizes = ("--rows", 10_000_000, "--features", 64, "--classes", 1000, "--noise", "uniform")
    found = json.loads(run("plan", *sizes, "--max-seconds", 2, "--json").out)["seconds"]["steps"]
    trained = sum(seconds for name, seconds in found.items() if "epochs at" in name)
    assert 0 < trained <= 2


def test_training_that_does_not_fit_is_warned_about(run):
    sizes = ("--rows", 1000, "--features", 64, "--classes", 2_000_000_000)
    done = run("plan", *sizes, "--noise", "uniform")
    assert done.status == 0
    assert "training does not fit into memory" in done.err


@pytest.mark.parametrize("arguments", [("--rows", 5), ("a.svm", "--rows", 5)])
def test_a_file_or_all_sizes_are_needed(run, arguments):
    done = run("plan", *arguments)
    assert done.status == 2
    assert "give either FILE, or all of --rows, --features and --classes" in done.err


def test_memory_grows_with_the_sizes():
    model = ExtremeClassifier(similar_rows=False)
    small = estimate_memory(Workload.dense(10_000, 64, 1000), model)
    for grown in (
        Workload.dense(1_000_000, 64, 1000),
        Workload.dense(10_000, 640, 100_000),
        Workload.dense(10_000, 64, 1000, number_bytes=800),
    ):
        assert estimate_memory(grown, model).peak > small.peak
    work = Workload.dense(100_000, 64, 50_000)
    # Evaluations during training have a fixed budget; memory_budget is for predictions.
    less = estimate_memory(work, ExtremeClassifier(memory_budget=2**24, similar_rows=False))
    assert less.passing == estimate_memory(work, model).passing
    none = estimate_memory(work, ExtremeClassifier(validation_fraction=0.0, similar_rows=False))
    assert none.passing < less.passing
    assert model_bytes(work, model) == pytest.approx(8 * 50_000 * 65, rel=0.3)
    assert held_out_rows(Workload.dense(100, 4, 100), model) == 0
    # At most 10,000 rows are held out.
    assert held_out_rows(Workload.dense(10_000_000, 4, 100), model) == 10_000


def test_memory_of_the_process_and_of_the_system():
    assert (resident_bytes() or 0) > 50_000_000
    assert (available_bytes() or 0) > 1_000_000
