"""The Gaussian autoencoder: its bounds against numerical integrals, and the quick version."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scipy import stats

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from gaussian_latent import GaussianAutoencoder, integrated_log_prob  # noqa: E402

N_PIXELS, N_HIDDEN, N_ROWS = 5, 4, 3


def tiny(n_latent: int) -> tuple[GaussianAutoencoder, torch.Tensor]:
    torch.manual_seed(1)
    model = GaussianAutoencoder(n_latent, N_PIXELS, N_HIDDEN).double()
    # Integrals of smooth functions over a grid are accurate to rounding.
    model.encoder[1] = model.decoder[1] = torch.nn.Tanh()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model, torch.bernoulli(torch.full((N_ROWS, N_PIXELS), 0.5, dtype=torch.float64))


def normal_log_prob(z: torch.Tensor, mean: torch.Tensor, sd: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Normal(mean, sd).log_prob(z).sum(-1)


def integrals(model: GaussianAutoencoder, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """log p(x), ∫ q log(p(x, z)/q) dz and ∫ q log(q/p(z|x)) dz per row, by sums over a grid."""
    line, cell = torch.linspace(-9, 9, 361, dtype=torch.float64), 18 / 360
    z = torch.stack(torch.meshgrid(*[line] * model.n_latent, indexing="ij"), -1)
    z = z.view(-1, 1, model.n_latent)
    mean, log_variance = model.encode(x)
    log_q = normal_log_prob(z, mean, (0.5 * log_variance).exp())
    pixels = model.decoder(z)
    log_pixels = torch.distributions.Bernoulli(logits=pixels).log_prob(x.expand(len(z), -1, -1))
    log_joint = log_pixels.sum(-1) + normal_log_prob(
        z, torch.zeros_like(mean), torch.ones_like(mean)
    )
    volume = cell**model.n_latent
    log_p = log_joint.logsumexp(0) + math.log(volume)
    q = log_q.exp() * volume
    assert torch.allclose(q.sum(0), torch.ones(N_ROWS, dtype=torch.float64), atol=1e-9)
    return log_p, (q * (log_joint - log_q)).sum(0), (q * (log_q - log_joint + log_p)).sum(0)


@pytest.mark.parametrize("n_latent", [1, 2])
def test_the_elbo_is_the_integral_and_bounds_the_likelihood(n_latent: int) -> None:
    model, x = tiny(n_latent)
    n = 20_000
    with torch.no_grad():
        log_p, elbo, divergence = integrals(model, x)
        generator = torch.Generator().manual_seed(0)
        estimates = torch.stack([model.elbo(x, n // 50, generator) for _ in range(50)])
        error = estimates.std(0) / math.sqrt(50)
        assert bool(((estimates.mean(0) - elbo).abs() < 5 * error).all())
        assert bool((error < 0.02).all())
        # log p(x) = ELBO + KL(q ‖ p(z|x)).
        assert torch.allclose(log_p, elbo + divergence, atol=1e-9)
        assert bool((divergence > 0.01).all())
        assert torch.allclose(integrated_log_prob(model, x), log_p, atol=1e-6)
        bound = model.importance_bound(x, n, generator)
        assert bool((bound > elbo + 0.5 * divergence).all())
        assert torch.allclose(bound, log_p, atol=0.05)


def test_the_gradient_is_that_of_the_integral() -> None:
    model, x = tiny(1)
    parameters = list(model.parameters())
    exact = torch.autograd.grad(integrals(model, x)[1].sum(), parameters)
    generator = torch.Generator().manual_seed(0)
    blocks = [
        torch.autograd.grad(model.elbo(x, 200, generator).sum(), parameters) for _ in range(60)
    ]
    for truth, *estimates in zip(exact, *blocks, strict=True):
        drawn = torch.stack(estimates)
        error = drawn.std(0) / math.sqrt(len(blocks))
        assert bool(((drawn.mean(0) - truth).abs() <= 5 * error + 1e-12).all())


def test_generated_pixels_have_the_probabilities_of_the_model() -> None:
    model, _ = tiny(1)
    n = 20_000
    with torch.no_grad():
        pixels = model.generate(n, torch.Generator().manual_seed(0))
        pattern = torch.bernoulli(pixels, generator=torch.Generator().manual_seed(1))
        # p(x) of all 2⁵ patterns.
        patterns = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * N_PIXELS)
        p = integrated_log_prob(model, patterns).exp()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-6)
    codes = (pattern @ 2.0 ** torch.arange(N_PIXELS - 1, -1, -1, dtype=torch.float64)).long()
    observed = codes.bincount(minlength=2**N_PIXELS).double()
    expected = n * p / p.sum()
    rare = expected < 5
    table = [torch.cat([c[~rare], c[rare].sum()[None]]) for c in (observed, expected)]
    if not bool(rare.any()):
        table = [observed, expected]
    assert stats.chisquare(*(part.numpy() for part in table)).pvalue > 1e-4


def test_the_quick_version(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "gaussian_latent.py"), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    rows = re.findall(r"^(2|8) +none +(-[\d.]+) +(-[\d.]+) +(\S+)", run.stdout, re.M)
    assert [row[0] for row in rows] == ["2", "8"]
    for _, elbo, bound, _ in rows:
        # Better than guessing every pixel with probability ½; bounds in order.
        assert -64 * math.log(2) < float(elbo) < float(bound)
    assert float(rows[0][2]) < float(rows[0][3]) + 0.1
    assert (tmp_path / "gaussian_latent.png").stat().st_size > 10_000
