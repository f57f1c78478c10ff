"""Gumbels against scipy, draws against the softmax by chi-square, posteriors against rejection."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.discrete import (
    gumbel,
    gumbel_max,
    gumbel_posterior,
    gumbel_posterior_noise,
    gumbel_top_k,
    truncated_gumbel,
)

# A correct sampler falls below it for one seed in ten thousand.
P_VALUE = 1e-4
LOGITS = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prior(n: int, seed: int) -> torch.Tensor:
    """log p + G, with numpy's Gumbels."""
    noise = np.random.default_rng(seed).gumbel(size=(n, len(LOGITS)))
    return LOGITS.log_softmax(0) + torch.from_numpy(noise)


def test_gumbels_match_scipy() -> None:
    drawn = gumbel((20_000,), seeded(), torch.float64)
    assert stats.kstest(drawn.numpy(), stats.gumbel_r.cdf).pvalue > P_VALUE


def test_float32_draws_differ_in_the_upper_tail() -> None:
    # With uniforms of 24 bits, about a quarter of these would have duplicates.
    drawn = gumbel((10_000_000,), seeded())
    assert drawn.dtype == torch.float32
    assert bool(drawn.isfinite().all())
    assert len(drawn.topk(1000).values.unique()) > 990


def test_the_argmax_is_drawn_from_the_softmax() -> None:
    n = 40_000
    drawn = gumbel_max(LOGITS.expand(n, -1), seeded())
    counts = torch.bincount(drawn, minlength=4).numpy()
    assert stats.chisquare(counts, LOGITS.softmax(0).numpy() * n).pvalue > P_VALUE


def test_an_impossible_class_is_never_drawn() -> None:
    logits = torch.tensor([0.0, -math.inf, 0.0]).expand(3000, -1)
    assert not bool((gumbel_max(logits, seeded()) == 1).any())
    assert not bool((gumbel_top_k(logits, 2, seeded()) == 1).any())


def test_top_k_draws_without_replacement_one_after_the_other() -> None:
    n = 60_000
    first, second = gumbel_top_k(LOGITS.expand(n, -1), 2, seeded()).T
    p = LOGITS.softmax(0).tolist()
    counts, expected = [], []
    for i, j in itertools.permutations(range(4), 2):
        counts.append(int(((first == i) & (second == j)).sum()))
        expected.append(n * p[i] * p[j] / (1.0 - p[i]))
    assert sum(counts) == n
    assert stats.chisquare(counts, expected).pvalue > P_VALUE


def test_truncated_gumbels_have_the_truncated_distribution() -> None:
    location, upper = 0.7, 0.2
    locations = torch.full((20_000,), location, dtype=torch.float64)
    drawn = truncated_gumbel(locations, torch.tensor(upper, dtype=torch.float64), seeded())
    assert float(drawn.max()) <= upper

    def cdf(x: np.ndarray) -> np.ndarray:
        clipped = np.minimum(x, upper)
        return stats.gumbel_r.cdf(clipped, location) / stats.gumbel_r.cdf(upper, location)

    assert stats.kstest(drawn.numpy(), cdf).pvalue > P_VALUE


def test_the_posterior_matches_rejection_sampling() -> None:
    z = prior(60_000, seed=1)
    for chosen in range(4):
        kept = z[z.argmax(1) == chosen]
        classes = torch.full((len(kept),), chosen)
        drawn = gumbel_posterior(LOGITS.expand(len(kept), -1), classes, seeded(chosen))
        assert bool((drawn.argmax(1) == chosen).all())
        for i in range(4):
            assert stats.ks_2samp(drawn[:, i].numpy(), kept[:, i].numpy()).pvalue > P_VALUE
        # The joint distribution matches, too: the gap to the largest of the other classes.
        gaps = [
            (rows[:, chosen] - rows.clone().index_fill_(1, classes[:1], -1e9).amax(1)).numpy()
            for rows in (drawn, kept)
        ]
        assert stats.ks_2samp(*gaps).pvalue > P_VALUE


def test_the_posterior_follows_its_formula() -> None:
    v = torch.from_numpy(np.random.default_rng(2).random((50, 4)))
    chosen = torch.arange(50) % 4
    found = gumbel_posterior(LOGITS.expand(50, -1), chosen, noise=-torch.log(-torch.log(v)))
    p = LOGITS.softmax(0)
    for row, b in enumerate(chosen.tolist()):
        for i in range(4):
            others = -torch.log(-torch.log(v[row, i]) / p[i] - torch.log(v[row, b]))
            expected = others if i != b else -torch.log(-torch.log(v[row, b]))
            assert float(found[row, i]) == pytest.approx(float(expected), rel=1e-12)


def test_posterior_noise_reproduces_z_and_is_independent_of_the_class() -> None:
    z = prior(20_000, seed=3)
    chosen = z.argmax(1)
    logits = LOGITS.expand(len(z), -1)
    noise = gumbel_posterior_noise(logits, z, chosen)
    torch.testing.assert_close(gumbel_posterior(logits, chosen, noise=noise), z)
    for b in range(4):
        for i in range(4):
            part = noise[chosen == b, i].numpy()
            assert stats.kstest(part, stats.gumbel_r.cdf).pvalue > P_VALUE


