"""Gradients through discrete variables: bias, variance, and what they do to learning.

Xu 2019, "Story of Softmax", goes from REINFORCE over the Gumbel-max trick and its relaxation to
REBAR. Here every estimator of `extremax.discrete` meets three problems, several seeds each:

- variance: bias and variance of one estimate, in float64, on a toy and a ten-way problem.
  Estimators that learn are first trained, with 1,000 estimates per call, and then frozen. The
  relaxations are measured at several temperatures τ.
- toy: minimize E[(b − t)²], b ~ Bernoulli(θ), over θ (Tucker et al. 2017, Grathwohl et al. 2018).
  The optimum is b = 0, but the two values of f hardly differ, so noisy gradients make little
  progress. Many θ are learned side by side; parameters of the estimator are learned from all.
- digits: an autoencoder of scikit-learn's 8×8 digits as black and white pixels, with 8 latent
  variables of 8 values and four draws per step. The ELBO is that of held-out digits, hard draws.

Estimators that compare draws use four per estimate; their variance is given per draw, which is four
times that of the estimate.

    python reproduce/discrete_estimators.py --output runs/estimators --jobs 16
    python reproduce/discrete_estimators.py --report runs/estimators
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from _common import Cell, parser, read_results, run_cells
from _estimator_report import report
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from extremax.discrete import (
    ESTIMATORS,
    Bernoulli,
    Categorical,
    Estimator,
    GumbelSoftmax,
    Relax,
    StraightThrough,
    Variable,
    create,
    gradients,
    measure,
)

TARGETS = (0.45, 0.499)
TEMPERATURES = (0.1, 0.25, 0.5, 1.0, 2.0)
RELAXED: dict[str, type[GumbelSoftmax]] = {
    "gumbel_softmax": GumbelSoftmax,
    "straight_through": StraightThrough,
}
LATENT, VALUES, HIDDEN, DRAWS = 8, 8, 64, 4
Function = Callable[[Tensor], Tensor]
Curve = list[tuple[int, float]]


class Sizes(NamedTuple):
    draws: int  # to measure bias and variance
    calls: int  # in which an estimator learns before that
    toy_steps: int
    toy_runs: int
    digit_steps: int


FULL = Sizes(200_000, 3000, 3000, 100, 1600)
QUICK = Sizes(4000, 10, 12, 10, 6)


def problems() -> dict[str, tuple[Function, Variable]]:
    """(f, variable) by name, the same for every seed."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.tensor([0.3], dtype=torch.float64)
    logits = torch.randn(10, generator=generator, dtype=torch.float64)
    target = torch.rand(10, generator=generator, dtype=torch.float64)
    return {
        "toy": (lambda b: (b - 0.45).square(), Bernoulli(theta.logit())),
        "ten-way": (lambda b: (b - target).square().sum(-1), Categorical(logits)),
    }


def variance(
    problem: str, name: str, temperature: float | None, seed: int, sizes: Sizes
) -> dict[str, Any]:
    """Bias and variance, after learning."""
    torch.manual_seed(seed)
    # Separate draws per estimator, so that one unlucky set is not rejected several times.
    generator = torch.Generator().manual_seed(100 * seed + list(ESTIMATORS).index(name))
    f, variable = problems()[problem]
    estimator = RELAXED[name](temperature) if temperature else create(name, variable)
    n_samples = DRAWS if estimator.least_samples > 1 else 1
    if list(estimator.parameters()) or list(estimator.buffers()):
        for _ in range(sizes.calls):
            gradients(estimator, f, variable, 1000, n_samples, generator)
    found = measure(
        estimator, f, variable, n=sizes.draws // n_samples, n_samples=n_samples,
        generator=generator,
    )  # fmt: skip
    return {
        "bias": found.bias.tolist(),
        "error": found.error.tolist(),
        "truth": float(found.truth.norm()),
        "variance": n_samples * found.variance,
    }


