"""The comparison: tuning, final runs, resuming, and what it rejects."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.comparison import Options, Problem, Watch, choose, compare, measures, runs
from extremax.comparison.cells import make
from extremax.comparison.folder import write_file
from extremax.comparison.runner import Comparison
from extremax.comparison.tuning import Setting
from extremax.errors import DivergedError, ModelFileError
from extremax.report.page import write_report

CELLS = "negative_sampling×tree, sampled_softmax:uniform@8, exact"
OPTIONS = Options(
    budget=0.3, learning_rates=(0.3, 1.0), regularizations=(0.0, 1e-3), validation_fraction=0.25
)


@pytest.fixture(scope="module")
def comparison(problem: Problem) -> Comparison:
    cells, left_out = choose(CELLS, 5)
    assert not left_out
    return compare(problem, cells, OPTIONS, name="synthetic")


def test_all_cells_start_where_the_options_say(problem):
    (cell,), _ = choose("nce×frequency", 5)
    model = runs.classifier(cell, Setting(0.3, 0.0), 1.0, replace(OPTIONS, start="zeros"))
    assert model.start == "zeros"
    with pytest.raises(ValueError, match="start must be None or one of 'class_means'"):
        replace(OPTIONS, start="random")


def test_weight_decay_is_tuned_over_the_values_given(problem):
    cells, _ = choose("one_vs_each×uniform", 5)
    assert runs.classifier(cells[0], Setting(0.3, 0.0, 0.2), 1.0, OPTIONS).weight_decay == 0.2
    grid = {"learning_rates": (0.3,), "regularizations": (0.0,), "weight_decays": (0.0, 0.2)}
    result = compare(problem, cells, replace(OPTIONS, budget=0.1, **grid))
    (tuning,), (final,) = result.tuning.values(), result.final.values()
    assert [record["weight_decay"] for record in tuning] == [0.0, 0.2]
    best = max(tuning, key=lambda record: record["log_likelihood"])
    assert final["weight_decay"] == best["weight_decay"]


def test_the_penalty_of_a_cell_that_says_it_is_not_tuned(problem):
    cells, _ = choose("nce(regularization=0.1)×frequency(power=0.75)", 5)
    result = compare(problem, cells, replace(OPTIONS, budget=0.1))
    assert not result.failed
    (tuning,), (final,) = result.tuning.values(), result.final.values()
    assert [record["learning_rate"] for record in tuning] == [0.3, 1.0]
    assert {record["regularization"] for record in (*tuning, final)} == {0.1}


def test_every_cell_is_tuned_and_beats_the_prior(comparison, problem):
    assert [c.name for c in comparison.final] == [
        "negative sampling × tree",
        "sampled softmax × uniform",
        "exact",
    ]
    assert comparison.failed == comparison.left_out == []
    for cell, record in comparison.final.items():
        short = comparison.tuning[cell]
        assert [r["round"] for r in short] == [1, 1, 1, 1, 2, 2]
        last = max(short[-2:], key=lambda r: r["log_likelihood"])
        for key in ("learning_rate", "regularization"):
            assert record[key] == last[key]
        first = sorted((r["log_likelihood"] for r in short[:4]), reverse=True)
        # The settings of the second round are the better half of the first.
        second = {(r["learning_rate"], r["regularization"]) for r in short[4:]}
        cut = {(r["learning_rate"], r["regularization"]) for r in short[:4]
               if r["log_likelihood"] > first[2]}  # fmt: skip
        assert cut <= second
        assert record["test"]["log_likelihood"] > comparison.prior["log_likelihood"]
        assert record["test"]["accuracy"] > comparison.prior["accuracy"]
        assert record["peak_memory"] > 50e6
        assert record["curve"][-1]["seconds"] <= record["seconds"] + 1e-9
    assert [bool(r["bias"]) for r in comparison.final.values()] == [False, True, False]


def test_figures_are_those_of_the_classifier_on_the_test_rows(problem):
    cell = choose("nce×frequency", 5)[0][0]
    setting = Setting(0.3, 0.0)
    model, _ = runs.train(cell, setting, 0.2, OPTIONS, problem)
    test, calibration = measures.figures(model, problem)
    best = model.predict_topk(problem.test, 5).labels
    correct = best[:, 0] == problem.test_labels
    assert test["accuracy"] == pytest.approx(correct.mean())
    in_top = (best == problem.test_labels[:, None]).any(1)
    assert test["top5_accuracy"] == pytest.approx(in_top.mean())
    log_p = model.predict_log_proba(problem.test, problem.test_labels)
    assert test["log_likelihood"] == pytest.approx(log_p.mean(), rel=1e-5)
    error = log_p.std() / np.sqrt(len(log_p))
    assert test["log_likelihood_error"] == pytest.approx(error, rel=1e-5)
    assert 0 <= calibration["error"] <= 1


def test_a_fitted_noise_restores_what_its_fit_found(problem):
    rows = np.arange(0, len(problem.labels), 2)
    for name in ("tree", "frequency", "mixture"):
        cell = choose(f"nce×{name}", 5)[0][0]
        ready = runs.fitted(cell, OPTIONS, problem, rows)
        plain = make(cell, tree_components=OPTIONS.tree_components)[1]
        plain.fit(problem.features, problem.labels, problem.n_classes, rows)
        # A real fit to no rows would have nothing to learn from.
        ready.fit(problem.features[:1], problem.labels[:1], problem.n_classes, rows[:0])
        for noise in (plain, ready):
            if noise.sharpnesses():
                noise.temper(1.0)
        context = plain.context(problem.features[:5])
        assert np.array_equal(plain.log_prob_all(context), ready.log_prob_all(context))


class Interrupting:
    """Interrupt the classifier's fit after some runs; warm-up runs do not count."""

    def __init__(self, monkeypatch, after: int) -> None:
        self.left, self.fits = after, 0
        fit = ExtremeClassifier.fit

        def counted(model, X, y, *arguments, **named):
            if model.max_seconds is not None:
                if self.left == 0:
                    raise KeyboardInterrupt
                self.left -= 1
                self.fits += 1
            return fit(model, X, y, *arguments, **named)

        monkeypatch.setattr(ExtremeClassifier, "fit", counted)


