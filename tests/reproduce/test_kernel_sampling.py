"""The runs of the experiments with kernel proposals, and the report of their results."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

SCRIPTS = ("kernel_sampling", "kernel_recommender")
TINY = {"m": 3, "seed": 0, "steps": 2, "units": 4, "rate": 0.01, "quick": True}


def test_every_proposal_runs_for_every_m_and_two_of_them_with_three_seeds(load: Any) -> None:
    script, proposals = load("kernel_sampling"), load("_proposals")
    options = script.options_of(["--data", "folder", "--output", "runs"])
    cells = list(proposals.cells(options))
    runs = [(cell["noise"], cell["m"], cell["seed"]) for cell in cells]
    assert len(set(runs)) == len(runs) == 6 * 7 + 2 * 6 * 2 + 2 * 3
    assert {m for _, m, seed in runs if seed} == {0, 20, 160}
    assert {cell["steps"] for cell in cells} == {options.steps}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_of_every_proposal(name: str, load: Any) -> None:
    script, proposals = load(name), load("_proposals")
    for noise in (*script.NOISES, proposals.FULL, proposals.FULL_ABSOLUTE):
        result = script.run(TINY | {"noise": noise}, None, "cpu")
        assert [step for step, _ in result["curve"]] == [1, 2]
        # Near the start: words and items are about as likely as their frequencies.
        assert all(4.0 < loss < 7.0 for _, loss in [*result["curve"], (2, result["loss"])])


@pytest.mark.parametrize("name", SCRIPTS)
def test_even_kernels_train_and_predict_with_absolute_scores(name: str, load: Any) -> None:
    script, proposals = load(name), load("_proposals")
    kind = script.NextWord if name == "kernel_sampling" else script.NextItem
    data = script.text_of(None) if name == "kernel_sampling" else script.sessions_of(None)
    for noise in (*script.NOISES, proposals.FULL, proposals.FULL_ABSOLUTE):
        torch.manual_seed(0)
        task = kind(data, TINY | {"noise": noise})
        with torch.no_grad():
            task.output.weight.mul_(9.0)
        hidden, target, _ = task.batch(0)
        scores = linear(hidden, task.output.weight, task.output.bias)
        even = noise in ("quadratic", "quartic", proposals.FULL_ABSOLUTE)
        assert proposals.is_even(noise) == even
        logits = scores.abs() if even else scores
        torch.testing.assert_close(task.output.log_prob(hidden), logits.log_softmax(-1))
        if noise in (proposals.FULL, proposals.FULL_ABSOLUTE):
            again = kind(data, TINY | {"noise": noise})
            again.load_state_dict(task.state_dict())
            expected = -logits.log_softmax(-1).gather(-1, target[..., None]).mean()
            torch.testing.assert_close(again.loss(0, noise), expected)


def test_texts_go_on_from_step_to_step_and_begin_anew_at_their_end(load: Any) -> None:
    script = load("kernel_sampling")
    text = script.text_of(None)
    task = script.NextWord(text, TINY | {"noise": "bigram"}).eval()
    stream = text.train.view(script.BATCH, -1)
    n_blocks = (stream.shape[1] - 1) // script.LENGTH
    whole, _ = task.model(stream[:, : 2 * script.LENGTH], None)
    for step, block in ((0, 0), (1, 1), (n_blocks, 0)):
        hidden, target, before = task.batch(step)
        first = block * script.LENGTH
        torch.testing.assert_close(hidden, whole[:, first : first + script.LENGTH])
        assert torch.equal(target, stream[:, first + 1 : first + script.LENGTH + 1])
        assert torch.equal(before, stream[:, first : first + script.LENGTH])


def test_prefixes_hold_the_latest_items_first(load: Any) -> None:
    script = load("kernel_recommender")
    sessions = [np.arange(13), np.array([5, 3]), np.array([7]), np.array([8, 9, 8])]
    found = script.prefixes(sessions, 99)
    expected = [
        ([*session[:i][::-1].tolist(), *[99] * script.LATEST][: script.LATEST], int(session[i]))
        for session in sessions
        for i in range(1, len(session))
    ]
    assert list(zip(found.before.tolist(), found.target.tolist(), strict=True)) == expected
    last = script.prefixes(sessions[:2], 99, last_only=True)
    assert last.target.tolist() == [12, 3]
    assert last.before[1].tolist() == [5, *[99] * 9]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_report_of_finished_runs(
    name: str, load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, proposals = load(name), load("_proposals")
    options = script.options_of(["--quick", "--output", str(tmp_path)])
    # The loss of full softmax is log 100; each proposal is above it by 1/m, seeds by ±0.1.
    records = [
        {"cell": cell, "result": {"curve": [[30, 6.0], [60, 5.0]], "recall@20": 0.25, "loss": loss}}
        for cell in proposals.cells(options)
        for loss in [
            math.log(100) + 1 / (cell["m"] or math.inf) + 0.1 * (2 * cell["seed"] - 1)
            if cell["m"] in (0, 20)
            else math.log(200)
        ]
    ]
    (tmp_path / script.FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
    script.report(
        script.options_of(["--quick", "--report", str(tmp_path), "--images", str(tmp_path)])
    )
    printed = capsys.readouterr().out
    assert printed.startswith(f"{len(records)} of {len(records)} runs\n")
    rows = re.findall(r"^\| (\w+) \| (.*) \| (.*) \| (.*) \|$", printed, re.M)
    uniform = next(row for row in rows if row[0] == "uniform")
    if name == "kernel_sampling":
        twenty = [100 * math.exp(0.05 + sign * 0.1) for sign in (-1, 1)]
        mean, error = sum(twenty) / 2, (twenty[1] - twenty[0]) / 2
        assert uniform[1:3] == ("200.0", f"{mean:.1f} ± {error:.1f} (2)")
    else:
        assert uniform[1:3] == ("5.298", f"{math.log(100) + 0.05:.3f} ± 0.100 (2)")
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert {f"{name}.png", f"{name}_curves_1.png", f"{name}_noises.png"} <= pictures


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_report_of_incomplete_runs_says_what_is_missing(
    name: str, load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, proposals = load(name), load("_proposals")
    given = ["--quick", "--report", str(tmp_path), "--images", str(tmp_path)]
    options = script.options_of(given)
    result = {"curve": [[30, 6.0], [60, 5.0]], "recall@20": 0.25, "loss": 5.0}
    every = list(proposals.cells(options))
    # Neither reference, nor anything of m = 5 but uniform draws.
    done = [c for c in every if c["m"] == 20 or (c["m"] == 5 and c["noise"] == "uniform")]
    lines = [json.dumps({"cell": cell, "result": result}) for cell in reversed(done)]
    (tmp_path / script.FILE).write_text("\n".join(lines) + "\n")
    script.report(options)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{len(done)} of {len(every)} runs; missing: full softmax (2); ")
    assert f"m = 5 ({len(script.NOISES) - 1})" in printed.splitlines()[0]
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [row.split()[1] for row in rows[2 : 2 + len(script.NOISES)]] == list(script.NOISES)
    assert rows[3].count("not run") == 2
    assert "(2) | not run |" in rows[2]


def test_missing_arguments_are_named(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("kernel_sampling")
    for given, message in (
        ([], "--output or --report must be given"),
        (["--output", "runs"], "--data must name the folder"),
    ):
        with pytest.raises(SystemExit):
            script.options_of(given)
        assert message in capsys.readouterr().err


def test_results_belong_to_their_cells(load: Any, tmp_path: Path) -> None:
    cells = [{"i": i} for i in range(5)]
    for jobs in (1, 2):
        records = load("_common").run_cells(dict, cells, tmp_path / f"{jobs}.jsonl", jobs)
        assert records == [{"cell": cell, "result": cell} for cell in cells]
