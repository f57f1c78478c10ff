"""Bias and variance of a gradient estimator, measured, with confidence intervals.

Estimates are made side by side in blocks. The bias is the mean estimate less the exact gradient,
for each logit; t is the bias over its standard error. The variance is summed over the logits; the
spread of its estimates from block to block gives the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from extremax.discrete.checks import check_count, check_finite, check_shape
from extremax.discrete.estimators.base import Estimator, Function
from extremax.discrete.estimators.exact import Exact
from extremax.discrete.variables import Variable


@dataclass(frozen=True)
class Measurement:
    """What n estimates of a gradient said.

    truth, mean, error:  the exact gradient, the mean of the estimates and its standard error, each
                         in the shape of the logits, float64.
    variance:            of one estimate, summed over the logits, with its standard error.
    blocks:              how many blocks the standard error of the variance comes from.
    """

    n: int
    truth: Tensor
    mean: Tensor
    error: Tensor
    variance: float
    variance_error: float
    blocks: int

    @property
    def bias(self) -> Tensor:
        return self.mean - self.truth

    @property
    def t(self) -> Tensor:
        """Bias over its standard error; |t| > 4 has probability 6e-5 where there is no bias."""
        # Estimates without variance may still differ from the truth by rounding.
        rounding = 1e-12 * float(self.truth.abs().max()) + 1e-300
        return self.bias / self.error.clamp(min=rounding)

    def bias_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Within which the bias of each logit lies at this confidence."""
        width = float(stats.norm.ppf(0.5 + level / 2)) * self.error
        return self.bias - width, self.bias + width

    def variance_interval(self, level: float = 0.95) -> tuple[float, float]:
        width = float(stats.t.ppf(0.5 + level / 2, self.blocks - 1)) * self.variance_error
        return max(0.0, self.variance - width), self.variance + width


def measure(
    estimator: Estimator,
    f: Function,
    variable: Variable,
    n: int = 10_000,
    n_samples: int = 1,
    blocks: int = 20,
    truth: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Measurement:
    """n estimates of ∇E f, each from n_samples draws; what the estimator learns is held.

    f must accept any number of dimensions before those of the variable. ``truth`` is the exact
    gradient, found by enumeration if not given.
    """
    check_count(blocks, "blocks", 2)
    check_count(n, "n", 2 * blocks, f"; {blocks} blocks need two estimates each")
    if truth is None:
        truth = gradients(Exact(), f, variable, 1, 1, generator)[0]
    check_shape(truth, variable.logits.shape, "truth", "the logits")
    check_finite(truth, "truth")
    learning = estimator.training
    estimator.eval()
    try:
        size = n // blocks
        means, variances = [], []
        for _ in range(blocks):
            found = gradients(estimator, f, variable, size, n_samples, generator)
            means.append(found.mean(0))
            variances.append(found.var(0))
    finally:
        estimator.train(learning)
    within = torch.stack(variances)
    total = within.flatten(1).sum(1)
    return Measurement(
        n=size * blocks,
        truth=truth.double(),
        mean=torch.stack(means).mean(0),
        error=(within.mean(0) / (size * blocks)).sqrt(),
        variance=float(total.mean()),
        variance_error=float(total.std()) / math.sqrt(blocks),
        blocks=blocks,
    )


def gradients(
    estimator: Estimator,
    f: Function,
    variable: Variable,
    n: int,
    n_samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """n independent estimates of ∇E f on the logits, (n, *logits.shape), float64."""
    copies = variable.repeated(n)
    surrogate = estimator(f, copies, n_samples, generator)
    (found,) = torch.autograd.grad(surrogate.sum(), copies.logits)
    return found.double()


def variance_ratio(
    one: Measurement, other: Measurement, level: float = 0.95
) -> tuple[float, float, float]:
    """Variance of one over that of another, with its interval (low, high), on the log scale."""
    if not other.variance > 0:
        raise ValueError(f"the variance of other must be > 0, got {other.variance}")
    ratio = one.variance / other.variance
    if not ratio > 0:
        return 0.0, 0.0, 0.0
    spread = math.hypot(one.variance_error / one.variance, other.variance_error / other.variance)
    freedom = min(one.blocks, other.blocks) - 1
    factor = math.exp(float(stats.t.ppf(0.5 + level / 2, freedom)) * spread)
    return ratio, ratio / factor, ratio * factor
