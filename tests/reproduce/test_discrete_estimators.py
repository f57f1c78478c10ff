"""Gradient estimators on the problems of the reproduction: its cells and its report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest


def test_cells_run_and_are_reported(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("discrete_estimators")
    script_report = load("_estimator_report")
    names = load("extremax.discrete").ESTIMATORS
    every = script.cells(seeds=2, quick=True)
    records = [{"cell": cell, "result": script.work(cell)} for cell in every]
    assert script.work(every[0]) == records[0]["result"]
    assert records[0]["result"] != records[1]["result"]
    for record in records:
        cell, result = record["cell"], record["result"]
        if cell["kind"] == "toy":
            # Training starts at θ = ½; no loss can be below t².
            t = cell["t"]
            start = ((1 - t) ** 2 + t**2) / 2
            assert result["loss"][0][1] == pytest.approx(start)
            assert t**2 <= result["loss"][-1][1] < start + 0.005
        if cell["kind"] == "digits":
            # Better than guessing every pixel with probability ½.
            assert -64 * math.log(2) < result["elbo"][-1][1] < 0
    found = load("_common").group(
        [r for r in records if r["cell"]["kind"] == "variance"], "estimator", "problem"
    )
    for (name, _), results in found.items():
        # For each of 14 pairs of an unbiased estimator and a problem, p of 6e-5 and ten logits.
        if names[name].unbiased:
            assert script_report.pooled_t(results) < 4.5
    for name in script.RELAXED:
        assert script_report.pooled_t(found[name, "ten-way"][-2:]) > 4.5
    script.report(records, every, tmp_path)
    text = capsys.readouterr().out
    assert all(f"| `{name}`" in text for name in names)
    assert "| optimum | 0.2025 | 0.2490 |" in text
    assert (tmp_path / "reproduce_discrete.png").stat().st_size > 10_000
    # Without the first seed of REINFORCE, and any other estimator on the toy.
    kept = [
        r
        for r in records
        if not (r["cell"]["estimator"] == "reinforce" and r["cell"]["seed"] == 0)
        and (r["cell"]["kind"] != "toy" or r["cell"]["estimator"] == "reinforce")
    ]
    script.report(kept, every, tmp_path)
    text = capsys.readouterr().out
    assert text.startswith(f"{len(kept)} of {len(every)} runs; missing: digits reinforce (1); ")
    assert "| `rebar` | not run | not run | " in text
