"""A policy learned by REINFORCE from whole trajectories, with and without a baseline.

A walker on cells 0..8 starts in cell 3 and moves left or right; one move in ten goes the wrong way.
Each move costs 1, and the walk ends in cell 0, which pays 5, in cell 8, which pays 20, or after 25
moves. Short-sighted walkers turn left. The policy π(a|s) has two logits per cell. With
p(τ) = Π_t π(a_t|s_t) p(s_t+1|s_t, a_t) and R(τ) the sum of rewards,

    ∇E R = E[R Σ_t ∇log π(a_t|s_t)] = E[(R − c) Σ_t ∇log π(a_t|s_t)] = E[Σ_t (G_t − c_s) ∇log π]

for any c that does not depend on the trajectory. G_t is the reward from move t on: earlier rewards
do not depend on a_t. The problem is so small that E R, its gradient and the best possible return
are computed exactly, to compare with. Many runs go in parallel.

    python examples/control.py            # half a minute
    python examples/control.py --quick    # seconds
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Generator, Tensor
from torch.nn.functional import one_hot, pad

from extremax.discrete import Categorical

CELLS, START, HORIZON, SLIP = 9, 3, 25, 0.1
PAYS = {0: 5.0, CELLS - 1: 20.0}
WALKS, LEARNING_RATE = 4, 0.1
PLAIN, BASELINE, TO_GO = "REINFORCE", "baseline", "to go, per cell"
COLORS = {PLAIN: "#D55E00", BASELINE: "#0072B2", TO_GO: "#009E73"}
console = Console(width=88)


class Walks(NamedTuple):
    """n walks per run; what comes after the end of a walk is zero.

    cells:    s_t as one-hot rows, (moves, runs, n, cells).
    scores:   ∇log π(a_t|s_t) on the logits of s_t, (moves, runs, n, 2).
    rewards:  (moves, runs, n).
    """

    cells: Tensor
    scores: Tensor
    rewards: Tensor


class Run(NamedTuple):
    """Exact E R per step and run, and logits per step of the first run."""

    returns: Tensor
    policies: list[Tensor]


def action_values(values: Tensor) -> Tensor:
    """Q(s, a), (..., cells, 2), given the values (..., cells) of the cells after a move."""
    arrival = values.clone()
    for cell, pay in PAYS.items():
        arrival[..., cell] = pay
    left, right = arrival[..., :-2], arrival[..., 2:]
    moves = torch.stack([left, right], -1)
    # Nothing more happens in the two cells where walks end.
    return pad((1 - SLIP) * moves + SLIP * moves.flip(-1) - 1.0, (0, 0, 1, 1))


def expected_return(logits: Tensor) -> Tensor:
    """E R of policies (..., cells, 2), exactly and differentiably, from the last move backwards."""
    policy, values = logits.softmax(-1), torch.zeros_like(logits[..., 0])
    for _ in range(HORIZON):
        values = (policy * action_values(values)).sum(-1)
    return values[..., START]


def optimal_return() -> float:
    """The largest E R, over policies that may also depend on time."""
    values = torch.zeros(CELLS, dtype=torch.float64)
    for _ in range(HORIZON):
        values = action_values(values).amax(-1)
    return float(values[START])


def walk(logits: Tensor, n: int, generator: Generator) -> Walks:
    """n walks for each policy of logits (runs, cells, 2)."""
    runs = len(logits)
    run, cell = torch.arange(runs)[:, None], torch.full((runs, n), START)
    slips = torch.rand((HORIZON, runs, n), generator=generator) < SLIP
    path, scores = [cell], []
    for slip in slips:
        action = Categorical(logits[run, cell])
        b = action.sample(generator)
        going_on = (cell > 0) & (cell < CELLS - 1)
        cell = cell + torch.where((b[..., 1] > 0) ^ slip, 1, -1) * going_on
        path.append(cell)
        scores.append(action.score(b) * going_on[..., None])
    cells = torch.stack(path)
    moving = cells[:-1] != cells[1:]
    rewards = -moving.to(logits.dtype)
    for end, pay in PAYS.items():
        rewards += pay * (moving & (cells[1:] == end))
    return Walks(one_hot(cells[:-1], CELLS).to(logits.dtype), torch.stack(scores), rewards)


def to_go(walks: Walks) -> Tensor:
    """G_t, the rewards from move t on."""
    return walks.rewards.flip(0).cumsum(0).flip(0)


def gradient(name: str, walks: Walks, cell_values: Tensor) -> Tensor:
    """Estimate of ∇E R per run, (runs, cells, 2).

    cell_values:  the baseline c_s per run and cell, from earlier walks, (runs, cells).
    """
    total = walks.rewards.sum(0)
    n = total.shape[-1]
    if name == PLAIN:
        weight = total.expand(walks.rewards.shape)
    elif name == BASELINE:
        # The mean over the other walks does not depend on this one.
        others = (total.sum(-1, keepdim=True) - total) / (n - 1)
        weight = (total - others).expand(walks.rewards.shape)
    else:
        weight = to_go(walks) - torch.einsum("trnc,rc->trn", walks.cells, cell_values)
    return torch.einsum("trn,trnc,trna->rca", weight, walks.cells, walks.scores) / n


def update_values(cell_values: Tensor, walks: Walks, share: float = 0.2) -> Tensor:
    """Move c_s toward the mean of G_t over the visits of cell s."""
    # The score is zero after the end of a walk.
    visits = walks.cells * walks.scores.any(-1, keepdim=True)
    count = visits.sum((0, 2))
    mean = torch.einsum("trn,trnc->rc", to_go(walks), visits) / count.clamp(min=1.0)
    return torch.where(count > 0, cell_values + share * (mean - cell_values), cell_values)


def learn(name: str, steps: int, runs: int, seed: int = 0) -> Run:
    """Gradient ascent from the random walk, four walks per step."""
    generator = Generator().manual_seed(seed)
    logits = torch.zeros(runs, CELLS, 2, dtype=torch.float64)
    cell_values = torch.zeros(runs, CELLS, dtype=torch.float64)
    returns, policies = [], []
    for _ in range(steps + 1):
        returns.append(expected_return(logits))
        policies.append(logits[0].clone())
        walks = walk(logits, WALKS, generator)
        logits = logits + LEARNING_RATE * gradient(name, walks, cell_values)
        cell_values = update_values(cell_values, walks)
    return Run(torch.stack(returns), policies)


def measured_variance(name: str, logits: Tensor, repeats: int, seed: int = 0) -> float:
    """Variance of one step's estimate at this policy (cells, 2), summed over the logits."""
    generator = Generator().manual_seed(seed)
    copies = logits.expand(repeats, -1, -1)
    cell_values = torch.zeros(1, CELLS, dtype=logits.dtype)
    for _ in range(20):
        cell_values = update_values(cell_values, walk(logits[None], WALKS, generator))
    walks = walk(copies, WALKS, generator)
    return float(gradient(name, walks, cell_values.expand(repeats, -1)).var(0).sum())


