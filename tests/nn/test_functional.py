"""The four losses: values against plain formulas, gradients by finite differences in float64."""

from __future__ import annotations

import ast
import math
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from extremax.nn import (
    nce_loss,
    negative_sampling_loss,
    one_vs_each_loss,
    sampled_softmax_loss,
)

M = 6
Loss = Callable[..., Tensor]


def plain_sampled_softmax(scores: Tensor, log_q: Tensor, hits: Tensor) -> Tensor:
    """Row by row, as written on paper."""
    losses = []
    for s, q, hit in zip(scores, log_q.exp(), hits, strict=True):
        kept = [j for j in range(1, M + 1) if not hit[j - 1]]
        total = s[0].exp()
        for j in kept:
            total = total + s[j].exp() / (len(kept) * q[j] / (1 - q[0]))
        # The mean over draws from all of q, of which q₀^M of the rows are lost.
        losses.append((total.log() - s[0]) / (1 - q[0] ** M))
    return torch.stack(losses)


def plain_one_vs_each(scores: Tensor, log_q: Tensor, hits: Tensor) -> Tensor:
    won = logsigmoid(scores[:, :1] - scores[:, 1:])
    return -(won / (M * log_q[:, 1:].exp()) * ~hits).sum(1)


def plain_nce(scores: Tensor, log_q: Tensor) -> Tensor:
    odds = scores - log_q - math.log(M)
    return -logsigmoid(odds[:, 0]) - logsigmoid(-odds[:, 1:]).sum(1)


def plain_negative_sampling(scores: Tensor, log_q: Tensor) -> Tensor:
    squares = (scores + log_q).square()
    plain = -logsigmoid(scores[:, 0]) - logsigmoid(-scores[:, 1:]).mean(1)
    return plain + 0.1 * (squares[:, 0] + squares[:, 1:].mean(1))


LOSSES: dict[str, tuple[Loss, Loss, bool]] = {
    "sampled_softmax": (sampled_softmax_loss, plain_sampled_softmax, True),
    "one_vs_each": (one_vs_each_loss, plain_one_vs_each, True),
    "nce": (nce_loss, plain_nce, False),
    "negative_sampling": (
        lambda s, q, **more: negative_sampling_loss(s, q, regularization=0.1, **more),
        plain_negative_sampling,
        False,
    ),
}


@pytest.fixture
def pairs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn((5, 1 + M), generator=generator, dtype=torch.float64)
    log_q = torch.randn((5, 1 + M), generator=generator, dtype=torch.float64).log_softmax(1)
    hits = torch.rand((5, M), generator=generator) < 0.2
    assert 0 < int(hits.sum()) < hits.numel()
    return scores.requires_grad_(), log_q, hits


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_finite_differences_and_of_the_formula(name, reduction, pairs):
    loss, plain, takes_hits = LOSSES[name]
    scores, log_q, hits = pairs
    more: dict[str, Any] = {"hits": hits} if takes_hits else {}
    assert torch.autograd.gradcheck(lambda s: loss(s, log_q, reduction=reduction, **more), scores)

    each = plain(scores, log_q, hits) if takes_hits else plain(scores, log_q)
    expected = {"none": each, "sum": each.sum(), "mean": each.mean()}[reduction]
    found = loss(scores, log_q, reduction=reduction, **more)
    torch.testing.assert_close(found, expected)
    weights = torch.linspace(0.5, 2.0, expected.numel(), dtype=torch.float64).view(expected.shape)
    gradients = [torch.autograd.grad((v * weights).sum(), scores)[0] for v in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "loss", [sampled_softmax_loss, nce_loss, negative_sampling_loss, one_vs_each_loss]
)
def test_the_lines_of_a_docstring_give_its_loss(loss, pairs):
    scores, log_q, _ = pairs
    after = loss.__doc__.split("equals::\n\n")[1]
    lines = ast.parse(textwrap.dedent(after.split("\n\n")[0]))
    names = {"torch": torch, "math": math, "logsigmoid": logsigmoid, "scores": scores,
             "log_q": log_q, "m": M, "regularization": 0.1}  # fmt: skip
    *before, last = lines.body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(before, []), "docstring", "exec"), names)
    expected = eval(compile(ast.Expression(last.value), "docstring", "eval"), names)
    more = {"regularization": 0.1} if loss is negative_sampling_loss else {}
    torch.testing.assert_close(loss(scores, log_q, reduction="none", **more), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_any_leading_shape_and_a_log_q_that_broadcasts(name, pairs):
    loss = LOSSES[name][0]
    scores, log_q, _ = pairs
    one_q = log_q[:1]
    flat = loss(scores, one_q.expand(5, -1), reduction="none")
    shaped = loss(scores.view(5, 1, 1 + M), one_q[0], reduction="none")
    torch.testing.assert_close(shaped, flat.view(5, 1))


def test_the_absolute_form_learns_from_a_score_of_zero(pairs):
    scores, log_q, _ = pairs
    zero = torch.zeros_like(scores).requires_grad_()
    sampled_softmax_loss(zero, log_q, absolute=True).backward()
    assert bool((zero.grad != 0).all())
    found = sampled_softmax_loss(-scores.abs(), log_q, absolute=True)
    torch.testing.assert_close(found, sampled_softmax_loss(scores.abs(), log_q))


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_widened_and_huge_scores_stay_finite(name, pairs):
    loss = LOSSES[name][0]
    scores, log_q, _ = pairs
    half = scores.detach().bfloat16().requires_grad_()
    value = loss(half, log_q.float())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(half.detach().float(), log_q.float()))
    huge = (1e4 * scores.detach().sign()).float().requires_grad_()
    loss(huge, log_q.float()).backward()
    assert bool(huge.grad.isfinite().all())


@pytest.mark.parametrize("name", LOSSES)
def test_invalid_arguments_are_named(name, pairs):
    loss, _, takes_hits = LOSSES[name]
    scores, log_q, hits = pairs
    with pytest.raises(ValueError, match="log_q must hold log-probabilities"):
        loss(scores, -log_q)
    with pytest.raises(ValueError, match=r"log_q must broadcast to \(5, 7\), got \(5, 6\)"):
        loss(scores, log_q[:, 1:])
    with pytest.raises(ValueError, match="scores must have shape"):
        loss(scores[:, :1], log_q[:, :1])
    with pytest.raises(TypeError, match="scores must be floating point"):
        loss(scores.long(), log_q)
    with pytest.raises(TypeError, match="scores must be a torch tensor, got list"):
        loss(scores.tolist(), log_q)
    with pytest.raises(TypeError, match="log_q must be a torch tensor, got list"):
        loss(scores, log_q.tolist())
    with pytest.raises(ValueError, match="log_q is on meta but scores is on cpu"):
        loss(scores, log_q.to("meta"))
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none', got 'avg'"):
        loss(scores, log_q, reduction="avg")
    if takes_hits:
        with pytest.raises(TypeError, match="hits must be a torch tensor, got list"):
            loss(scores, log_q, hits.tolist())
        with pytest.raises(ValueError, match="hits is on meta but scores is on cpu"):
            loss(scores, log_q, hits.to("meta"))
        with pytest.raises(TypeError, match="hits must be bool"):
            loss(scores, log_q, hits.long())
        with pytest.raises(ValueError, match="hits must broadcast"):
            loss(scores, log_q, hits[:, 1:])


def test_a_penalty_must_not_be_negative(pairs):
    scores, log_q, _ = pairs
    with pytest.raises(ValueError, match="regularization must be a number from 0 to 1e6, got -1"):
        negative_sampling_loss(scores, log_q, regularization=-1.0)