def toy(name: str, t: float, seed: int, sizes: Sizes) -> dict[str, Any]:
    """Loss and log-variance by step; the loss is the exact E[(b − t)²], mean over the θ."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(sizes.toy_runs, dtype=torch.float64, requires_grad=True)

    def f(b: Tensor) -> Tensor:
        return (b - t).square()

    estimator = create(name, Bernoulli(logits))
    n_samples = DRAWS if estimator.least_samples > 1 else 1
    optimizer = torch.optim.Adam([logits], lr=0.01)
    losses: Curve = []
    log_variances: Curve = []
    for step in range(sizes.toy_steps + 1):
        if step % max(sizes.toy_steps // 30, 1) == 0:
            theta = torch.sigmoid(logits.detach())
            losses.append((step, float((t**2 + (1 - 2 * t) * theta).mean())))
            average = Bernoulli(logits.detach().mean()[None])
            measured = measure(
                estimator, f, average, n=4000, n_samples=n_samples, blocks=2, generator=generator
            )
            # Rounding sets a lower limit.
            variance_of_draw = max(n_samples * measured.variance, 1e-20)
            log_variances.append((step, math.log(variance_of_draw)))
        optimizer.zero_grad()
        estimator(f, Bernoulli(logits), n_samples, generator).sum().backward()
        optimizer.step()
    return {"loss": losses, "log_variance": log_variances}


def digits(seed: int) -> tuple[Tensor, Tensor]:
    """(1,500 training, 297 held-out) digits with pixels 0 and 1, another split for each seed."""
    from sklearn.datasets import load_digits

    pixels = torch.from_numpy((load_digits().data > 7).astype("float32"))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
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

    @torch.no_grad()
    def elbo(self, x: Tensor, n: int = 20) -> float:
        """Mean ELBO of rows, from n hard draws each."""
        latent = self.latent(x)
        generator = torch.Generator().manual_seed(1)
        loss = sum(self.reconstruction(x, latent.sample(generator)) for _ in range(n)) / n
        return -float((loss + self.divergence(latent)).mean())


def autoencode(name: str, seed: int, sizes: Sizes) -> dict[str, Any]:
    """Held-out ELBO by step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    train, held_out = digits(seed)
    model = Autoencoder()
    latent = model.latent(train[:1])
    # The network of RELAX sees z but not the digit; f adds that information.
    estimator: Estimator = (
        Relax(latent.event_size, through_f=True) if name == "relax" else create(name, latent)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    curve: Curve = []
    for step in range(sizes.digit_steps + 1):
        if step % max(sizes.digit_steps // 20, 1) == 0:
            curve.append((step, model.elbo(held_out)))
        x = train[torch.randint(len(train), (100,), generator=generator)]
        latent = model.latent(x)
        loss = estimator(lambda b, x=x: model.reconstruction(x, b), latent, DRAWS, generator)
        optimizer.zero_grad()
        (loss + model.divergence(latent)).mean().backward()
        optimizer.step()
    return {"elbo": curve}


def work(cell: Cell) -> dict[str, Any]:
    """One estimator on one problem with one seed."""
    torch.set_num_threads(1)
    sizes = QUICK if cell["quick"] else FULL
    name, seed = cell["estimator"], cell["seed"]
    if cell["kind"] == "variance":
        return variance(cell["problem"], name, cell.get("temperature"), seed, sizes)
    if cell["kind"] == "toy":
        return toy(name, cell["t"], seed, sizes)
    return autoencode(name, seed, sizes)


def cells(seeds: int, quick: bool) -> list[Cell]:
    kinds: list[Cell] = [
        # Enumeration would need 8^8 states per digit.
        *({"kind": "digits", "estimator": name} for name in ESTIMATORS if name != "exact"),
        *({"kind": "toy", "t": t, "estimator": name} for t in TARGETS for name in ESTIMATORS),
        *(
            {"kind": "variance", "problem": problem, "estimator": name}
            for problem in problems()
            for name in ESTIMATORS
            if name not in RELAXED
        ),
        *(
            {"kind": "variance", "problem": problem, "estimator": name, "temperature": temperature}
            for problem in problems()
            for name in RELAXED
            for temperature in TEMPERATURES
        ),
    ]
    return [kind | {"seed": seed, "quick": quick} for kind in kinds for seed in range(seeds)]


def main(argv: list[str] | None = None) -> None:
    made = parser(__doc__.splitlines()[0])
    made.set_defaults(seeds=5)
    given = made.parse_args(argv)
    file, planned = "discrete_estimators.jsonl", cells(given.seeds, given.quick)
    if given.output:
        deadline = time.monotonic() + given.stop_after
        run_cells(work, planned, given.output / file, given.jobs, deadline)
    if given.report:
        report(list(read_results(given.report / file).values()), planned, given.images)


if __name__ == "__main__":
    main()