def test_an_impossible_class_never_gives_nan() -> None:
    logits = torch.tensor([[0.5, -math.inf, 2.0, 0.0]], dtype=torch.float64).repeat(200, 1)
    logits.requires_grad_()
    noise = gumbel(logits.shape, seeded(14), torch.float64)
    z = logits.detach().log_softmax(1) + noise
    chosen = z.argmax(1)
    inverse = gumbel_posterior_noise(logits, z, chosen)
    assert bool(inverse.isfinite().all())
    posterior = gumbel_posterior(logits, chosen, noise=inverse.detach())
    torch.testing.assert_close(posterior.detach(), z)
    possible = torch.tensor([0, 2, 3])
    (gradient,) = torch.autograd.grad(posterior[:, possible].sum(), logits)
    # The same as without the class.
    remaining = logits.detach()[:, possible].requires_grad_()
    index = torch.searchsorted(possible, chosen)
    without = gumbel_posterior(remaining, index, noise=inverse.detach()[:, possible])
    (expected,) = torch.autograd.grad(without.sum(), remaining)
    torch.testing.assert_close(gradient[:, possible], expected)
    assert bool((gradient[:, 1] == 0).all())
    location = torch.tensor([-math.inf, 0.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(
        truncated_gumbel(location, torch.tensor(1.0), seeded(15))[1], location
    )
    assert bool(gradient.isfinite().all())


def test_gradients_of_the_posterior_match_finite_differences() -> None:
    noise = gumbel((6, 4), seeded(5), torch.float64)
    logits = LOGITS.expand(6, -1).clone().requires_grad_()
    chosen = torch.arange(6) % 4
    assert torch.autograd.gradcheck(lambda x: gumbel_posterior(x, chosen, noise=noise), logits)


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0, 1e4])
def test_a_million_classes_in_float32_never_give_nan(scale: float) -> None:
    logits = (scale * torch.randn(2, 1_000_000, generator=seeded(6))).requires_grad_()
    drawn = gumbel_max(logits, seeded(7))
    assert bool((gumbel_top_k(logits, 5, seeded(8)).sort(1).values.diff(dim=1) > 0).all())
    z = gumbel_posterior(logits, drawn, seeded(9))
    assert bool(z.isfinite().all())
    assert torch.equal(z.argmax(1), drawn)
    noise = gumbel_posterior_noise(logits, z, drawn).detach()
    posterior = gumbel_posterior(logits, drawn, noise=noise)
    assert torch.equal(posterior.argmax(1), drawn)
    (gradient,) = torch.autograd.grad(posterior.sum(), logits)
    assert bool(gradient.isfinite().all())


def test_a_seed_fixes_the_draws() -> None:
    logits = LOGITS.expand(100, -1)
    assert torch.equal(gumbel_max(logits, seeded(1)), gumbel_max(logits, seeded(1)))
    assert not torch.equal(gumbel_max(logits, seeded(1)), gumbel_max(logits, seeded(2)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gumbel_max(torch.tensor([0.0, math.nan])), ValueError, "logits must"),
        (lambda: gumbel_max(torch.tensor([0.0, math.inf])), ValueError, "logits must"),
        (lambda: gumbel_max(torch.full((3,), -math.inf)), ValueError, "not all -inf"),
        (lambda: gumbel_max(torch.tensor([1, 2])), TypeError, "logits must be floating"),
        (lambda: gumbel_max(torch.empty(2, 0)), ValueError, r"\(2, 0\)"),
        (lambda: gumbel_top_k(LOGITS, 5), ValueError, "k must be at most .* 4, got 5"),
        (lambda: gumbel_top_k(LOGITS, 0), ValueError, "k must be an integer >= 1, got 0"),
        (lambda: gumbel_posterior(LOGITS, torch.tensor(4)), ValueError, "chosen has class 4"),
        (lambda: gumbel_posterior(LOGITS, torch.tensor([1])), ValueError, "chosen has shape"),
        (lambda: gumbel_posterior(LOGITS, torch.tensor(1.0)), TypeError, "chosen must be integers"),
        (
            lambda: gumbel_posterior(LOGITS, torch.tensor(1), noise=torch.zeros(3)),
            ValueError,
            "noise has shape",
        ),
        (
            lambda: gumbel_posterior(torch.tensor([0.0, -math.inf]), torch.tensor(1)),
            ValueError,
            "chosen has class 1 where its logit is -inf",
        ),
        (
            lambda: gumbel_posterior_noise(LOGITS, LOGITS, torch.tensor(1)),
            ValueError,
            "chosen must be the argmax of z",
        ),
        (
            lambda: gumbel_posterior_noise(LOGITS, LOGITS / 0, torch.tensor(1)),
            ValueError,
            "z must have a finite maximum",
        ),
        (lambda: truncated_gumbel(LOGITS, 1.0), TypeError, "upper must be a torch tensor"),
        (lambda: truncated_gumbel(LOGITS, torch.tensor(1)), TypeError, "upper must be floating"),
        (
            lambda: truncated_gumbel(torch.tensor(math.nan), torch.tensor(0.0)),
            ValueError,
            "location must not be NaN",
        ),
    ],
)
def test_errors_name_the_argument(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()
