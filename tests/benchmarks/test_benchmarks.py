"""Every benchmark script runs and ends with its JSON. No time is asserted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TINY = ("--quick", "--rows", "2000", "--classes", "300", "--features", "16")
KEYS = {
    "dense_step": ("speedup", "roofline_share", "row_over_element"),
    "tree_fit": ("fit_over_ten_epochs", "draws_per_s", "growth"),
    "prediction": ("speedup", "recall_at_1", "width"),
    "training_memory": ("peak_over_parts", "row_peak_share", "row_head_share"),
    "sampler_growth": ("worst_growth",),
    "bias_against_m": ("quadratic_saves", "uniform", "quadratic"),
    "nn_step": ("speedup_1e4", "speedup_1e5", "speedup_1e6", "over_adaptive_1e5"),
}


@pytest.mark.extras
@pytest.mark.parametrize("name", KEYS)
def test_script_ends_with_its_figures(name: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *TINY]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == name
    assert result["quick"] is True
    assert result["sizes"]["classes"] == 300
    assert {"figures", "versions", "machine", "data", "command"} <= result.keys()
    for key in KEYS[name]:
        assert math.isfinite(result[key])


@pytest.mark.extras
@pytest.mark.parametrize("name", ["sessions", "class_growth"])
def test_script_on_sparse_rows(name: str, load: Any) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    shown = load("run_all")
    assert set(shown.SHOWN[name]) <= shown.numbers(result).keys()


@pytest.mark.extras
def test_cores_measures_every_number_of_threads_it_is_asked_for(load: Any) -> None:
    command = [sys.executable, str(FOLDER / "cores.py"), "--quick", "--threads", "1", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(load("run_all").SHOWN["cores"]) <= result.keys()
    assert result["text_fit_s_2"] > 0
    assert result["text_fit_s_16"] is None
    for key in ("copy", "docs_per_s", "dense_fit_s"):
        assert all(result["figures"][key][n] > 0 for n in ("1", "2"))


@pytest.mark.extras
def test_parts_of_the_papers_that_need_no_data_reach_their_limits(load: Any) -> None:
    parts = {"bias": "softmax_noise_bias", "share": "share_error", "trees": "nan_trees"}
    command = [sys.executable, str(FOLDER / "papers.py"), *parts, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    run_all = load("run_all")
    for key in parts.values():
        assert run_all.reached(result[key], run_all.SHOWN["papers"][key])


def test_run_all_knows_the_keys_the_scripts_report(tmp_path: Path) -> None:
    command = [sys.executable, "run_all.py", "--only", "--table", str(tmp_path / "table.md")]
    subprocess.run(command, cwd=FOLDER, check=True, capture_output=True)
    text = (tmp_path / "table.md").read_text()
    for name in KEYS:
        assert f"| {name} |" in text
    assert "not reported" not in text
