"""P(argmax(ξ + ε)) against sampling, closed forms and a plain integral."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from extremax.objectives import (
    AugmentReduceLogistic,
    AugmentReduceProbit,
    Objective,
    random_utility,
)

FORMS = {"normal": AugmentReduceProbit(), "logistic": AugmentReduceLogistic()}
every_form = pytest.mark.parametrize("form", FORMS)


def utilities(form: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if form == "normal":
        return rng.standard_normal(shape, dtype=np.float32)
    return rng.logistic(size=shape).astype(np.float32)


@every_form
@pytest.mark.parametrize("n_classes", [1, 2, 5, 200])
@pytest.mark.parametrize("size", [0.0, 1.0, 4.0])
def test_probabilities_match_sampled_winners(form: str, n_classes: int, size: float) -> None:
    rng = np.random.default_rng(n_classes)
    scores = (size * rng.standard_normal(n_classes)).astype(np.float32)
    n = 40_000
    wins = np.zeros(n_classes)
    for _ in range(4):
        winners = (scores + utilities(form, rng, (n // 4, n_classes))).argmax(1)
        wins += np.bincount(winners, minlength=n_classes)
    expected = (
        n * FORMS[form].log_normalize(torch.from_numpy(scores)[None].clone())[0].exp().numpy()
    )
    # A chi-square test over classes that win often enough, with all others pooled.
    often = expected >= 10.0
    groups = [(wins[often], expected[often]), (wins[~often].sum(), expected[~often].sum())]
    observed = np.append(*[group[0] for group in groups])
    predicted = np.append(*[group[1] for group in groups])
    kept = predicted >= 5.0
    assert observed[~kept].sum() <= stats.poisson.ppf(1 - 1e-5, max(predicted[~kept].sum(), 1e-9))
    statistic = ((observed - predicted)[kept] ** 2 / predicted[kept]).sum()
    assert stats.chi2.sf(statistic, max(kept.sum() - 1, 1)) > 1e-4


GAPS = torch.tensor([0.0, 0.01, 0.5, 2.0, 5.0, 9.0, 15.0, 20.0, 23.9], dtype=torch.float64)


def test_two_normal_utilities_have_a_closed_form() -> None:
    scores = torch.stack([torch.zeros_like(GAPS), -GAPS], 1)
    log_p = AugmentReduceProbit().log_normalize(scores)
    expected = torch.special.log_ndtr(-GAPS / math.sqrt(2.0))
    torch.testing.assert_close(log_p[:, 1], expected, rtol=1e-4, atol=1e-4)


def test_two_logistic_utilities_have_a_closed_form() -> None:
    gaps = torch.cat([GAPS[1:], torch.tensor([30.0, 39.0], dtype=torch.float64)])
    scores = torch.stack([torch.zeros_like(gaps), -gaps], 1)
    log_p = AugmentReduceLogistic().log_normalize(scores)
    # The difference of two logistic variables: ∫ σ(t) σ'(t + g) dt.
    shrunk = torch.exp(-gaps)
    expected = torch.log(shrunk * (gaps + torch.expm1(-gaps))) - 2.0 * torch.log1p(-shrunk)
    torch.testing.assert_close(log_p[:, 1], expected, rtol=1e-4, atol=2e-4)


@every_form
@pytest.mark.parametrize(("n_classes", "size"), [(3, 5.0), (30, 1.0), (3000, 2.0), (3000, 0.01)])
def test_probabilities_match_a_plain_integral(form: str, n_classes: int, size: float) -> None:
    kind = FORMS[form]
    generator = torch.Generator().manual_seed(1)
    scores = size * torch.randn((2, n_classes), generator=generator, dtype=torch.float64)
    expected = torch.full_like(scores, -torch.inf)
    for t in np.arange(-45.0, 45.0, 0.1):
        gaps = scores.amax(1, keepdim=True) + t - scores
        log_cdf = kind.log_cdf(gaps)
        whole = log_cdf.sum(1, keepdim=True)
        expected = torch.logaddexp(expected, kind.log_density(gaps) - log_cdf + whole)
    expected -= expected.logsumexp(1, keepdim=True)
    # Scores are counted in cells of 0.02, with linear interpolation within a cell.
    torch.testing.assert_close(kind.log_normalize(scores.clone()), expected, rtol=1e-5, atol=2e-3)
    found = kind.log_normalize(scores.float()).double()
    assert float((found.exp() - expected.exp()).abs().sum(1).max()) < 1e-4


@every_form
def test_lower_scores_are_less_and_less_probable(form: str) -> None:
    scores = -torch.tensor([[0.0, 10.0, 23.0, 25.0, 39.0, 41.0, 60.0, 200.0, 1e3, 1e4]])
    log_p = FORMS[form].log_normalize(scores.clone())
    assert log_p.isfinite().all()
    assert (log_p.diff(dim=1) < 0.0).all()
    torch.testing.assert_close(log_p[0, 0].exp(), torch.tensor(1.0), rtol=1e-3, atol=0)
    # One very low score among many equal ones.
    many = torch.zeros(1, 500)
    many[0, 7] = -1e4
    log_p = FORMS[form].log_normalize(many)
    assert log_p.isfinite().all()
    assert log_p[0, 7] < -1e3


@every_form
def test_results_do_not_depend_on_the_block_size(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = torch.randn((7, 50), generator=torch.Generator().manual_seed(0))
    whole = FORMS[form].log_normalize(scores.clone())
    for block_size in (1, 13, 150):
        monkeypatch.setattr(random_utility, "BLOCK_SIZE", block_size)
        torch.testing.assert_close(FORMS[form].log_normalize(scores.clone()), whole)


@every_form
def test_densities_match_scipy_and_derivatives_match_autograd(form: str) -> None:
    kind: Objective = FORMS[form]
    distribution = stats.norm if form == "normal" else stats.logistic
    t = torch.linspace(-30.0, 30.0, 241, dtype=torch.float64, requires_grad=True)
    np.testing.assert_allclose(
        kind.log_density(t).detach(), distribution.logpdf(t.detach()), rtol=1e-9
    )
    np.testing.assert_allclose(
        kind.log_cdf(t).detach(), distribution.logcdf(t.detach()), rtol=1e-7, atol=1e-14
    )

    def twice(function: object) -> tuple[torch.Tensor, torch.Tensor]:
        (slope,) = torch.autograd.grad(function(t).sum(), t, create_graph=True)  # type: ignore
        return slope, -torch.autograd.grad(slope.sum(), t)[0]

    slope, curvature = twice(kind.log_density)
    torch.testing.assert_close(kind.density_slope(t), slope)
    torch.testing.assert_close(kind.curvatures(t, t, kind.cdf_slope(t))[0], curvature)
    slope, curvature = twice(kind.log_cdf)
    torch.testing.assert_close(kind.cdf_slope(t), slope, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(kind.curvatures(t, t, slope)[1], curvature, rtol=1e-4, atol=1e-9)
    # float32, far in the tails.
    far = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    slope = kind.cdf_slope(far)
    limit = torch.tensor([1e4, 100.01, 0.0, 0.0]) if form == "normal" else (far < 0).float()
    torch.testing.assert_close(slope, limit, rtol=1e-4, atol=1e-6)
    curvature = kind.curvatures(far, far, slope)[1]
    assert ((curvature >= 0.0) & (curvature <= 1.0)).all()
