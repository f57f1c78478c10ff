"""Learning through discrete variables: every gradient estimator on two problems.

The toy: minimize E[(b − t)²], b ~ Bernoulli(θ), over θ, for t = 0.45 and 0.499. The optimum is
b = 0, but the two values of f hardly differ, so noisy gradients make little progress. Many runs go
in parallel, each with its own θ and one draw per step (four if the estimator compares draws);
parameters of the estimator itself are learned from all runs.

The autoencoder: scikit-learn's 8×8 digits as black and white pixels, 8 latent variables of 8
values, four draws per step. The ELBO is measured on held-out digits with hard draws.

    python examples/discrete_latent.py            # minutes
    python examples/discrete_latent.py --quick    # seconds
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from extremax.discrete import (
    ESTIMATORS,
    Bernoulli,
    Categorical,
    Estimator,
    Relax,
    create,
    measure,
)

TARGETS = (0.45, 0.499)
LATENT, VALUES, HIDDEN = 8, 8, 64
# The color-blind safe palette of Okabe & Ito (2008).
COLORS = {
    "exact": "#000000",
    "reinforce": "#D55E00",
    "reinforce_running_mean": "#E69F00",
    "reinforce_leave_one_out": "#CC79A7",
    "control_variate": "#882255",
    "gumbel_softmax": "#56B4E9",
    "straight_through": "#999999",
    "rebar": "#0072B2",
    "relax": "#009E73",
}
# Dashed: biased. Dotted: coincides with leave-one-out.
LINES = {"gumbel_softmax": "--", "straight_through": "--", "control_variate": ":"}
DRAWS = 4
Curve = list[tuple[int, float]]
console = Console(width=88)


def toy(name: str, t: float, steps: int, runs: int) -> tuple[Curve, Curve]:
    """(loss by step, log-variance by step); the loss is the exact E[(b − t)²]."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(runs, dtype=torch.float64, requires_grad=True)

    def f(b: Tensor) -> Tensor:
        return (b - t).square()

    estimator = create(name, Bernoulli(logits))
    n_samples = DRAWS if estimator.least_samples > 1 else 1
    optimizer = torch.optim.Adam([logits], lr=0.01)
    losses: Curve = []
    log_variances: Curve = []
    for step in range(steps + 1):
        if step % max(steps // 30, 1) == 0:
            theta = torch.sigmoid(logits.detach())
            losses.append((step, float((t**2 + (1 - 2 * t) * theta).mean())))
            average = Bernoulli(logits.detach().mean()[None])
            measured = measure(
                estimator, f, average, n=4000, n_samples=n_samples, blocks=2, generator=generator
            )
            # Per draw, so that all estimators are comparable; rounding sets a lower limit.
            variance = max(n_samples * measured.variance, 1e-20)
            log_variances.append((step, math.log(variance)))
        optimizer.zero_grad()
        estimator(f, Bernoulli(logits), n_samples, generator).sum().backward()
        optimizer.step()
    return losses, log_variances


def digits() -> tuple[Tensor, Tensor]:
    """(training, held-out) digits with pixels 0 and 1."""
    from sklearn.datasets import load_digits

    pixels = torch.from_numpy((load_digits().data > 7).astype("float32"))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    return pixels[order[:1500]], pixels[order[1500:]]


class Autoencoder(torch.nn.Module):
    """q(b|x) and p(x|b), each with one hidden layer; p(b) is uniform."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, LATENT * VALUES)
        )
        self.decoder = torch.nn.Sequential(
            torch.nn.Linear(LATENT * VALUES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 64)
        )

    def latent(self, x: Tensor) -> Categorical:
        return Categorical(self.encoder(x).view(len(x), LATENT, VALUES), event_dims=1)

    def reconstruction(self, x: Tensor, b: Tensor) -> Tensor:
        """Reconstruction loss −log p(x|b) for b (..., rows, latent, values)."""
        pixels = self.decoder(b.flatten(-2))
        target = x.expand(pixels.shape)
        return binary_cross_entropy_with_logits(pixels, target, reduction="none").sum(-1)

    def divergence(self, latent: Categorical) -> Tensor:
        """KL(q ‖ uniform) in closed form, one number per row."""
        log_q = latent.logits.log_softmax(-1)
        return (log_q.exp() * (log_q + math.log(VALUES))).sum((-2, -1))


def create_for_autoencoder(name: str, latent: Categorical) -> Estimator:
    # The network of RELAX sees z but not the digit; f adds that information.
    return Relax(latent.event_size, through_f=True) if name == "relax" else create(name, latent)


def autoencode(name: str, data: tuple[Tensor, Tensor], steps: int) -> Curve:
    """Held-out ELBO by step."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train, test = data
    model = Autoencoder()
    estimator = create_for_autoencoder(name, model.latent(train[:1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    curve: Curve = []
    for step in range(steps + 1):
        if step % max(steps // 20, 1) == 0:
            curve.append((step, held_out_elbo(model, test)))
        x = train[torch.randint(len(train), (100,), generator=generator)]
        latent = model.latent(x)
        loss = estimator(lambda b, x=x: model.reconstruction(x, b), latent, DRAWS, generator)
        optimizer.zero_grad()
        (loss + model.divergence(latent)).mean().backward()
        optimizer.step()
    return curve


@torch.no_grad()
def held_out_elbo(model: Autoencoder, x: Tensor, n: int = 20) -> float:
    latent = model.latent(x)
    generator = torch.Generator().manual_seed(1)
    loss = sum(model.reconstruction(x, latent.sample(generator)) for _ in range(n)) / n
    return -float((loss + model.divergence(latent)).mean())


def plot_curves(axes: Any, curves: dict[str, Curve], title: str) -> None:
    for name, curve in curves.items():
        steps, values = zip(*curve, strict=True)
        line = LINES.get(name, "-")
        axes.plot(steps, values, line, color=COLORS[name], linewidth=1.4, label=name)
    axes.set_title(title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)


def new_figure(rows: int, columns: int, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height), dpi=200, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw_toy(losses: dict[float, Any], log_variances: dict[float, Any], path: Path) -> None:
    figure, axes = new_figure(2, 2, 5.6)
    for column, t in enumerate(TARGETS):
        plot_curves(axes[0][column], losses[t], f"loss, t = {t}")
        optimum = axes[0][column].axhline(t**2, color="#333333", linewidth=0.8, linestyle=":")
        plot_curves(
            axes[1][column], log_variances[t], f"log-variance of one draw's estimate, t = {t}"
        )
        # Enumeration has no variance; scale the panel to the other estimators.
        lowest = min(v for c in log_variances[t].values() for _, v in c if v > -40)
        axes[1][column].set_ylim(bottom=lowest - 1)
        axes[1][column].set_xlabel("step")
    lines, names = axes[0][0].get_legend_handles_labels()
    compares = {name for name, kind in ESTIMATORS.items() if kind.least_samples > 1}
    names = [f"{name} ({DRAWS} draws)" if name in compares else name for name in names]
    figure.legend(
        [*lines, optimum], [*names, "optimum"], loc="outside upper left", ncols=3, frameon=False,
        fontsize=7,
    )  # fmt: skip
    figure.savefig(path)


def draw_elbo(curves: dict[str, Curve], path: Path) -> None:
    figure, axes = new_figure(1, 1, 3.4)
    plot_curves(axes[0][0], curves, "held-out ELBO (nats per digit; dashed: biased gradients)")
    start = max(curve[len(curve) // 10][1] for curve in curves.values())
    axes[0][0].set_ylim(bottom=min(start, min(c[-1][1] for c in curves.values())) - 2)
    axes[0][0].set_xlabel("step")
    axes[0][0].legend(frameon=False, fontsize=7, ncols=2)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="150 steps of the toy, 60 of the autoencoder"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder for the pictures"
    )
    options = parser.parse_args()
    toy_steps, runs, steps = (150, 10, 60) if options.quick else (3000, 100, 1600)
    started = time.perf_counter()
    torch.set_num_threads(1)

    losses: dict[float, dict[str, Curve]] = {t: {} for t in TARGETS}
    log_variances: dict[float, dict[str, Curve]] = {t: {} for t in TARGETS}
    for t in TARGETS:
        for name in ESTIMATORS:
            losses[t][name], log_variances[t][name] = toy(name, t, toy_steps, runs)
    console.print(
        f"toy: {runs} runs of {toy_steps} steps, {time.perf_counter() - started:.0f} s so far"
    )
    # Enumeration would need 8^8 states per digit.
    data = digits()
    elbo = {name: autoencode(name, data, steps) for name in ESTIMATORS if name != "exact"}
    console.print(f"digits: {steps} steps each, {time.perf_counter() - started:.0f} s so far\n")

    headings = [f"{quantity} {t}" for t in TARGETS for quantity in ("loss", "log-var")]
    table = Table("estimator", *headings, "ELBO digits", box=None, pad_edge=False)
    for name in ESTIMATORS:
        cells = []
        for t in TARGETS:
            loss, value = losses[t][name][-1][1], log_variances[t][name][-1][1]
            cells += [f"{loss:.4f}", f"{value:.1f}" if value > -40 else "none"]
        table.add_row(name, *cells, f"{elbo[name][-1][1]:.2f}" if name in elbo else "too large")
    table.add_row("optimum", *(c for t in TARGETS for c in (f"{t**2:.4f}", "")), "")
    console.print(table)

    options.out.mkdir(parents=True, exist_ok=True)
    draw_toy(losses, log_variances, options.out / "discrete_toy.png")
    draw_elbo(elbo, options.out / "discrete_digits.png")
    console.print(
        f"\npictures: {options.out / 'discrete_toy.png'}, {options.out / 'discrete_digits.png'} | "
        f"{time.perf_counter() - started:.0f} s in total"
    )


if __name__ == "__main__":
    main()
