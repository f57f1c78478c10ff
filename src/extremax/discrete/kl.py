"""Kullback–Leibler divergences of Gaussians in closed form (Xu 2019, "KL between two Gaussians").

The slide with the divergence from N(0, I) in d dimensions halves σ² and μ² twice; these functions
follow the general form on the slide before it, which is correct.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from extremax.tensor_checks import check_finite, check_shape


def kl_gaussians(
    mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor
) -> Tensor:
    """KL(N(μ, Σ) ‖ N(ν, Λ)) = ½[log |Λ|/|Σ| − d + tr Λ⁻¹Σ + (ν − μ)ᵀΛ⁻¹(ν − μ)], shape (...).

    mean, other_mean:              (..., d).
    covariance, other_covariance:  (..., d, d), positive definite.
    """
    one = _gaussian(mean, covariance, "mean", "covariance")
    other = _gaussian(other_mean, other_covariance, "other_mean", "other_covariance")
    if mean.shape[-1] != other_mean.shape[-1]:
        raise ValueError(
            "mean and other_mean must have the same last dimension, got "
            f"{mean.shape[-1]} and {other_mean.shape[-1]}"
        )
    return kl_divergence(one, other)


def kl_to_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ (σ² + μ² − 1 − log σ²) over the last dimension."""
    for name, values in (("mean", mean), ("log_variance", log_variance)):
        check_finite(values, name)
    check_shape(log_variance, "log_variance", mean.shape, "mean")
    # expm1(x) − x stays accurate where σ² is near one.
    return 0.5 * (torch.expm1(log_variance) - log_variance + mean.square()).sum(-1)


def _gaussian(mean: Tensor, covariance: Tensor, mean_name: str, name: str) -> MultivariateNormal:
    """N(μ, Σ), with checked parameters."""
    check_finite(mean, mean_name)
    check_finite(covariance, name)
    if mean.ndim == 0 or covariance.shape[-2:] != (mean.shape[-1],) * 2:
        raise ValueError(
            f"{name} must be (..., d, d) for {mean_name} (..., d), got "
            f"{tuple(covariance.shape)} and {tuple(mean.shape)}"
        )
    if not torch.allclose(covariance, covariance.mT, rtol=1e-4):
        raise ValueError(f"{name} must be symmetric; average it with its transpose")
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        raise ValueError(f"{name} must be positive definite; add a small constant to its diagonal")
    return MultivariateNormal(mean, scale_tril=factor, validate_args=False)
