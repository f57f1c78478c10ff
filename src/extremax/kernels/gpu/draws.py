"""Random numbers and draws of classes in Triton.

Numbers are counter-based (Philox: Salmon et al. 2011): a function of a seed, the number of a step
and a position. The number of the step is read on the device, so that a CUDA graph, which repeats
its launches with the same arguments, gets new numbers whenever it is replayed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from extremax.kernels.gpu.sizes import blocks

_BLOCK = 512

#: In place of the class of an example that is ignored, and of one whose class does not exist.
IGNORED, UNKNOWN = -1, -2


class Clock(NamedTuple):
    """Where in a sequence of random numbers a step is: a seed below 2³¹, and the number of the
    step, an int64 tensor on the device."""

    seed: int
    step: torch.Tensor


class Table(NamedTuple):
    """A distribution over classes: log q in float32, and the sums of q in float64, both (C,)."""

    log_q: torch.Tensor
    cumulative: torch.Tensor


def uniform(shape: tuple[int, ...], clock: Clock, call: int) -> torch.Tensor:
    """Random numbers in [0, 1) in float64.

    call:  a number > 0 that differs between the calls of a step.
    """
    out = torch.empty(shape, dtype=torch.float64, device=clock.step.device)
    n = out.numel()
    if n:
        _uniform[(blocks(n, _BLOCK),)](out, clock.step, clock.seed, call, n, BLOCK=_BLOCK)
    return out


def draw_classes(
    table: Table,
    clock: Clock,
    target: torch.Tensor,
    m: int,
    *,
    shared: bool,
    others: bool,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The target (n,) of each example and m drawn classes, in int32, and their log q.

    Both are (n, 1 + m), or (n + m,) if the examples share m draws. Where the target is
    ``ignore_index`` or no class, it and the draws for it are `IGNORED` or `UNKNOWN`.

    others:  draw from q over the classes other than the target; log q is that of this distribution
             for the draws. Shared draws cannot.
    """
    n = len(target)
    shape = (n + m,) if shared else (n, 1 + m)
    classes = torch.empty(shape, dtype=torch.int32, device=target.device)
    log_q = torch.empty(shape, device=target.device)
    size, n_classes = classes.numel(), len(table.log_q)
    _draw_classes[(blocks(size, _BLOCK),)](
        table.log_q, table.cumulative, target, classes, log_q, clock.step, clock.seed, ignore_index,
        n, m, size, n_classes, n_classes.bit_length(), SHARED=shared, OTHERS=others, BLOCK=_BLOCK,
    )  # fmt: skip
    return classes, log_q


@triton.jit
def _random(seed, step, call, position):
    """Numbers in [0, 1) with 53 random bits each."""
    zeros = (position * 0).to(tl.uint32)
    low = zeros + (step & 0xFFFFFFFF).to(tl.uint32)
    high = zeros + (step >> 32).to(tl.uint32)
    a, b, _, _ = tl.philox(seed, position.to(tl.uint32), zeros + call, low, high)
    # 27 bits and 26 bits; the factors are powers of two.
    return ((a >> 5).to(tl.float64) * 67108864.0 + (b >> 6).to(tl.float64)) * 1.1102230246251565e-16


@triton.jit(do_not_specialize=["seed", "call", "n"])
def _uniform(out, step, seed, call, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, _random(seed, tl.load(step), call.to(tl.uint32), at), mask=at < n)


@triton.jit(do_not_specialize=["seed", "ignore_index", "n", "m", "size", "n_classes", "n_halvings"])
def _draw_classes(
    log_q, cumulative, target, classes, out, step, seed, ignore_index, n, m, size, n_classes,
    n_halvings, SHARED: tl.constexpr, OTHERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    if SHARED:
        is_true = at < n
        has_target = is_true
        t = tl.load(target + at, mask=is_true, other=0).to(tl.int64)
    else:
        is_true = at % (m + 1) == 0
        has_target = inside
        t = tl.load(target + at // (m + 1), mask=inside, other=0).to(tl.int64)
    is_class = (t >= 0) & (t < n_classes)
    label = tl.where(is_class, t, 0)

    # Invert the sums of q.
    position = _random(seed, tl.load(step), at.to(tl.uint32) * 0, at)
    whole = tl.load(cumulative + n_classes - 1)
    if OTHERS:
        after = tl.load(cumulative + label)
        below = tl.load(cumulative + label - 1, mask=label > 0, other=0.0)
        mass = below + (whole - after)
        position *= mass
        # Positions from the start of the target's interval on continue after its end.
        position = tl.where(position < below, position, after + (position - below))
    else:
        position *= whole
    low = at * 0
    high = low + (n_classes - 1)
    for _ in range(n_halvings):
        middle = (low + high) // 2
        goes_right = (tl.load(cumulative + middle) <= position) & (low < high)
        low = tl.where(goes_right, middle + 1, low)
        high = tl.where(goes_right, high, tl.maximum(middle, low))
    c = tl.where(is_true, label, low)
    q = tl.load(log_q + c)
    if OTHERS:
        q = tl.where(is_true, q, (q - tl.log(mass)).to(tl.float32))
    c = tl.where(has_target & (is_class == 0), -2, c)
    c = tl.where(has_target & (t == ignore_index), -1, c)
    tl.store(classes + at, c.to(tl.int32), mask=inside)
    tl.store(out + at, q, mask=inside)
