"""``extremax plan``: its memory is that of a real fit, its file is the one that train reads."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import Dataset
from extremax.features import Encoder, HashedText
from extremax.kernels.cpu import threads
from extremax.planning import Problem, estimate_memory, model_bytes
from extremax.planning.memory import available_bytes, held_out_rows, resident_bytes
from extremax.planning.sparse_timing import _fit_work

ROWS, FEATURES, CLASSES = 60_000, 128, 20_000

FIT = """
from extremax import ExtremeClassifier
from extremax.data import clustered

X, y = clustered({rows}, {classes}, {features})
ExtremeClassifier(epochs=2, random_state=0).fit(X, y)
"""


def test_memory_is_that_of_a_real_fit(program):
    # Compiling kernels takes memory of its own, and is done once.
    for rows, classes in ((ROWS // 100, CLASSES // 100), (ROWS, CLASSES)):
        fit = FIT.format(rows=rows, features=FEATURES, classes=classes)
        measured = _peak_of([sys.executable, "-c", fit])
    sizes = ["--rows", str(ROWS), "--features", str(FEATURES), "--classes", str(CLASSES)]
    command = [*program, "plan", *sizes, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    memory = json.loads(done.stdout)["memory"]
    assert memory["peak"] == pytest.approx(measured, rel=0.25)
    # The parts are what they say: a head of C × (K + 1) floats, rows of K.
    assert memory["items"]["head"] == 4 * CLASSES * (FEATURES + 1)
    assert memory["items"]["data"] == 4 * ROWS * FEATURES
    parts = sum(memory["items"].values()) + sum(memory["passing"].values())
    assert memory["peak"] == pytest.approx(parts, abs=20)


@pytest.mark.parametrize("components", [(), ("--components", "64")], ids=["sparse", "projected"])
def test_sparse_rows_as_they_are_and_projected(program, tmp_path, components):
    rng = np.random.default_rng(0)
    n_rows, n_features, each = 10_000, 100_000, 20
    columns = np.sort(rng.integers(1, n_features, (n_rows, each)), axis=1)
    columns[0, -1] = n_features
    lines = (" ".join(f"{j}:1" for j in sorted(set(row))) for row in columns.tolist())
    file = tmp_path / "a.svm"
    file.write_text("".join(f"{i % 500} {line}\n" for i, line in enumerate(lines)))
    options = ["--epochs", "1", *components, "-q"]
    # Compiling kernels takes memory of its own, and is done once.
    subprocess.run([*program, "train", str(file), "-o", str(tmp_path / "first"), *options])
    planned = subprocess.run(
        [*program, "plan", str(file), "--json", *options], capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    problem = plan["problem"]
    assert (problem["rows"], problem["classes"]) == (n_rows, 500)
    assert (problem["features"], problem["width"]) == (n_features, 64 if components else n_features)
    assert problem["stays_sparse"] == (not components)
    measured = _peak_of([*program, "train", str(file), "-o", str(tmp_path / "m"), *options])
    assert plan["memory"]["peak"] == pytest.approx(measured, rel=0.25)
    saved = sum(p.stat().st_size for p in (tmp_path / "m").iterdir())
    assert plan["disk"] == pytest.approx(saved, rel=0.1)


def _peak_of(command: list[str]) -> int:
    """ru_maxrss of a command, from a process that has no other children and is small itself: a
    child's begins with that of its parent."""
    watch = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch, *command], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_shows_memory_and_time_of_a_file(run, files):
    # The words of a training command, whatever they do for a plan.
    train = ("-o", "m", "--checkpoint", "c", "--seed", 3, "--learning-rate", 0.1, "--force")
    done = run("plan", files.tsv, "--components", 8, "--epochs", 2, *train)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{files.tsv}: 900 texts, ")
    assert ", 30 classes\n" in done.out
    for part in ("head", "Adagrad accumulators", "projection", "libraries", "peak", "2 epochs at"):
        assert f"\n  {part}" in done.out
    assert "model on disk: " in done.out


def test_texts_that_stay_sparse(run, files):
    done = run("plan", files.tsv, "--json")
    assert (done.status, done.err) == (0, "")
    plan = json.loads(done.out)
    # Thirty classes with two words of their own, and twenty common ones; 128 dimensions.
    assert plan["problem"]["features"] == 80
    items = plan["memory"]["items"]
    assert items["head"] + items["Adagrad accumulators"] == 8 * (30 + 80) * (128 + 1)
    steps = plan["seconds"]["steps"]
    names = ["reading", "hashing the texts", "fitting the noise", "looking at held-out rows"]
    assert {*names, "weighing head and noise"} <= set(steps)
    assert [name for name in steps if name.startswith("5 epochs at ")]
    assert all(seconds > 0 for seconds in steps.values())
    # Nothing to weigh.
    for other in (("--noise", "frequency"), ("--objective", "negative_sampling")):
        less = json.loads(run("plan", files.tsv, "--json", *other).out)["seconds"]["steps"]
        assert "weighing head and noise" not in less


def test_exact_softmax_on_texts_that_stay_sparse(run, files):
    done = run("plan", files.tsv, "--json", "--objective", "exact")
    assert (done.status, done.err) == (0, "")
    plan = json.loads(done.out)
    # At most a weight for each word of each text, not for each pair of class and word.
    assert 0 < plan["memory"]["items"]["head"] <= 900 * 5 * 24 + 30 * 8
    assert "weighing head and noise" not in plan["seconds"]["steps"]


