"""A variational autoencoder with Gaussian codes, and new digits from its prior.

x is one of scikit-learn's 8×8 digits in black and white, z its code:

    q(z|x) = N(μ(x), diag σ²(x)),    p(z) = N(0, I),    p(x|z) = one Bernoulli per pixel

The encoder gives μ and σ, the decoder the pixels. Training maximizes the lower bound

    ELBO(x) = E_q log p(x|z) − KL(q(z|x) ‖ p(z)) = log p(x) − KL(q(z|x) ‖ p(z|x)).

z = μ + σε is differentiable in μ and σ, so one backward pass trains both networks. In the end a
sample of p(z) goes through the decoder and becomes a digit that nobody wrote. With two latent
dimensions log p(x) itself is an integral over a grid, which shows what the bound leaves out.

    python examples/gaussian_latent.py            # a minute
    python examples/gaussian_latent.py --quick    # seconds
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
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from extremax.discrete import kl_to_standard_normal, log_prob, sample

HIDDEN, DRAWS = 64, 4
COLORS = {2: "#D55E00", 8: "#0072B2"}
Curve = list[tuple[int, float]]
console = Console(width=88)


def digits() -> tuple[Tensor, Tensor]:
    """(training, held-out) digits with pixels 0 and 1."""
    from sklearn.datasets import load_digits

    pixels = torch.from_numpy((load_digits().data > 7).astype("float32"))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    return pixels[order[:1500]], pixels[order[1500:]]


class GaussianAutoencoder(torch.nn.Module):
    """q(z|x) and p(x|z), each with one hidden layer; p(z) is standard normal."""

    def __init__(self, n_latent: int, n_pixels: int = 64, n_hidden: int = HIDDEN) -> None:
        super().__init__()
        self.n_latent = n_latent
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(n_pixels, n_hidden), torch.nn.ReLU(),
            torch.nn.Linear(n_hidden, 2 * n_latent),
        )  # fmt: skip
        self.decoder = torch.nn.Sequential(
            torch.nn.Linear(n_latent, n_hidden), torch.nn.ReLU(),
            torch.nn.Linear(n_hidden, n_pixels),
        )  # fmt: skip

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(μ, log σ²) of q(z|x), each (rows, latent)."""
        mean, log_variance = self.encoder(x).chunk(2, -1)
        return mean, log_variance

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z) for z (..., rows, latent)."""
        pixels = self.decoder(z)
        target = x.expand(pixels.shape)
        return -binary_cross_entropy_with_logits(pixels, target, reduction="none").sum(-1)

    def elbo(self, x: Tensor, n_draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Estimate per row, with the divergence in closed form."""
        mean, log_variance = self.encode(x)
        scale = torch.exp(0.5 * log_variance)
        z = sample("gaussian", mean, scale, shape=(n_draws,), generator=generator)
        return self.log_likelihood(x, z).mean(0) - kl_to_standard_normal(mean, log_variance)

    def importance_bound(self, x: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
        """log of the mean of p(x|z) p(z)/q(z|x) over draws from q: a bound per row that is tighter
        than the ELBO and tends to log p(x) (Burda et al. 2016)."""
        mean, log_variance = self.encode(x)
        scale = torch.exp(0.5 * log_variance)
        z = sample("gaussian", mean, scale, shape=(n_draws,), generator=generator)
        prior = log_prob("gaussian", z, torch.zeros_like(mean), torch.ones_like(scale))
        log_ratio = (prior - log_prob("gaussian", z, mean, scale)).sum(-1)
        return (self.log_likelihood(x, z) + log_ratio).logsumexp(0) - math.log(n_draws)

    def generate(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Pixel probabilities of n new digits, from codes drawn from the prior."""
        like = self.decoder[0].weight
        zero = torch.zeros(self.n_latent, dtype=like.dtype)
        z = sample("gaussian", zero, torch.ones_like(zero), shape=(n,), generator=generator)
        return torch.sigmoid(self.decoder(z))


def integrated_log_prob(
    model: GaussianAutoencoder, x: Tensor, points: int = 161, reach: float = 6.0
) -> Tensor:
    """log p(x) = log ∫ p(x|z) p(z) dz per row, over a grid of 1 or 2 latent dimensions."""
    line = torch.linspace(-reach, reach, points, dtype=x.dtype)
    grid = torch.cartesian_prod(*[line] * model.n_latent).view(-1, model.n_latent)
    pixels = model.decoder(grid)
    log_likelihood = x @ pixels.T - softplus(pixels).sum(-1)
    zero, one = torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype)
    log_prior = log_prob("gaussian", grid, zero, one).sum(-1)
    log_cell = model.n_latent * math.log(2.0 * reach / (points - 1))
    return (log_likelihood + log_prior).logsumexp(-1) + log_cell


def train(n_latent: int, data: tuple[Tensor, Tensor], steps: int) -> tuple[Any, Curve]:
    """The trained model, and held-out ELBO by step."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    digits_seen, held_out = data
    model = GaussianAutoencoder(n_latent)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    curve: Curve = []
    for step in range(steps + 1):
        if step % max(steps // 20, 1) == 0:
            with torch.no_grad():
                elbo = model.elbo(held_out, 20, torch.Generator().manual_seed(1))
            curve.append((step, float(elbo.mean())))
        x = digits_seen[torch.randint(len(digits_seen), (100,), generator=generator)]
        optimizer.zero_grad()
        (-model.elbo(x, DRAWS, generator).mean()).backward()
        optimizer.step()
    return model, curve


def tiles(images: Tensor, columns: int) -> Tensor:
    """Images (n, 64) as one picture with a pixel of white between them."""
    padded = torch.nn.functional.pad(images.view(-1, 8, 8), (0, 1, 0, 1))
    rows = padded.view(-1, columns, 9, 9).transpose(1, 2)
    return rows.reshape(-1, 9 * columns)[:-1, :-1]


def draw(curves: dict[int, Curve], models: dict[int, Any], log_p: float, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.9), dpi=200, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for n_latent, curve in curves.items():
        label = f"{n_latent} dimensions"
        left.plot(*zip(*curve[1:], strict=True), color=COLORS[n_latent], label=label)
    left.axhline(log_p, color=COLORS[2], linewidth=0.8, linestyle=":")
    left.set_title("held-out ELBO, nats per digit\n(dotted: log p(x) of 2 dimensions)",
                   loc="left", fontsize=8)  # fmt: skip
    left.set_xlabel("step", fontsize=8)
    left.legend(frameon=False, fontsize=7, loc="lower right")
    left.spines[["top", "right"]].set_visible(False)
    left.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    left.tick_params(labelsize=7)
    quantiles = torch.special.ndtri(torch.linspace(0.02, 0.98, 12))
    with torch.no_grad():
        plane = torch.sigmoid(models[2].decoder(torch.cartesian_prod(quantiles, quantiles)))
        new = models[8].generate(144, torch.Generator().manual_seed(2))
    for panel, images, title in (
        (middle, plane, "the plane of 2-dimensional codes,\nat quantiles of the prior"),
        (right, new, "samples from the prior\nof 8-dimensional codes"),
    ):
        panel.imshow(tiles(images, 12), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        panel.set_title(title, loc="left", fontsize=8)
        panel.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 steps, 100 importance draws")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the picture")
    options = parser.parse_args()
    steps, importance_draws = (200, 100) if options.quick else (6400, 1000)
    started = time.perf_counter()
    torch.set_num_threads(1)
    data = digits()
    table = Table(
        "latent dimensions", "ELBO at 1,600", "ELBO", "importance bound", "log p(x)",
        box=None, pad_edge=False,
    )  # fmt: skip
    models, curves, log_p = {}, {}, math.nan
    for n_latent in COLORS:
        models[n_latent], curves[n_latent] = train(n_latent, data, steps)
        with torch.no_grad():
            bound = models[n_latent].importance_bound(
                data[1], importance_draws, torch.Generator().manual_seed(3)
            )
            if n_latent == 2:
                log_p = float(integrated_log_prob(models[2], data[1]).mean())
        early = dict(curves[n_latent]).get(1600)
        table.add_row(
            f"{n_latent}", "none" if early is None else f"{early:.2f}",
            f"{curves[n_latent][-1][1]:.2f}", f"{float(bound.mean()):.2f}",
            f"{log_p:.2f}" if n_latent == 2 else "unknown",
        )  # fmt: skip
    console.print(f"held-out digits, nats per digit, {steps:,} steps\n")
    console.print(table)
    path = options.out / "gaussian_latent.png"
    draw(curves, models, log_p, path)
    console.print(f"\npicture: {path} | {time.perf_counter() - started:.0f} s in total")


if __name__ == "__main__":
    main()
