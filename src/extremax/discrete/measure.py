"""Measure the bias and variance of a gradient estimator, with confidence intervals.

Estimates are computed in blocks. The bias is the mean estimate minus the exact gradient, per logit;
t is the bias divided by its standard error. The variance is summed over the logits; its standard
error comes from the variation between blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Generator, Tensor

from extremax.discrete.estimators.base import Estimator, Exact, Function
from extremax.discrete.variables import Variable
from extremax.tensor_checks import check_count, check_finite, check_shape


@dataclass(frozen=True)
class Measurement:
    """Statistics of n estimates of a gradient.

    n:               number of estimates.
    truth:           exact gradient, in the shape of the logits, float64.
    mean, error:     mean of the estimates and its standard error, same shape and dtype.
    variance:        variance of one estimate, summed over the logits.
    variance_error:  standard error of ``variance``.
    blocks:          number of blocks that ``variance_error`` is estimated from.
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
        """Mean estimate minus exact gradient."""
        return self.mean - self.truth

    @property
    def t(self) -> Tensor:
        """Bias over its standard error; without bias |t| > 4 has a probability of 6e-5."""
        # Estimates without variance may still differ from the truth by rounding.
        rounding = 1e-12 * float(self.truth.abs().max()) + 1e-300
        return self.bias / self.error.clamp(min=rounding)

    def bias_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Confidence interval (low, high) of the bias, per logit."""
        width = float(stats.norm.ppf(0.5 + level / 2)) * self.error
        return self.bias - width, self.bias + width

    def variance_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval (low, high) of the variance."""
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
    generator: Generator | None = None,
) -> Measurement:
    """Compare n estimates of ∇E f with the exact gradient; the estimator does not learn meanwhile.

    f:          must accept any number of dimensions before those of the variable.
    n_samples:  draws per estimate.
    truth:      exact gradient; computed by enumeration if None.
    """
    check_count(blocks, "blocks", 2)
    check_count(n, "n", 2 * blocks, f"; {blocks} blocks need at least two estimates each")
    if truth is None:
        truth = gradients(Exact(), f, variable, 1, 1, generator)[0]
    check_finite(truth, "truth")
    check_shape(truth, "truth", variable.logits.shape, "the logits")
    size = n // blocks
    was_training = estimator.training
    estimator.eval()
    try:
        moments = [
            torch.var_mean(gradients(estimator, f, variable, size, n_samples, generator), 0)
            for _ in range(blocks)
        ]
    finally:
        estimator.train(was_training)
    within, means = (torch.stack(parts) for parts in zip(*moments, strict=True))
    total = within.flatten(1).sum(1)
    return Measurement(
        n=size * blocks,
        truth=truth.double(),
        mean=means.mean(0),
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
    generator: Generator | None = None,
) -> Tensor:
    """Compute n independent estimates of ∇E f on the logits, (n, *logits.shape), float64."""
    copies = variable.repeated(n)
    surrogate = estimator(f, copies, n_samples, generator)
    (estimates,) = torch.autograd.grad(surrogate.sum(), copies.logits)
    return estimates.double()


def variance_ratio(
    one: Measurement, other: Measurement, level: float = 0.95
) -> tuple[float, float, float]:
    """Ratio of two variances with its confidence interval: (ratio, low, high).

    The interval is computed on the log scale.
    """
    if not other.variance > 0:
        raise ValueError(f"the variance of other must be > 0, got {other.variance}")
    ratio = one.variance / other.variance
    if not ratio > 0:
        return 0.0, 0.0, 0.0
    spread = math.hypot(one.variance_error / one.variance, other.variance_error / other.variance)
    degrees = min(one.blocks, other.blocks) - 1
    factor = math.exp(float(stats.t.ppf(0.5 + level / 2, degrees)) * spread)
    return ratio, ratio / factor, ratio * factor
