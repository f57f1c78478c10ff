"""Random numbers and draws on a GPU: their distribution, and what they are a function of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

pytest.importorskip("triton")
kernels = pytest.importorskip("extremax.kernels.gpu.draws")

pytestmark = pytest.mark.extras


def clock(step: int, device: torch.device, seed: int = 7):
    return kernels.Clock(seed, torch.tensor(step, device=device))


def table(q: torch.Tensor, device: torch.device):
    log_q = q.double().log().float()
    return kernels.Table(log_q.to(device), log_q.double().exp().cumsum(0).to(device))


def skewed(n_classes: int) -> torch.Tensor:
    q = 1.0 / (1.0 + torch.arange(n_classes).double()) ** 1.5
    return (q / q.sum())[torch.randperm(n_classes, generator=torch.Generator().manual_seed(0))]


def test_numbers_are_uniform_and_new_in_every_call_and_step(device: torch.device) -> None:
    first = kernels.uniform((50, 40), clock(1, device), 1)
    assert first.dtype == torch.float64
    assert float(first.min()) >= 0.0
    assert float(first.max()) < 1.0
    others = [
        kernels.uniform((50, 40), clock(*of, device), call) for of, call in (((1,), 2), ((2,), 1))
    ]
    others.append(kernels.uniform((50, 40), clock(1 + 2**32, device), 1))
    others.append(kernels.uniform((50, 40), clock(1, device, seed=8), 1))
    for numbers in (first, *others):
        assert kstest(numbers.cpu().numpy().ravel(), "uniform").pvalue > 1e-4
    for numbers in others:
        correlation = np.corrcoef(first.cpu().numpy().ravel(), numbers.cpu().numpy().ravel())[0, 1]
        assert abs(correlation) < 4.0 / math.sqrt(2000)
    assert torch.equal(first, kernels.uniform((50, 40), clock(1, device), 1))
    assert len(first.unique()) == 2000


@pytest.mark.parametrize("n_classes", [2, 3, 16, 37])
@pytest.mark.parametrize("others", [False, True])
def test_draws_follow_q(n_classes: int, others: bool, device: torch.device) -> None:
    q = skewed(n_classes)
    for y in {0, n_classes - 1, int(q.argmax())}:
        target = torch.full((300,), y, device=device)
        classes, log_q = kernels.draw_classes(
            table(q, device), clock(3, device), target, 9, shared=False, others=others,
            ignore_index=-100,
        )  # fmt: skip
        assert classes.dtype == torch.int32
        assert classes.shape == log_q.shape == (300, 10)
        assert bool((classes[:, 0] == y).all())
        drawn, found = classes[:, 1:].long().cpu(), log_q.cpu().double()
        expected = q.clone()
        if others:
            assert not bool((drawn == y).any())
            expected[y] = 0.0
            expected /= expected.sum()
        torch.testing.assert_close(found[:, 1:], expected[drawn].log(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[:, 0], q[y].log().expand(300), rtol=1e-5, atol=1e-5)
        counts = torch.bincount(drawn.reshape(-1), minlength=n_classes)[expected > 0]
        wanted = expected[expected > 0] * 2700
        if len(counts) > 1:
            assert chisquare(counts.numpy(), wanted.numpy()).pvalue > 1e-4


def test_shared_draws_follow_q(device: torch.device) -> None:
    q = skewed(20)
    target = torch.tensor([3, 0, 19], device=device)
    drawn = []
    for step in range(40):
        classes, log_q = kernels.draw_classes(
            table(q, device), clock(step, device), target, 50, shared=True, others=False,
            ignore_index=-100,
        )  # fmt: skip
        assert classes.shape == (53,)
        assert classes[:3].tolist() == [3, 0, 19]
        wanted = q[classes.long().cpu()].log()
        torch.testing.assert_close(log_q.cpu().double(), wanted, rtol=1e-5, atol=1e-5)
        drawn.append(classes[3:].cpu())
    counts = torch.bincount(torch.cat(drawn), minlength=20)
    assert chisquare(counts.numpy(), q.numpy() * 2000).pvalue > 1e-4


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 5])
def test_examples_to_leave_out_are_marked(
    shared: bool, ignore_index: int, device: torch.device
) -> None:
    target = torch.tensor([1, ignore_index, 7, 8, -3, 2**40], device=device)
    classes, log_q = kernels.draw_classes(
        table(skewed(8), device), clock(1, device), target, 4, shared=shared, others=not shared,
        ignore_index=ignore_index,
    )  # fmt: skip
    assert bool(log_q.isfinite().all())
    marked = [1, -1, 7, -2, -2, -2]
    if shared:
        assert classes[:6].tolist() == marked
        assert bool((classes[6:] >= 0).all())
        return
    assert classes[:, 0].tolist() == marked
    for row, mark in zip(classes[:, 1:].tolist(), marked, strict=True):
        assert all(c >= 0 for c in row) if mark >= 0 else row == 4 * [mark]