def test_the_words_of_all_texts_are_guessed_from_the_first():
    def found(texts: list[str], n_rows: int) -> Problem:
        few = texts[:2_000]
        return Problem.of(Dataset(few, np.zeros(len(few), np.int64), ()), 1, Encoder(), n_rows)

    # Each text brings two words, of which some fall into the same bucket.
    texts = [f"one{i} two{i}" for i in range(40_000)]
    for n_rows in (1_500, 40_000):
        whole = HashedText().fit_transform(texts[:n_rows]).shape[1]
        assert found(texts[:n_rows], n_rows).features == pytest.approx(whole, rel=0.02)
    # Nothing is new after the first fifty.
    same = found([f"common{i % 50}" for i in range(2_000)], 40_000)
    assert (same.features, same.width, same.rows) == (50, 50, 40_000)


def _sparse(rows=100_000, features=10_000, classes=5_000, nonzeros=10.0, **more) -> Problem:
    bytes_each = 8 * nonzeros + 4
    return Problem(rows, features, classes, features, bytes_each, "sparse", nonzeros, True, **more)


def test_memory_of_sparse_rows_grows_with_what_it_is_made_of():
    model = ExtremeClassifier()
    small = estimate_memory(_sparse(), model).peak
    for grown in (
        _sparse(rows=1_000_000),
        _sparse(features=1_000_000),
        _sparse(classes=500_000),
        _sparse(nonzeros=100.0),
        _sparse(several=True),
    ):
        assert estimate_memory(grown, model).peak > small
    assert estimate_memory(_sparse(), ExtremeClassifier(bag_size=1000)).peak > small
    bag = 8 * (5_000 + 10_000) * (128 + 1)
    assert model_bytes(_sparse(), ExtremeClassifier(noise="uniform")) == pytest.approx(bag, rel=0.1)
    # A weight for each value and level, two levels.
    tree = 5.5 * 2 * 100_000 * 10 + 64 * 5_000
    assert model_bytes(_sparse(), model) == pytest.approx(bag + tree, rel=0.1)


def test_the_root_of_the_sparse_tree_has_a_number_for_each_row_and_child():
    # 256 classes are the children of one node; a fit takes at most two million rows.
    for n_rows, taken in ((1_000_000, 1_000_000), (8_000_000, 2**21)):
        problem = _sparse(rows=n_rows, features=100, classes=256, nonzeros=1.0)
        found = estimate_memory(problem, ExtremeClassifier(validation_fraction=0.0))
        assert found.phase == "fitting the noise"
        assert found.passing == pytest.approx(4 * taken * 256, rel=0.3)


def test_the_work_of_the_sparse_tree_is_that_of_its_longest_way():
    with threads.limit(1):
        # One level of 256 children; two of 16, and 16 times as many nodes.
        assert _fit_work(1_000, 256, 0) == 1_000 * 256
        assert _fit_work(1_000, 512, 0) == 1_000 * (16 + 32)
        assert _fit_work(1_000, 256, 3) == 4 * 1_000 * 256
    with threads.limit(4):
        # The root is one thread's, whatever the others do.
        assert _fit_work(1_000, 256, 0) == 1_000 * 256


def test_the_first_row_need_not_have_a_label(run, write):
    done = run("plan", write("a.svm", " 1:1\n" + "1 1:1\n2 2:1\n" * 50), "--epochs", 1)
    assert done.status == 0
    assert "100 sparse rows, 2 features, 2 classes" in done.out


def test_a_limit_of_seconds_limits_the_plan(run):
    sizes = ("--rows", 10_000_000, "--features", 64, "--classes", 1000, "--noise", "uniform")
    found = json.loads(run("plan", *sizes, "--max-seconds", 2, "--json").out)["seconds"]["steps"]
    trained = sum(seconds for name, seconds in found.items() if "epochs at" in name)
    assert 0 < trained <= 2


def test_a_training_that_does_not_fit_is_said_to(run):
    sizes = ("--rows", 1000, "--features", 64, "--classes", 2_000_000_000)
    done = run("plan", *sizes, "--noise", "uniform")
    assert done.status == 0
    assert "training would not fit" in done.err


@pytest.mark.parametrize("arguments", [("--rows", 5), ("a.svm", "--rows", 5)])
def test_a_file_or_all_sizes(run, arguments):
    done = run("plan", *arguments)
    assert done.status == 2
    assert "name a FILE, or give all of" in done.err


def test_memory_grows_with_what_it_is_made_of():
    model = ExtremeClassifier()
    small = estimate_memory(Problem.dense(10_000, 64, 1000), model)
    for grown in (
        Problem.dense(1_000_000, 64, 1000),
        Problem.dense(10_000, 640, 100_000),
        Problem.dense(10_000, 64, 1000, number_bytes=800),
    ):
        assert estimate_memory(grown, model).peak > small.peak
    problem = Problem.dense(100_000, 64, 50_000)
    # Looks at held-out rows keep to a size of their own: the budget is prediction's.
    less = estimate_memory(problem, ExtremeClassifier(memory_budget=2**24))
    assert less.passing == estimate_memory(problem, model).passing
    none = estimate_memory(problem, ExtremeClassifier(validation_fraction=0.0))
    assert none.passing < less.passing
    assert model_bytes(problem, model) == pytest.approx(8 * 50_000 * 65, rel=0.3)
    assert held_out_rows(Problem.dense(100, 4, 100), model) == 0
    # No more than 10,000 are held out, however many there are.
    assert held_out_rows(Problem.dense(10_000_000, 4, 100), model) == 10_000


def test_the_system_is_asked_for_memory():
    assert (resident_bytes() or 0) > 50_000_000
    assert (available_bytes() or 0) > 1_000_000
