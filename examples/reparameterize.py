"""Two ways to differentiate an expectation: REINFORCE and reparameterization.

Minimizes E[z²], z ~ N(aθ + b, 1), a = 2, b = 3, over θ by gradient descent, one draw per step:

    REINFORCE         z² · a(z − aθ − b)
    reparameterized   2a(aθ + b + ε),  z = aθ + b + ε

Both estimates have the mean 2a(aθ + b). With μ = aθ + b their variances are
a²(μ⁴ + 14μ² + 15) and 4a²; the example also measures them at each step.

    python examples/reparameterize.py            # seconds
    python examples/reparameterize.py --quick    # fewer steps and draws
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from extremax.discrete import sample

A, B = 2.0, 3.0
STEP_SIZE = 0.01
NAMES = ("REINFORCE", "reparameterized")
COLORS = ("#D55E00", "#0072B2")
console = Console(width=88)


class Run(NamedTuple):
    """Per step: θ, the estimate used for the step, and the mean and variance over all draws."""

    theta: list[float]
    estimate: list[float]
    mean: list[float]
    variance: list[float]


def estimates(name: str, theta: float, n: int, generator: torch.Generator) -> torch.Tensor:
    """n single-draw estimates of the gradient at θ, by autograd."""
    copies = torch.full((n,), theta, dtype=torch.float64, requires_grad=True)
    mean = A * copies + B
    z = sample("gaussian", mean, torch.ones_like(mean), generator=generator)
    if name == "reparameterized":
        total = z.square().sum()
    else:
        z = z.detach()
        log_density = -0.5 * (z - mean).square()
        total = (z.square() * log_density).sum()
    return torch.autograd.grad(total, copies)[0]


def descend(name: str, steps: int, draws: int, seed: int) -> Run:
    """Minimize from θ = 0."""
    generator = torch.Generator().manual_seed(seed)
    run, theta = Run([], [], [], []), 0.0
    for _ in range(steps):
        gradients = estimates(name, theta, draws, generator)
        run.theta.append(theta)
        run.estimate.append(float(gradients[0]))
        run.mean.append(float(gradients.mean()))
        run.variance.append(float(gradients.var()))
        # One draw determines the step; the others only serve to measure.
        theta -= STEP_SIZE * float(gradients[0])
    return run


def closed_variance(name: str, theta: float) -> float:
    mean = A * theta + B
    return A**2 * (mean**4 + 14 * mean**2 + 15) if name == "REINFORCE" else 4 * A**2


def table_of(runs: dict[str, Run], rows: list[int]) -> Table:
    table = Table(
        "method", "step", "θ", "estimate", "mean", "exact", "variance", "closed form",
        box=None, pad_edge=False,
    )  # fmt: skip
    for name, run in runs.items():
        for i in rows:
            theta = run.theta[i]
            table.add_row(
                name, f"{i}", f"{theta:.3f}", f"{run.estimate[i]:.2f}", f"{run.mean[i]:.2f}",
                f"{2 * A * (A * theta + B):.2f}", f"{run.variance[i]:,.1f}",
                f"{closed_variance(name, theta):,.1f}",
            )  # fmt: skip
    return table


def draw(runs: dict[str, Run], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0), dpi=200, layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, run), color in zip(runs.items(), COLORS, strict=True):
        left.plot(run.theta, color=color, linewidth=1.2, label=name)
        right.plot(run.variance, color=color, linewidth=0.8, alpha=0.5)
        closed = [closed_variance(name, theta) for theta in run.theta]
        right.plot(closed, color=color, linewidth=1.4)
    left.axhline(-B / A, color="#333333", linewidth=0.8, linestyle=":")
    left.set_title("θ (dotted: the optimum)", loc="left", fontsize=10)
    right.set_title("variance of one estimate (thin: measured)", loc="left", fontsize=10)
    right.set_yscale("log")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    left.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 steps with 500 draws each")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the picture")
    options = parser.parse_args()
    steps, draws = (100, 500) if options.quick else (400, 5000)
    runs = {name: descend(name, steps, draws, seed=0) for name in NAMES}
    last = steps - 1
    console.print(table_of(runs, [0, last // 4, last // 2, last]))
    path = options.out / "reparameterize.png"
    draw(runs, path)
    console.print(f"\npicture: {path}")


if __name__ == "__main__":
    main()
