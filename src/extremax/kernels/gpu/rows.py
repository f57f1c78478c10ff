"""Steps of optimizers on the rows of a sparse gradient, in Triton.

A gradient is a list of rows with values, in which a row may occur several times; its values then
add up. The list is sorted by row. The program of the first place of a row sums its values and
writes the row, so that every row is written once and a seed gives the same bits. What there are
many values of is summed by several programs, `_SEGMENT` values each, whose sums a second kernel
adds in order (as in `extremax.kernels.gpu.head`).

The number of distinct rows stays on the device: the host never waits for it. So a list may hold
zeros for rows that have no gradient, and a row whose values add up to zeros is left alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from extremax.kernels.gpu.head import Groups
from extremax.kernels.gpu.sizes import blocks, power_of_two, warps

# The most values of a row that one program sums.
_SEGMENT = 32

_STORE, _ADAGRAD, _ADAM = 0, 1, 2


def sum_into(table: torch.Tensor, groups: Groups, values: torch.Tensor) -> None:
    """Write the sum of each row's values (r, K) to its row of a table (C, K)."""
    _step(_STORE, groups, values, table, (table, table, table))


def combined(groups: Groups, values: torch.Tensor) -> torch.Tensor:
    """Values (r, K) for the sorted rows that hold the sum of a row's values at one of its places
    and zeros at the others."""
    sums = torch.zeros_like(values)
    _step(_STORE, groups, values, sums, (sums, sums, sums), at_place=True)
    return sums


def adagrad(
    groups: Groups,
    values: torch.Tensor,
    parameter: torch.Tensor,
    total: torch.Tensor,
    learning_rate: float,
    eps: float,
) -> None:
    """G ← G + g², θ ← θ − lr g/(√G + eps) for the rows with a gradient g.

    values:            (r, K), of the rows that ``groups`` has sorted.
    parameter, total:  θ and G, (C, K).
    """
    _step(
        _ADAGRAD, groups, values, parameter, (total, total, total), rate=learning_rate, eps=eps
    )  # fmt: skip


