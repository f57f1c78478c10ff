"""The reproduction of Bamler & Mandt 2020: the paper's files, the choices, what is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extremax.comparison import Problem
from extremax.data import clustered
from extremax.errors import ArgumentError
from extremax.rows import as_rows
from tests.reproduce.conftest import FOLDER

FEATURES = np.array([[0.5, -1.0, 2.0], [0.0, 3.0, 0.25], [1.0, 1.0, 1.0]], np.float32)


def _archive(folder: Path) -> None:
    """The layout of the archives that come with the paper's code."""
    for part in ("trn", "tst"):
        lines = [" ".join(map(str, row)) for row in FEATURES.tolist()]
        (folder / f"{part}_ft_mat_dense.txt").write_text("\n".join(["3 3", *lines]) + "\n")
        (folder / f"{part}_lbl_mat.txt").write_text("3 9\n7:1 4:1\n\n8:1\n")


def _repository(folder: Path) -> None:
    """The sparse text of the repository of extreme classification, beside dense features."""
    for part in ("train", "test"):
        (folder / f"{part}.txt").write_text("3 50 9\n7,4 0:1.5 3:2\n 4:1\n8 49:0.5\n")
        np.save(folder / f"{part}.npy", FEATURES)


@pytest.mark.parametrize("write", [_archive, _repository])
def test_reads_the_papers_files_in_either_layout(load: Any, tmp_path: Path, write: Any) -> None:
    write(tmp_path)
    task = load("_adversarial_data").read_paper_files(tmp_path)
    # The smallest label; the row without one is left out.
    for features, labels in ((task.train, task.labels), (task.test, task.test_labels)):
        assert features.tolist() == FEATURES[[0, 2]].tolist()
        assert labels.tolist() == [4, 8]


@pytest.mark.parametrize("rows", [2, 4])
def test_a_file_with_other_rows_than_it_says_is_refused(
    load: Any, tmp_path: Path, rows: int
) -> None:
    _archive(tmp_path)
    (tmp_path / "trn_lbl_mat.txt").write_text(f"{rows} 9\n7:1 4:1\n\n8:1\n")
    with pytest.raises(ArgumentError, match=rf"3 rows, but the first line says {rows}"):
        load("_adversarial_data").read_paper_files(tmp_path)


def test_test_rows_of_unknown_classes_are_left_out(load: Any, tmp_path: Path) -> None:
    features, labels = clustered(300, 5, 4)
    arrays = (features, labels, features[:50], np.where(labels[:50] == 2, 99, labels[:50]))
    data = load("_adversarial_data")
    for name, array in zip(("train", "labels", "test", "test_labels"), arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    problem = data.problem_of(tmp_path, 1000)
    assert problem.about()["test_rows_of_unseen_classes"] == 0
    assert problem.test.tolist() == features[:50][labels[:50] != 2].tolist()


def test_the_best_setting_has_the_best_held_out_likelihood(load: Any) -> None:
    records = [
        {
            "cell": {"data": "d", "method": "m", "rate": rate, "penalty": 0.1},
            "result": {"log_likelihood": value},
        }
        for rate, value in ((1.0, -3.0), (2.0, -2.0), (3.0, -float("inf")))
    ]
    best = load("adversarial_softmax").best_settings(records)
    assert best == {("d", "m"): {"rate": 2.0, "penalty": 0.1}}


def test_predictions_without_log_q_are_the_softmax_of_the_scores(load: Any) -> None:
    run = load("_adversarial_run")
    features, labels = clustered(1200, 20, 8)
    labels = np.unique(labels, return_inverse=True)[1]
    problem = Problem.split(features[200:], labels[200:], test=(features[:200], labels[:200]))
    cell = {
        "phase": "final", "data": "synthetic", "method": "frequency", "rate": 0.01,
        "penalty": 1e-5, "seed": 0, "epochs": 2,
    }  # fmt: skip
    trained = run.classifier(cell, 1000, 8).fit(problem.features, problem.labels)
    found = run.predictions(trained, problem)
    scores = trained.model_.head.scores_all(as_rows(problem.test)).double()
    truth = torch.from_numpy(problem.test_labels)
    log_q = trained.model_.noise.log_q_.double()
    for name, logits in (("without_log_q", scores), ("as_is", scores + log_q)):
        log_p = logits.log_softmax(1)
        expected = float(log_p.gather(1, truth[:, None]).mean())
        assert found[name]["log_likelihood"] == pytest.approx(expected, abs=1e-4)
        hits = (log_p.argmax(1) == truth).double().mean()
        assert found[name]["accuracy"] == pytest.approx(float(hits))
        assert found[name]["refitted_log_likelihood"] > found[name]["log_likelihood"] - 0.05


@pytest.mark.extras
def test_script_tunes_trains_and_reports(tmp_path: Path) -> None:
    script, out, images = str(FOLDER / "adversarial_softmax.py"), tmp_path / "out", tmp_path / "i"
    for command in (
        ["--quick", "--output", str(out), "--seeds", "2", "--jobs", "2"],
        ["--report", str(out), "--images", str(images)],
    ):
        done = subprocess.run([sys.executable, script, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    text = (out / "report.md").read_text(encoding="utf-8")
    # Eight methods, and two of the appendix, with two of the three seeds that are planned.
    assert text.startswith("Final runs: 20 of 30 runs; missing: synthetic, adversarial (1); ")
    for name in ("adversarial", "NCE from log frequencies", "one-vs-each", "full softmax"):
        assert f"| {name} " in text
    assert "| adversarial | ξ |" in text
    assert (images / "reproduce_adversarial_synthetic.png").exists()
