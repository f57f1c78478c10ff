"""Losses of a true class and m drawn classes, and their slopes on the scores, in Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from extremax.kernels.gpu.draws import UNKNOWN
from extremax.kernels.gpu.sizes import power_of_two, warps

#: The most drawn classes: a program holds the scores of an example in registers.
MOST_DRAWS = 16384


class Form(NamedTuple):
    """An objective that kernels know.

    softmax:         −log of the softmax of ξ_y and ξ_j − log(m q_j), without the draws that hit y;
                     else softplus(−t_y) + share Σ_j softplus(t_j) with t = ξ + a log q + b.
    adds_log_q:      whether logits are ξ + log q.
    regularization:  λ of the penalty λ(logit_y² + (1/m) Σ_j logit_j²).
    """

    softmax: bool
    a: float
    b: float
    share: float
    adds_log_q: bool
    regularization: float


def pair_losses(
    form: Form,
    scores: tuple[torch.Tensor, torch.Tensor],
    classes: torch.Tensor,
    log_q: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each example (n,), and its slope on each score (n, 1 + m).

    scores:          of the true class (n, 1) and of the drawn ones (n, m), in float32.
    classes, log_q:  (n, 1 + m), or (n + m,) if draws are shared, as `draws.draw_classes` returns
                     them. Shared draws come from all of q: the softmax then takes q over the
                     classes other than y, and weighs the loss by 1/(1 − q_y^m), as
                     `extremax.objectives.base.shared_draw_weights`. Ignored examples have a loss
                     of 0, those of unknown classes NaN; the slopes of both are 0.
    """
    true, drawn = scores
    n, m = drawn.shape
    shared = classes.ndim == 1
    losses = torch.empty(n, device=drawn.device)
    slopes = torch.empty((n, 1 + m), device=drawn.device)
    block = power_of_two(m)
    if n:
        _pair_losses[(n,)](
            true, drawn, classes, log_q, losses, slopes, true.stride(0), drawn.stride(0), n, m,
            form.a, form.b, form.share, form.regularization, SOFTMAX=form.softmax,
            ADDS_LOG_Q=form.adds_log_q, SHARED=shared, UNKNOWN=UNKNOWN, BLOCK=block,
            num_warps=warps(block, 8),
        )  # fmt: skip
    return losses, slopes


@triton.jit
def _softplus(t):
    return tl.maximum(t, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(t)))


@triton.jit
def _sigmoid(t):
    small = tl.exp(-tl.abs(t))
    return tl.where(t >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def _pair_losses(
    true, drawn, classes, log_q, losses, slopes, true_stride, drawn_stride, n, m, a, b, share,
    regularization, SOFTMAX: tl.constexpr, ADDS_LOG_Q: tl.constexpr, SHARED: tl.constexpr,
    UNKNOWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    inside = j < m
    if SHARED:
        own, others = i, n + j
    else:
        own, others = i * (m + 1), i * (m + 1) + 1 + j
    y, y_q = tl.load(classes + own), tl.load(log_q + own)
    q = tl.load(log_q + others, mask=inside, other=0.0)
    y_score = tl.load(true + i * true_stride)
    score = tl.load(drawn + i * drawn_stride + j, mask=inside, other=0.0)
    if SOFTMAX:
        stays = inside & (tl.load(classes + others, mask=inside, other=-1) != y)
        n_others = tl.sum(stays.to(tl.int32))
        correction, weight = q, 1.0
        if SHARED:
            # In float64, where 1 − q keeps its digits.
            log_true = tl.minimum(y_q.to(tl.float64), -1e-12)
            correction = q - tl.log(1.0 - tl.exp(log_true)).to(tl.float32)
            none = 1.0 - tl.exp(log_true * m)
            weight = tl.where(n_others > 0, 1.0 / none, 1.0).to(tl.float32)
        count = tl.maximum(n_others, 1).to(tl.float32)
        logit = tl.where(stays, score - correction - tl.log(count), float("-inf"))
        highest = tl.maximum(y_score, tl.max(logit, 0))
        own_part, parts = tl.exp(y_score - highest), tl.exp(logit - highest)
        total = own_part + tl.sum(parts, 0)
        loss = weight * (tl.log(total) + highest - y_score)
        y_slope = weight * (own_part / total - 1.0)
        slope = weight * parts / total
    else:
        y_t, t = y_score + a * y_q + b, score + a * q + b
        loss = _softplus(-y_t) + share * tl.sum(tl.where(inside, _softplus(t), 0.0), 0)
        y_slope, slope = _sigmoid(y_t) - 1.0, share * _sigmoid(t)
    y_logit, logits = y_score, score
    if ADDS_LOG_Q:
        y_logit, logits = y_score + y_q, score + q
    squares = tl.sum(tl.where(inside, logits * logits, 0.0), 0)
    loss += regularization * (y_logit * y_logit + squares / m)
    y_slope += 2.0 * regularization * y_logit
    slope += 2.0 * regularization * logits / m
    counts = y >= 0
    loss = tl.where(counts, loss, tl.where(y == UNKNOWN, float("nan"), 0.0))
    tl.store(losses + i, loss)
    tl.store(slopes + i * (m + 1), tl.where(counts, y_slope, 0.0))
    tl.store(slopes + i * (m + 1) + 1 + j, tl.where(counts, slope, 0.0), mask=inside)
