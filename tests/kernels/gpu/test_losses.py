"""Losses and slopes on a GPU are those of the objectives in float64."""

from __future__ import annotations

import pytest
import torch

from extremax.nn.device_step import kernel_form
from extremax.nn.functional import correct_shared_draws, losses_and_slopes
from extremax.objectives import NCE, NegativeSampling, OneVsEach, Pairs, SampledSoftmax

pytest.importorskip("triton")
kernels = pytest.importorskip("extremax.kernels.gpu.losses")

pytestmark = pytest.mark.extras

OBJECTIVES = [
    SampledSoftmax(),
    SampledSoftmax(regularization=0.03),
    NegativeSampling(regularization=0.02),
    NCE(),
    NCE(regularization=0.1),
]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("m", [1, 5, 16])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_losses(objective, m: int, shared: bool, scale: float, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(m)
    n, n_classes = 9, 6
    q = torch.rand(n_classes, generator=generator).double()
    q /= q.sum()
    target = torch.randint(n_classes, (n,), generator=generator)
    drawn = torch.randint(n_classes, (m,) if shared else (n, m), generator=generator)
    scores = scale * torch.randn((n, 1 + m), generator=generator).double()
    if shared:
        classes = torch.cat([target, drawn])
        log_q = q[classes].log()
        every = torch.cat([log_q[:n, None], log_q[n:].expand(n, m)], 1)
    else:
        classes = torch.cat([target[:, None], drawn], 1)
        every = log_q = q[classes].log()
    pairs = Pairs(scores, every, drawn == target[:, None], torch.empty((n, 0)))
    weights = None
    if shared and objective.draws_others:
        pairs, weights = correct_shared_draws(pairs)
    expected, expected_slopes = losses_and_slopes(objective, pairs, weights)
    on_device = scores.float().to(device)
    losses, slopes = kernels.pair_losses(
        kernel_form(objective, m), (on_device[:, :1], on_device[:, 1:]), classes.int().to(device),
        log_q.float().to(device),
    )  # fmt: skip
    torch.testing.assert_close(losses.cpu(), expected.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(slopes.cpu(), expected_slopes.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES[:3], ids=str)
def test_examples_that_are_left_out(objective, device: torch.device) -> None:
    """Whatever their scores are, such as those of hidden states that are NaN."""
    classes = torch.tensor([[1, 2, 3], [-1, -1, -1], [-2, -2, -2]], device=device)
    scores = torch.tensor([[0.1, 0.2, 0.3], 3 * [torch.nan], [0.1, 0.2, 0.3]], device=device)
    log_q = torch.full((3, 3), -1.4, device=device)
    form = kernel_form(objective, 2)
    losses, slopes = kernels.pair_losses(form, (scores[:, :1], scores[:, 1:]), classes, log_q)
    assert bool(losses[0].isfinite())
    assert float(losses[1]) == 0.0
    assert bool(losses[2].isnan())
    assert bool((slopes[0] != 0).all())
    assert bool((slopes[1:] == 0).all())


def test_other_objectives_have_no_form() -> None:
    assert kernel_form(OneVsEach(), 3) is None
    assert kernel_form(SampledSoftmax(absolute=True), 3) is None
    assert kernel_form(SampledSoftmax(), kernels.MOST_DRAWS + 1) is None
