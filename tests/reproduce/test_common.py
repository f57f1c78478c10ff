"""What the reproduction scripts share: resuming, errors over seeds, mean curves."""

from __future__ import annotations

import json
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats


def test_an_interrupted_run_goes_on_where_it_stopped(load: Any, tmp_path: Path) -> None:
    common = load("_common")
    file = tmp_path / "results" / "results.jsonl"
    file.parent.mkdir()
    done = {"cell": {"seed": 0}, "result": {"seed": "stored"}}
    # A process that was killed while it wrote leaves an incomplete line.
    file.write_text(json.dumps(done) + '\n{"cell": {"se')
    records = common.run_cells(dict, [{"seed": 0}, {"seed": 1}], file, jobs=1)
    assert records == [done, {"cell": {"seed": 1}, "result": {"seed": 1}}]
    assert list(common.read_results(file).values()) == records


def test_a_failing_cell_stops_no_other_and_is_not_stored(load: Any, tmp_path: Path) -> None:
    common = load("_common")
    file = tmp_path / "results.jsonl"
    cells = [{"seed": 0}, {"seed": 1, "answer": {"x": 2}}]
    with pytest.raises(KeyError, match="answer"):
        common.run_cells(methodcaller("__getitem__", "answer"), cells, file, jobs=1)
    assert [r["result"] for r in common.read_results(file).values()] == [{"x": 2}]


def test_no_cell_starts_after_the_deadline(load: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2 runs are left"):
        load("_common").run_cells(dict, [{"a": 1}, {"a": 2}], tmp_path / "r.jsonl", 1, deadline=0.0)


def test_spread_is_the_mean_and_its_standard_error(load: Any) -> None:
    common = load("_common")
    values = [0.031, 0.035, 0.042]
    found = common.spread(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(stats.sem(values))
    assert common.Spread(-1.5, 0.25).text(2) == "−1.50 ± 0.25"
    assert common.spread([0.5]).text(1, factor=100.0) == "50.0"


def test_mean_curve_of_lines_is_the_line_between_them(load: Any) -> None:
    curves = [[(x, x + 1.0) for x in (0.5, 3.0, 20.0)], [(x, x - 1.0) for x in (1.0, 10.0)]]
    x, mean, error = load("_common").mean_curve(curves)
    assert (x[0], x[-1]) == pytest.approx((1.0, 10.0))
    assert mean == pytest.approx(x)
    assert error == pytest.approx(np.ones(len(x)))


def test_coverage_counts_missing_runs_by_name(load: Any) -> None:
    coverage = load("_common").coverage
    assert coverage(["a", "a", "b", "other"], ["a", "a", "b"]) == "3 of 3 runs"
    assert coverage(["a"], ["a", "a", "b", "b"]) == "1 of 4 runs; missing: a (1); b (2)"
