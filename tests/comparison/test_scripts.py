"""The benchmarks that compare cells run and print their JSON as the last line."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from extremax.comparison import Comparison, LeftOut, Options, choose

FOLDER = Path(__file__).parents[2] / "benchmarks"


def last_line(name: str, *options: str) -> dict:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.extras
def test_compare_cells_counts_what_fails_and_what_learns_nothing(tmp_path):
    found = last_line("compare_cells", "--cells", "nce×uniform,exact", "--out", str(tmp_path))
    assert (found["cells"], found["failed"], found["below_prior"]) == (2, 0, 0)
    assert set(found["figures"]["synthetic"]) == {"nce × uniform", "exact", "class prior"}
    assert (tmp_path / "synthetic" / "report.html").exists()


def test_compare_cells_counts_a_cell_left_out_when_it_was_tried_as_failed(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    tally = runpy.run_path(str(FOLDER / "compare_cells.py"))["tally"]
    result = Comparison("", Options(), {}, {"log_likelihood": -2.0}, {}, {})
    for cell, found in zip(
        choose("nce×uniform, nce×tree, exact", 5)[0], (-1.0, -2.5, -2.0), strict=True
    ):
        result.final[cell] = {"test": {"log_likelihood": found}}
    result.left_out = [LeftOut("nce × bigram", "not with these rows")]
    result.failed = [LeftOut("nce × frequency", "RuntimeError: out of order")]
    assert tally(result) == {"cells": 5, "failed": 2, "below_prior": 2}


@pytest.mark.extras
def test_closing_the_gap_compares_with_exact_softmax():
    found = last_line("closing_the_gap", "--rates", "0.3", "--penalties", "0")
    assert found["cost_share"] == pytest.approx(9 / 1000)
    assert 0.5 < found["accuracy_ratio"] < 1.5
    assert abs(found["loglik_gap"]) < 1.0
