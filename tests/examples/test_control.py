"""The control example: exact returns and gradients, variances, the quick version."""

import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scipy import stats

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from control import (  # noqa: E402
    BASELINE,
    CELLS,
    COLORS,
    PLAIN,
    TO_GO,
    Walks,
    expected_return,
    gradient,
    measured_variance,
    optimal_return,
    update_values,
    walk,
)


def policy() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(CELLS, 2, generator=generator, dtype=torch.float64)


def many_walks(repeats: int, n: int) -> Walks:
    return walk(policy().expand(repeats, -1, -1), n, torch.Generator().manual_seed(1))


def test_the_expected_return_is_the_mean_of_walks() -> None:
    returns = many_walks(1, 20_000).rewards.sum(0)[0]
    error = float(returns.std()) / math.sqrt(len(returns))
    assert abs(float(returns.mean() - expected_return(policy()))) < 4 * error


def test_no_stationary_policy_beats_the_optimum_and_one_is_near() -> None:
    # Every deterministic policy of the seven cells that have a choice.
    choices = torch.tensor(list(itertools.product((0, 1), repeat=CELLS - 2)))
    logits = torch.nn.functional.one_hot(choices, 2).double() * 1e3
    returns = expected_return(torch.nn.functional.pad(logits, (0, 0, 1, 1)))
    assert float(returns.max()) <= optimal_return() + 1e-9
    assert float(returns.max()) > optimal_return() - 0.05
    assert choices[returns.argmax()].tolist() == [1] * (CELLS - 2)


@pytest.mark.parametrize("name", COLORS)
def test_the_estimate_is_unbiased(name: str) -> None:
    logits = policy().requires_grad_()
    (truth,) = torch.autograd.grad(expected_return(logits), logits)
    repeats = 5000
    baseline = torch.linspace(-3, 8, CELLS, dtype=torch.float64).expand(repeats, -1)
    estimates = gradient(name, many_walks(repeats, 4), baseline)
    error = estimates.std(0) / math.sqrt(repeats)
    t = (estimates.mean(0) - truth) / error.clamp(min=1e-12)
    assert float(t.abs().max()) < 4.5


def test_baselines_lower_the_variance() -> None:
    uniform = torch.zeros(CELLS, 2, dtype=torch.float64)
    for logits in (uniform, policy(), torch.tensor([0.0, 3.0]).double().expand(CELLS, 2)):
        plain, baseline, to_go = (measured_variance(name, logits, 1000) for name in COLORS)
        assert to_go < 0.8 * baseline
        assert baseline < plain
    assert list(COLORS) == [PLAIN, BASELINE, TO_GO]
    # The last policy is close to the best one, and its returns are far from zero.
    assert baseline < 0.6 * plain


def test_cell_values_tend_to_the_mean_return_of_visits() -> None:
    walks = many_walks(1, 3000)
    values = torch.zeros(1, CELLS, dtype=torch.float64)
    for _ in range(60):
        values = update_values(values, walks)
    going_on = walks.scores.any(-1)
    for cell in range(1, CELLS - 1):
        visits = walks.cells[..., cell].bool() & going_on
        later = walks.rewards.flip(0).cumsum(0).flip(0)[visits]
        assert float(values[0, cell]) == pytest.approx(float(later.mean()), abs=1e-3)
    # Walks end there: nothing is ever decided in these cells.
    assert float(values[0, 0]) == float(values[0, -1]) == 0.0


def test_steps_follow_the_policy_except_for_slips() -> None:
    always_right = torch.tensor([-50.0, 50.0]).double().expand(1, CELLS, 2)
    walks = walk(always_right, 5000, torch.Generator().manual_seed(2))
    cells = walks.cells.argmax(-1)
    moved = cells[1:] - cells[:-1]
    wrong, moves = int((moved == -1).sum()), int((moved != 0).sum())
    assert stats.binomtest(wrong, moves, 0.1).pvalue > 1e-4


def test_the_quick_version(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "control.py"), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    row = r"^{} +([-\d.]+) +[\d.]+ +[-\d.]+ +([\d.]+) +([\d.]+)"
    found = {name: re.search(row.format(name), run.stdout, re.M) for name in COLORS}
    values = {name: [float(v) for v in match.groups()] for name, match in found.items() if match}
    assert set(values) == set(COLORS)
    ends = re.search(r"random walk ([-\d.]+), best possible ([-\d.]+)", run.stdout)
    assert ends
    start, best = float(ends[1]), float(ends[2])
    assert best == pytest.approx(optimal_return(), abs=0.01)
    for name in (BASELINE, TO_GO):
        # Nearly all of the way from the random walk to the optimum, on average over the runs.
        assert start + 0.9 * (best - start) < values[name][0] <= best
        assert all(v < p for v, p in zip(values[name][1:], values[PLAIN][1:], strict=True))
    assert (tmp_path / "control.png").stat().st_size > 10_000