def test_an_interrupted_comparison_resumes(problem, tmp_path, monkeypatch):
    cells, _ = choose(CELLS, 5)
    stop = Interrupting(monkeypatch, after=9)
    with pytest.raises(KeyboardInterrupt):
        compare(problem, cells, OPTIONS, folder=tmp_path)
    finished = {p: p.read_bytes() for p in (tmp_path / "runs").rglob("*.json")}
    assert len(finished) == 9
    stop.left = 1000
    result = compare(problem, cells, OPTIONS, folder=tmp_path)
    # Seven runs per cell, of which nine were finished before.
    assert stop.fits == 3 * 7
    assert len(list((tmp_path / "runs").rglob("*.json"))) == 21
    assert all(path.read_bytes() == content for path, content in finished.items())
    assert not list(tmp_path.rglob(".*"))
    again = compare(problem, cells, OPTIONS, folder=tmp_path)
    assert stop.fits == 3 * 7
    assert json.loads(json.dumps(list(again.final.values()))) == json.loads(
        json.dumps(list(result.final.values()))
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"budget": 0.2}, "differs in budget"),
        ({"seed": 1}, "differs in seed"),
        ({"learning_rates": (0.3,)}, "differs in learning_rates"),
        ({"threads": 1}, "differs in machine"),
    ],
)
def test_a_folder_of_another_comparison_is_rejected(problem, tmp_path, change, said, monkeypatch):
    monkeypatch.setattr("extremax.kernels.cpu.threads.available", lambda: 2)
    Interrupting(monkeypatch, after=0)
    cells, _ = choose("exact", 5)
    for options in (OPTIONS, replace(OPTIONS, **change)):
        match = None if options == OPTIONS else said
        error = KeyboardInterrupt if match is None else ModelFileError
        with pytest.raises(error, match=match):
            compare(problem, cells, options, folder=tmp_path)


