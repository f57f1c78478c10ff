"""The benchmark of the estimators prints its JSON and rejects no unbiased estimator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "estimators.py"


@pytest.mark.extras
def test_the_benchmark_prints_its_figures() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--draws", "8000", "--calls", "200"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == "estimators"
    assert result["unbiased_rejected"] == 0
    assert result["sizes"]["draws"] == 8000
    for name in ("rebar_over_reinforce", "relax_over_reinforce"):
        assert 0 < result[name] <= result[f"{name}_high"]
    for problem in ("toy", "categorical"):
        assert result["figures"][problem]["gumbel_softmax"]["worst_t"] > 4
