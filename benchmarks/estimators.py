"""Bias and variance of each gradient estimator for discrete variables.

Two problems, in float64. toy: f = (b − 0.45)² of one Bernoulli variable at θ = 0.3. categorical:
the squared distance of one-hot b, ten classes, to a random point, with random logits. Estimators
that learn (running mean, REBAR, RELAX) are first trained, with 1,000 estimates per call, and then
frozen.

- unbiased_rejected: over both problems and all logits, how often |t| > 4 for the bias of an
  estimator that claims to be unbiased. Biased ones are shown, not counted.
- rebar_over_reinforce, relax_over_reinforce: variance relative to REINFORCE without a baseline, the
  larger of the two problems; ``_high`` is the larger upper end of the 95% intervals.

Each estimator has the same number of draws. Leave-one-out and control variate need four draws per
estimate; their variance is given per draw, which is four times that of the estimate, for
comparison. REBAR and RELAX add work to a draw, and REBAR an evaluation of f: see
``evaluations_a_draw`` in the figures.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any, NamedTuple

import torch
from _common import finish, say

from extremax.discrete import (
    ESTIMATORS,
    Bernoulli,
    Categorical,
    Measurement,
    Variable,
    create,
    gradients,
    measure,
    variance_ratio,
)
from extremax.discrete.estimators.base import Function

BLOCKS = 100
SIDE_BY_SIDE = 1000
# Draws per estimate for estimators that compare draws.
TOGETHER = 4
REJECTED = 4.0
EVALUATIONS = {"rebar": 2}


class Problem(NamedTuple):
    f: Function
    variable: Variable


def problems() -> dict[str, Problem]:
    generator = torch.Generator().manual_seed(0)
    theta = torch.tensor([0.3], dtype=torch.float64)
    logits = torch.randn(10, generator=generator, dtype=torch.float64)
    target = torch.rand(10, generator=generator, dtype=torch.float64)
    return {
        "toy": Problem(lambda b: (b - 0.45).square(), Bernoulli(theta.logit())),
        "categorical": Problem(lambda b: (b - target).square().sum(-1), Categorical(logits)),
    }


def measured(name: str, problem: Problem, n_draws: int, n_calls: int) -> tuple[Measurement, int]:
    """Measure an estimator after training it; return the figures and the draws per estimate."""
    torch.manual_seed(0)
    # Separate draws per estimator, so that one unlucky set is not rejected several times.
    generator = torch.Generator().manual_seed(1 + list(ESTIMATORS).index(name))
    estimator = create(name, problem.variable)
    n_samples = TOGETHER if estimator.least_samples > 1 else 1
    if list(estimator.parameters()) or list(estimator.buffers()):
        for _ in range(n_calls):
            gradients(estimator, *problem, SIDE_BY_SIDE, n_samples, generator)
    found = measure(
        estimator, *problem, n=n_draws // n_samples, n_samples=n_samples, blocks=BLOCKS,
        generator=generator,
    )  # fmt: skip
    return found, n_samples


def figures_of(found: Measurement, n_samples: int, name: str) -> dict[str, Any]:
    low, high = (n_samples * end for end in found.variance_interval())
    return {
        "bias": float(found.bias.norm()),
        "bias_error": float(found.error.norm()),
        "worst_t": float(found.t.abs().max()),
        "claims_unbiased": ESTIMATORS[name].unbiased,
        "variance": n_samples * found.variance,
        "variance_interval": [low, high],
        "log_variance": math.log(n_samples * found.variance) if found.variance > 0 else None,
        "draws_an_estimate": n_samples,
        "evaluations_a_draw": EVALUATIONS.get(name, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws, half the calls")
    parser.add_argument("--draws", type=int, help="1,000,000, with --quick 100,000")
    parser.add_argument("--calls", type=int, help="training calls: 3,000, with --quick 1,500")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    n_draws = given.draws or (100_000 if given.quick else 1_000_000)
    n_calls = given.calls or (1_500 if given.quick else 3_000)
    torch.set_num_threads(1)
    rejected = 0
    figures: dict[str, Any] = {}
    ratios: dict[str, list[tuple[float, float, float]]] = {"rebar": [], "relax": []}
    for label, problem in problems().items():
        figures[label], kept = {}, {}
        for name in ESTIMATORS:
            start = time.perf_counter()
            found, n_samples = measured(name, problem, n_draws, n_calls)
            kept[name], row = found, figures_of(found, n_samples, name)
            # Enumeration has no variance; its bias is only rounding.
            if row["claims_unbiased"] and name != "exact":
                rejected += int((found.t.abs() > REJECTED).sum())
            figures[label][name] = row
            seconds = time.perf_counter() - start
            say(
                f"{label:<12}{name:<25} bias {row['bias']:.1e} ± {row['bias_error']:.0e}  "
                f"worst t {row['worst_t']:7.2f}  variance {row['variance']:.3e}  {seconds:.1f} s"
            )
        for name, found_ratios in ratios.items():
            ratio = variance_ratio(kept[name], kept["reinforce"])
            figures[label][name]["over_reinforce"] = list(ratio)
            found_ratios.append(ratio)
            within = f"{ratio[1]:.4f}..{ratio[2]:.4f}"
            say(f"{label:<12}{name} over reinforce {ratio[0]:.4f}, 95% {within}")
    headline: dict[str, float] = {"unbiased_rejected": rejected}
    for name, found_ratios in ratios.items():
        headline[f"{name}_over_reinforce"] = max(ratio for ratio, _, _ in found_ratios)
        headline[f"{name}_over_reinforce_high"] = max(high for _, _, high in found_ratios)
    sizes = {"draws": n_draws, "learning_calls": n_calls, "side_by_side": SIDE_BY_SIDE}
    finish(given, headline, figures, sizes)


if __name__ == "__main__":
    main()