def test_folders_of_other_content_are_rejected(problem, tmp_path):
    cells, _ = choose("exact", 5)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="is a file"):
        compare(problem, cells, OPTIONS, folder=tmp_path / "file")
    with pytest.raises(ModelFileError, match="is not empty and holds no comparison"):
        compare(problem, cells, OPTIONS, folder=tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(ModelFileError, match="damaged"):
        compare(problem, cells, OPTIONS, folder=tmp_path)


def test_a_cell_that_fails_or_is_left_out_does_not_stop_the_others(problem, monkeypatch):
    cells, _ = choose("nce×uniform, nce×frequency, nce×log_uniform, exact", 5)
    fit = ExtremeClassifier.fit

    def broken(model, X, y, *arguments, **named):
        kind = type(model.noise).__name__
        if kind == "UniformNoise" and type(model.objective).__name__ == "NCE":
            raise ValueError("not with these rows")
        if kind == "FrequencyNoise" and model.max_seconds:
            raise RuntimeError("out of order")
        if kind == "LogUniformNoise" and model.max_seconds:
            raise DivergedError("the loss is not finite")
        return fit(model, X, y, *arguments, **named)

    monkeypatch.setattr(ExtremeClassifier, "fit", broken)
    options, watch = replace(OPTIONS, regularizations=(0.0,)), Recorder()
    result = compare(problem, cells, options, watch=watch)
    assert [c.name for c in result.final] == ["exact"]
    assert [(c.name, c.reason) for c in result.left_out] == [
        ("nce × uniform", "not with these rows")
    ]
    assert [c.name for c in result.failed] == ["nce × frequency", "nce × log uniform"]
    assert result.failed[0].reason == "RuntimeError: out of order"
    assert "every setting diverged: the loss is not finite" in result.failed[1].reason
    # Runs that were skipped do not count as remaining time.
    done = dict(reversed(watch.started))
    assert done["exact: tuning, round 1 of 1"] == pytest.approx(3 * options.seconds_per_cell)
    assert watch.left == pytest.approx(0.0, abs=1e-9)


class Recorder(Watch):
    """Record the progress at the start of each run."""

    def start(self, *arguments: Any) -> None:
        super().start(*arguments)
        self.started: list[tuple[str, float]] = []

    def began(self, what: str, seconds: float) -> None:
        self.started.append((what, self.done))


def test_a_final_run_that_diverged_is_tried_again(problem, tmp_path, monkeypatch):
    cells, _ = choose("nce×uniform", 5)
    fit = ExtremeClassifier.fit

    def broken(model, X, y, *arguments, **named):
        if model.learning_rate == 1.0 and model.max_seconds:
            raise DivergedError("the loss is not finite")
        if model.max_seconds == OPTIONS.budget:
            raise DivergedError("this time")
        return fit(model, X, y, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(ExtremeClassifier, "fit", broken)
        result = compare(problem, cells, OPTIONS, folder=tmp_path)
    assert [c.reason for c in result.failed] == ["ArithmeticError: this time"]
    kept = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "runs").rglob("*.json")}
    assert "final" not in kept
    # Tuning runs that diverged are stored and not repeated.
    assert [name for name, record in kept.items() if "diverged" in record]
    stop = Interrupting(monkeypatch, after=1)
    result = compare(problem, cells, OPTIONS, folder=tmp_path)
    assert stop.fits == 1
    assert (len(result.final), result.failed) == (1, [])


def test_one_setting_is_not_tuned(problem):
    cells, _ = choose("nce×uniform", 5)
    options = replace(OPTIONS, learning_rates=(0.3,), regularizations=(0.0,))
    result: Comparison = compare(problem, cells, options)
    assert list(result.tuning.values()) == [[]]
    assert options.seconds_per_cell == options.budget


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0}, "budget must be > 0"),
        ({"tuning": 0.0}, "tuning must be > 0"),
        ({"learning_rates": ()}, "at least one learning rate"),
        ({"learning_rates": (0.0,)}, "learning_rates must be > 0"),
        ({"regularizations": (-1.0,)}, "regularizations must be >= 0"),
        ({"weight_decays": (-1.0,)}, "weight_decays must be >= 0"),
        ({"validation_fraction": 0.0}, "validation_fraction must be in"),
    ],
)
def test_options_out_of_range_are_rejected(problem, change, message):
    with pytest.raises(ValueError, match=message):
        compare(problem, [], replace(Options(), **change))