def adam(
    groups: Groups,
    values: torch.Tensor,
    parameter: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    steps: torch.Tensor,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Adam for the rows with a gradient g, with t steps of a row so far:

        t ← t + 1,  M ← β₁M + (1 − β₁)g,  V ← β₂V + (1 − β₂)g²,
        θ ← θ − lr M/(1 − β₁ᵗ) / (√(V/(1 − β₂ᵗ)) + eps).

    moments:  M and V, (C, K).
    steps:    t, (C,) or (C, 1) in float32.
    """
    # 1 − βᵗ from log β keeps its digits where β is near one.
    log_betas = [math.log(beta) if beta else -math.inf for beta in betas]
    rest = [1.0 - beta for beta in betas]
    _step(
        _ADAM, groups, values, parameter, (*moments, steps), rate=learning_rate, eps=eps,
        rest=rest, log_betas=log_betas,
    )  # fmt: skip


def _step(
    kind: int,
    groups: Groups,
    values: torch.Tensor,
    parameter: torch.Tensor,
    state: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    rate: float = 0.0,
    eps: float = 0.0,
    rest: Any = (1.0, 1.0),
    log_betas: Any = (0.0, 0.0),
    at_place: bool = False,
) -> None:
    n, width = values.shape
    if not n:
        return
    n_blocks = blocks(n, _SEGMENT)
    partial = torch.empty((2 * n_blocks, width), device=values.device)
    block = power_of_two(width)
    given = (
        groups.classes, groups.order, values, partial, parameter, *state, rate, eps, *rest,
        *log_betas, n,
    )  # fmt: skip
    flags: dict[str, Any] = {
        "KIND": kind,
        "AT_PLACE": at_place,
        "SEGMENT": _SEGMENT,
        "WIDTH": width,
        "BLOCK": block,
        "num_warps": warps(block),
    }
    _sum_and_apply[(n,)](*given, **flags)
    _apply_frequent[(n_blocks,)](*given, **flags)


@triton.jit
def _row_at(rows, place, n):
    """The row at a place of the sorted list; −1 outside."""
    return tl.load(rows + place, mask=(place >= 0) & (place < n), other=-1)


@triton.jit
def _apply(
    parameter, first, second, steps, row, g, rate, eps, rest1, rest2, log_beta1, log_beta2,
    KIND: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A step of one row, given its gradient; or store the gradient there."""
    f = tl.arange(0, BLOCK)
    mask = f < WIDTH
    at = row.to(tl.int64) * WIDTH + f
    if KIND == 0:
        tl.store(parameter + at, g.to(parameter.dtype.element_ty), mask=mask)
    elif tl.sum((g != 0.0).to(tl.int32), 0) > 0:
        theta = tl.load(parameter + at, mask=mask, other=0.0).to(tl.float32)
        one = tl.load(first + at, mask=mask, other=0.0).to(tl.float32)
        if KIND == 1:
            one += g * g
            root = tl.sqrt(one) + eps
            theta -= rate * tl.where(mask, g / root, 0.0)
        else:
            two = tl.load(second + at, mask=mask, other=0.0).to(tl.float32)
            one += rest1 * (g - one)
            two += rest2 * (g * g - two)
            t = tl.load(steps + row) + 1.0
            tl.store(steps + row, t)
            count = t.to(tl.float64)
            bias1 = (1.0 - tl.exp(count * log_beta1)).to(tl.float32)
            bias2 = (1.0 - tl.exp(count * log_beta2)).to(tl.float32)
            theta -= (rate / bias1) * one / (tl.sqrt(two / bias2) + eps)
            tl.store(second + at, two.to(parameter.dtype.element_ty), mask=mask)
        tl.store(first + at, one.to(parameter.dtype.element_ty), mask=mask)
        tl.store(parameter + at, theta.to(parameter.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n"])
def _sum_and_apply(
    rows, order, values, partial, parameter, first, second, steps, rate, eps, rest1, rest2,
    log_beta1, log_beta2, n, KIND: tl.constexpr, AT_PLACE: tl.constexpr, SEGMENT: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per place. A segment is what of a row lies in one block of SEGMENT places; the
    program of its first place works, and the others end at once.

    The sum of a segment that is all of its row is applied. Others are stored: in partial[2b] if the
    row began before block b, else in partial[2b + 1].
    """
    place = tl.program_id(0)
    row = tl.load(rows + place)
    begins = _row_at(rows, place - 1, n) != row
    block = place // SEGMENT
    if begins | (place == block * SEGMENT):
        f = tl.arange(0, BLOCK)
        mask = f < WIDTH
        end = (block + 1) * SEGMENT
        g, at = tl.zeros([BLOCK], tl.float32), place
        belongs = True
        while belongs:
            number = tl.load(order + at).to(tl.int64)
            g += tl.load(values + number * WIDTH + f, mask=mask, other=0.0).to(tl.float32)
            at += 1
            belongs = (at < end) & (_row_at(rows, at, n) == row)
        if begins & (_row_at(rows, at, n) != row):
            where = row
            if AT_PLACE:
                where = place
            _apply(
                parameter, first, second, steps, where, g, rate, eps, rest1, rest2, log_beta1,
                log_beta2, KIND, WIDTH, BLOCK,
            )  # fmt: skip
        else:
            slot = partial + (2 * block + begins.to(tl.int32)).to(tl.int64) * WIDTH
            tl.store(slot + f, g, mask=mask)


@triton.jit(do_not_specialize=["n"])
def _apply_frequent(
    rows, order, values, partial, parameter, first, second, steps, rate, eps, rest1, rest2,
    log_beta1, log_beta2, n, KIND: tl.constexpr, AT_PLACE: tl.constexpr, SEGMENT: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per block of places: if a row begins in it and goes on after it, apply the sum of
    its segments."""
    block = tl.program_id(0)
    begin, end = block * SEGMENT, (block + 1) * SEGMENT
    row = _row_at(rows, end, n)
    in_block = (row >= 0) & (_row_at(rows, end - 1, n) == row)
    began = (_row_at(rows, begin, n) == row) & (_row_at(rows, begin - 1, n) == row)
    if in_block & (began == 0):
        f = tl.arange(0, BLOCK)
        mask = f < WIDTH
        slot = partial + (2 * block + 1).to(tl.int64) * WIDTH
        g = tl.load(slot + f, mask=mask, other=0.0)
        belongs = True
        while belongs:
            block += 1
            slot = partial + (2 * block).to(tl.int64) * WIDTH
            g += tl.load(slot + f, mask=mask, other=0.0)
            belongs = _row_at(rows, (block + 1) * SEGMENT, n) == row
        where = row
        if AT_PLACE:
            where = end
        _apply(
            parameter, first, second, steps, where, g, rate, eps, rest1, rest2, log_beta1,
            log_beta2, KIND, WIDTH, BLOCK,
        )  # fmt: skip
