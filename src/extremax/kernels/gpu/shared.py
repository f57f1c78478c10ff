"""Gradients of examples that share their draws, in Triton: the parts of their true classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from extremax.kernels.gpu.sizes import power_of_two, warps


class TrueParts(NamedTuple):
    """What the true classes of n examples add to gradients, and room for that of m draws.

    rows:    (n + m,), the classes of ``weight`` and ``bias``; any class for examples that are left
             out, whose gradients are zeros.
    weight:  (n + m, K), of which the first n are filled: gradient · slope · x.
    bias:    (n + m,), likewise: gradient · slope.
    hidden:  (n, K), gradient · slope · w.
    kept:    (n, K), x, zeros for examples that are left out.
    """

    rows: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    hidden: torch.Tensor
    kept: torch.Tensor


def true_parts(
    gradient: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    slopes: torch.Tensor,
    classes: torch.Tensor,
) -> TrueParts:
    """Gradients from those of the losses (n,) and the slopes of the losses on scores (n, 1 + m).

    classes:  (n + m,), true classes, or numbers < 0 for examples that are left out, then draws.
    """
    n, width = hidden.shape
    size, device = len(classes), hidden.device
    tables = (torch.empty((rows, width), device=device) for rows in (size, n, n))
    weight_part, hidden_part, kept = tables
    rows = torch.empty(size, dtype=torch.int64, device=device)
    bias_part = torch.empty(size, device=device)
    block = power_of_two(width)
    _true_parts[(size,)](
        gradient, hidden, weight, slopes, classes, rows, weight_part, bias_part, hidden_part, kept,
        gradient.stride(0), slopes.stride(0), n, len(weight), WIDTH=width, BLOCK=block,
        num_warps=warps(block),
    )  # fmt: skip
    return TrueParts(rows, weight_part, bias_part, hidden_part, kept)


@triton.jit(do_not_specialize=["n", "n_classes"])
def _true_parts(
    gradient, hidden, weight, slopes, classes, rows, weight_part, bias_part, hidden_part, kept,
    gradient_stride, slopes_stride, n, n_classes, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    c = tl.load(classes + i).to(tl.int64)
    # Spread over the classes: many zeros for the same class would be summed one after another.
    tl.store(rows + i, tl.where(c < 0, i % n_classes, c))
    if i < n:
        f = tl.arange(0, BLOCK)
        mask = f < WIDTH
        counts = f < tl.where(c >= 0, WIDTH, 0)
        x = tl.load(hidden + i * WIDTH + f, mask=counts, other=0.0).to(tl.float32)
        w = tl.load(weight + c * WIDTH + f, mask=counts, other=0.0).to(tl.float32)
        g = tl.load(gradient + i * gradient_stride) * tl.load(slopes + i * slopes_stride)
        g = tl.where(c < 0, 0.0, g)
        tl.store(weight_part + i * WIDTH + f, g * x, mask=mask)
        tl.store(hidden_part + i * WIDTH + f, g * w, mask=mask)
        tl.store(kept + i * WIDTH + f, x, mask=mask)
        tl.store(bias_part + i, g)
