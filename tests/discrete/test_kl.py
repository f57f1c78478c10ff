"""KL of Gaussians against torch's, and gradients against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from extremax.discrete import kl_gaussians, kl_to_standard_normal


def gaussian(seed: int, batch: int = 3, d: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(batch, d, d, generator=generator, dtype=torch.float64)
    eye = torch.eye(d, dtype=torch.float64)
    mean = torch.randn(batch, d, generator=generator, dtype=torch.float64)
    return mean, root @ root.mT + 0.1 * eye


def test_the_general_form_matches_torch() -> None:
    p, q = gaussian(0), gaussian(1)
    expected = kl_divergence(MultivariateNormal(*p), MultivariateNormal(*q))
    torch.testing.assert_close(kl_gaussians(*p, *q), expected)
    assert float(kl_gaussians(*p, *p).abs().max()) < 1e-10


def test_the_diagonal_form_matches_the_general_one() -> None:
    mean, _ = gaussian(2)
    log_variance = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4)
    zero, eye = torch.zeros_like(mean), torch.eye(4, dtype=torch.float64).expand(3, 4, 4)
    expected = kl_gaussians(mean, torch.diag_embed(log_variance.exp()), zero, eye)
    torch.testing.assert_close(kl_to_standard_normal(mean, log_variance), expected)


def test_gradients_match_finite_differences() -> None:
    mean, covariance = gaussian(3, batch=2, d=3)
    factor = torch.linalg.cholesky(covariance).requires_grad_()
    other = gaussian(4, batch=2, d=3)
    mean.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, r: kl_gaussians(m, r @ r.mT, *other), (mean, factor))
    assert torch.autograd.gradcheck(kl_to_standard_normal, (mean, factor[:, 0]))


def test_errors_name_the_argument() -> None:
    mean, eye = torch.zeros(2), torch.eye(2)
    with pytest.raises(ValueError, match="covariance must be positive definite"):
        kl_gaussians(mean, -eye, mean, eye)
    with pytest.raises(ValueError, match="other_covariance must be symmetric"):
        kl_gaussians(mean, eye, mean, torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"covariance must be \(..., d, d\)"):
        kl_gaussians(mean, torch.eye(3), mean, eye)
    with pytest.raises(
        ValueError, match="mean and other_mean must have the same last dimension, got 2 and 3"
    ):
        kl_gaussians(mean, eye, torch.zeros(3), torch.eye(3))
    with pytest.raises(ValueError, match="log_variance has shape"):
        kl_to_standard_normal(mean, torch.zeros(3))
    with pytest.raises(ValueError, match="mean must be finite, got nan"):
        kl_to_standard_normal(torch.tensor([math.nan]), torch.zeros(1))