def draw(runs: dict[str, Run], variances: dict[str, list[tuple[int, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0), dpi=200, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, run in runs.items():
        shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        low, median, high = torch.quantile(optimal_return() - run.returns, shares, 1)
        left.plot(median, color=COLORS[name], linewidth=1.4, label=name)
        left.fill_between(range(len(median)), low, high, color=COLORS[name], alpha=0.2, linewidth=0)
        right.plot(*zip(*variances[name], strict=True), color=COLORS[name], linewidth=1.4)
    title = "return short of the best possible\n(median of the runs, band: 10% to 90%)"
    left.set_title(title, loc="left", fontsize=8)
    right.set_title(
        "variance of one step's gradient,\nat the same policies", loc="left", fontsize=8
    )
    left.legend(frameon=False, fontsize=7)
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 steps of 8 runs")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the picture")
    options = parser.parse_args()
    steps, n_runs, repeats, points = (100, 8, 400, 2) if options.quick else (400, 40, 4000, 11)
    started = time.perf_counter()
    torch.set_num_threads(1)
    runs = {name: learn(name, steps, n_runs) for name in COLORS}
    # The policies on the way of one method serve to measure all.
    at = (steps * torch.linspace(0, 1, points).square()).long().tolist()
    policies = runs[BASELINE].policies
    variances = {
        name: [(step, measured_variance(name, policies[step], repeats)) for step in at]
        for name in COLORS
    }
    table = Table(
        "method", "return", "± sd", "worst run", "variance, start", "variance, end",
        box=None, pad_edge=False,
    )  # fmt: skip
    for name, run in runs.items():
        last = run.returns[-1]
        table.add_row(
            name, f"{float(last.mean()):.2f}", f"{float(last.std()):.2f}",
            f"{float(last.min()):.2f}", f"{variances[name][0][1]:.3f}",
            f"{variances[name][-1][1]:.3f}",
        )  # fmt: skip
    console.print(f"expected return after {steps} steps of {WALKS} walks, {n_runs} runs\n")
    console.print(table)
    start = float(runs[PLAIN].returns[0, 0])
    console.print(f"\nrandom walk {start:.2f}, best possible {optimal_return():.2f}")
    path = options.out / "control.png"
    draw(runs, variances, path)
    console.print(f"picture: {path} | {time.perf_counter() - started:.0f} s in total")


if __name__ == "__main__":
    main()
