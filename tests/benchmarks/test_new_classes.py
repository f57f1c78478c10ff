"""The benchmark of classes that come later: what it takes out, what it counts, its last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_a_tenth_of_the_classes_is_taken_out(load: Any) -> None:
    taken_out = load("new_classes").taken_out
    chosen = taken_out(np.arange(100, 150))
    assert len(set(chosen.tolist())) == 5
    assert set(chosen.tolist()) <= set(range(100, 150))
    assert not np.array_equal(chosen, taken_out(np.arange(100, 150), seed=1))
    assert len(taken_out(np.array(["a", "b"]))) == 1


def test_rows_of_old_and_of_new_classes_count_apart(load: Any) -> None:
    labels = np.array([["a", "n"], ["b", "a"], ["n", "a"], ["a", "b"]])
    model = SimpleNamespace(predict_topk=lambda rows, k: SimpleNamespace(labels=labels))
    new_classes = load("new_classes")
    found = new_classes.measured(model, None, np.array(["a", "a", "n", "n"]), np.array(["n"]))
    assert found["old"] == {"accuracy": 0.5, "recall": 1.0}
    assert found["new"] == {"accuracy": 0.5, "recall": 0.5}
    everything = {"old": {"accuracy": 1.0, "recall": 1.0}, "new": {"accuracy": 0.4, "recall": 1.0}}
    assert new_classes.shares(found, everything, ("accuracy",)) == {
        "old_accuracy_share": 0.5,
        "new_accuracy_share": 1.25,
    }


@pytest.mark.extras
def test_quick_run_reports_its_figures(load: Any) -> None:
    command = [sys.executable, str(FOLDER / "new_classes.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(load("run_all").SHOWN["new_classes"]) <= result.keys()
    worst = min(result["figures"][name]["old_accuracy_share"] for name in ("titles", "sessions"))
    assert 0.0 < result["old_share"] <= worst