def test_too_few_rows_for_tuning_are_rejected():
    X = np.ones((90, 2), np.float32)
    problem = Problem.split(X, np.arange(90) % 3, test=(X, np.arange(90) % 3))
    with pytest.raises(ValueError, match="fewer than 50 of 90 rows can be held out for tuning"):
        compare(problem, choose("exact", 5)[0], Options())


def test_a_damaged_run_stops_the_comparison_and_is_named(problem, tmp_path, monkeypatch):
    Interrupting(monkeypatch, after=1)
    cells, _ = choose("exact", 5)
    with pytest.raises(KeyboardInterrupt):
        compare(problem, cells, OPTIONS, folder=tmp_path)
    (file,) = (tmp_path / "runs").rglob("*.json")
    file.write_text("[1, 2")
    with pytest.raises(ModelFileError, match=f"{file.name} is damaged .* remove it"):
        compare(problem, cells, OPTIONS, folder=tmp_path)


def test_a_stored_run_that_lacks_results_is_named_and_left_alone(problem, tmp_path, monkeypatch):
    Interrupting(monkeypatch, after=0)
    cells, _ = choose("exact", 5)
    with pytest.raises(KeyboardInterrupt):
        compare(problem, cells, OPTIONS, folder=tmp_path)
    file = tmp_path / "runs" / "exact" / "round1-0.3-0-0.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"round": 1, "of": "somebody else"}')
    with pytest.raises(
        ModelFileError, match=r"0\.json is no record of such a run \(it lacks asked_"
    ):
        compare(problem, cells, OPTIONS, folder=tmp_path)
    assert json.loads(file.read_text()) == {"round": 1, "of": "somebody else"}


KILLED = """
import os, sys
from pathlib import Path

from extremax import disk
from extremax.comparison import Options, Problem, choose, compare
from extremax.data import clustered
from extremax.report.page import write_report

left, flush = int(sys.argv[2]), disk.flush

def killing(path):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    flush(path)

disk.flush = killing
X, y = clustered(400, 12, 8, seed=1, noise=0.4)
options = Options(0.1, learning_rates=(0.3,), regularizations=(0.0,), validation_fraction=0.25)
problem, path = Problem.split(X, y, test_fraction=0.25), Path(sys.argv[1])
result = compare(problem, choose("nce×uniform, exact", 5)[0], options, folder=path)
write_report(result, path)
"""


@pytest.mark.parametrize(
    ("moment", "n_finished"),
    [
        pytest.param(1, 0, id="before its first file"),
        pytest.param(4, 1, id="after the first cell"),
        pytest.param(9, 2, id="in the report"),
    ],
)
def test_a_killed_comparison_resumes_and_leaves_no_half_written_file(
    problem, tmp_path, monkeypatch, moment, n_finished
):
    """Each file is flushed twice: before it gets its name, and with its folder after that."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(moment)]
    assert subprocess.run(command).returncode == 9
    finished = {p: p.read_bytes() for p in (tmp_path / "runs").rglob("*.json")}
    assert len(finished) == n_finished
    assert all(json.loads(content) for content in finished.values())
    notes = {}
    if moment > 1:
        # Files of somebody else, once the folder holds a comparison.
        notes = {tmp_path / ".notes.part": "a", tmp_path / "runs" / "notes.json": "b"}
    for path, text in notes.items():
        path.write_text(text)
    stop = Interrupting(monkeypatch, after=1000)
    options = Options(0.1, learning_rates=(0.3,), regularizations=(0.0,), validation_fraction=0.25)
    result = compare(problem, choose("nce×uniform, exact", 5)[0], options, folder=tmp_path)
    write_report(result, tmp_path)
    assert (stop.fits, len(result.final)) == (2 - n_finished, 2)
    assert all(path.read_bytes() == content for path, content in finished.items())
    assert {path.read_text() for path in notes} == set(notes.values())
    hidden = {path for path in tmp_path.rglob("*") if path.name.startswith(".")}
    assert hidden == {path for path in notes if path.name.startswith(".")}


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path, monkeypatch):
    write_file(tmp_path, "final.csv", "old")

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("extremax.disk.flush", full)
    with pytest.raises(ModelFileError, match=r"could not write .*final\.csv: No space left"):
        write_file(tmp_path, "final.csv", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
