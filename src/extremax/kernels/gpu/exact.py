"""Softmax over every class without the (n, C) array of scores, in Triton.

    ξ_ic = x_i·w_c + b_c,   log Z_i = log Σ_c exp ξ_ic

Scores exist one tile at a time, in registers. The first pass reduces them to log Z. The second one
computes them again, in chunks of classes, and stores the slopes ∂loss/∂ξ of a chunk, from which two
matrix products make the gradients: G W, added up over chunks, and Gᵀ X, the rows of the chunk. So a
training step is four products of n·C·K multiplications, and holds `_SLOPE_BYTES` of slopes.

Products are in the type of x, in TF32 if x is float32 and torch allows that, and add up in float32.
There are no atomic additions: the same GPU gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from extremax.kernels.gpu.head import Inputs, Vectors, update_summed
from extremax.kernels.gpu.tiles import (
    Scores,
    SlopeStore,
    Totals,
    column_sums,
    room_for_slopes,
    span_sums,
)

# The most bytes of slopes that are held at once: near the size of the L2 cache, and of enough
# classes that the matrix products keep the GPU busy.
_SLOPE_BYTES = 72 << 20
# The most bytes of weights that are held at once in another type than their own.
_COPY_BYTES = 32 << 20


def totals(scores: Scores, target: Tensor, shares: Tensor | None, squares: bool) -> Totals:
    """Totals of every row.

    scores:  weights of another type than x are converted, one block of classes at a time.
    target:  y of each row, (n,), int64.
    shares:  v, (C,).
    """
    x, weight, bias = scores
    # A target that is no class makes the loss of its row NaN.
    true = torch.full((len(x),), torch.nan, device=x.device)
    log_sums, square_sums = [], []
    # Blocks begin where loads are aligned.
    copied = 128 * max(1, _COPY_BYTES // (128 * x.dtype.itemsize * x.shape[1]))
    for block, rows in _converted(x, weight, copied if weight.dtype != x.dtype else len(weight)):
        part = Scores(x, rows, None if bias is None else bias[block])
        found = span_sums(part, target, block.start, true, squares)
        log_sums.append(found[0])
        square_sums.append(found[1])
    log_z = torch.cat(log_sums).logsumexp(0)
    shared = None
    if shares is not None:
        # Σ v_c ξ_c = x·(Σ v_c w_c) + Σ v_c b_c: no need for scores.
        size = max(1, _COPY_BYTES // (4 * x.shape[1]))
        parts = (shares[block] @ weight[block].float() for block in _blocks(len(weight), size))
        shared = x.float() @ torch.stack(list(parts)).sum(0)
        if bias is not None:
            shared += bias.float() @ shares
    return Totals(log_z, true, torch.cat(square_sums).sum(0) if squares else None, shared)


class Wanted(NamedTuple):
    """Of which gradients there is need."""

    x: bool
    weight: bool
    bias: bool


def gradients(
    scores: Scores, target: Tensor, shares: Tensor | None, log_z: Tensor, slopes: Totals,
    wanted: Wanted,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """∂loss/∂x, ∂loss/∂weight and ∂loss/∂bias, each in the type of its tensor, given the slopes of
    the loss on the totals of each row."""
    x, weight, bias = scores
    on_x = torch.zeros(x.shape, device=x.device) if wanted.x else None
    on_weight = torch.empty_like(weight) if wanted.weight else None
    on_bias = torch.empty_like(bias) if wanted.bias and bias is not None else None
    for block, rows, on_scores in _chunks(scores, target, shares, log_z, slopes):
        if on_x is not None:
            _add_product(on_x, on_scores, rows)
        if on_weight is not None:
            on_weight[block] = _product(on_scores.T, x)
        if on_bias is not None:
            on_bias[block] = column_sums(on_scores)
    return None if on_x is None else on_x.to(x.dtype), on_weight, on_bias


def exact_step(
    vectors: Vectors,
    inputs: Inputs,
    truth: Tensor,
    weights: Tensor | None,
    regularization: float,
    learning_rate: float | Tensor,
    seed: int = 0,
) -> Tensor:
    """One step of Adagrad on every class; returns the loss of each example before it, (n,).

        ω_i (log Z_i − ξ_iy + λ (ξ_iy² + (1/C) Σ_c ξ_ic²))

    The gradient of a chunk of classes is applied at once: there is never one of all classes.

    inputs:   products are in the type of the features.
    truth:    y, (n,), int64.
    weights:  ω, (n,).
    seed:     of the rounding of weights in bfloat16; another one in every step.
    """
    features = inputs.features
    x = (features[inputs.rows] * inputs.scale).to(features.dtype)
    scores = Scores(x, vectors.weight, vectors.bias)
    found = totals(scores, truth, None, bool(regularization))
    each = torch.ones_like(found.log_z) if weights is None else weights
    losses, n_classes = found.log_z - found.true, len(vectors.weight)
    on_true, on_squares = -each, None
    if found.squares is not None:
        losses += regularization * (found.true.square() + found.squares / n_classes)
        on_true = each * (2.0 * regularization * found.true - 1.0)
        on_squares = each * (regularization / n_classes)
    slopes = Totals(each, on_true, on_squares, None)
    chunks = _chunks(scores, truth, None, found.log_z, slopes)
    for number, (block, _, on_scores) in enumerate(chunks):
        part = Vectors(*(tensor[block] for tensor in vectors))
        sums = _product(on_scores.T, x)
        update_summed(None, part, sums, column_sums(on_scores), learning_rate, seed + number)
    return each * losses


def _chunks(
    scores: Scores, target: Tensor, shares: Tensor | None, log_z: Tensor, slopes: Totals
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Chunks of classes: which, their weights in the type of products, the slopes of the loss on
    their scores, (n, chunk), to be used before the next chunk."""
    x, weight, bias = scores
    room = room_for_slopes(x, len(weight), _SLOPE_BYTES)
    if weight.dtype == x.dtype:
        store = SlopeStore(scores, target, 0, shares, log_z, slopes, room)
        for block in _blocks(len(weight), room.shape[1]):
            yield block, weight[block], store(block.start, block.stop - block.start)
        return
    for block, rows in _converted(x, weight, room.shape[1]):
        part = Scores(x, rows, None if bias is None else bias[block])
        some = None if shares is None else shares[block]
        store = SlopeStore(part, target, block.start, some, log_z, slopes, room)
        yield block, rows, store(0, len(rows))


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _converted(x: Tensor, weight: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of classes, and their weights in the type of x."""
    return ((block, weight[block].to(x.dtype)) for block in _blocks(len(weight), size))


# Products with sums in float32 ----------------------------------------------------------------


def _product(a: Tensor, b: Tensor) -> Tensor:
    b = b.to(a.dtype)
    if a.dtype != torch.float32 and a.is_cuda and _widens_products():
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, in float32."""
    b = b.to(a.dtype)
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    elif a.is_cuda and _adds_half_products(a.device):
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total += _product(a, b)


@cache
def _widens_products() -> bool:
    """Whether torch stores products of half precision in float32: from some version."""
    return "dtype" in torch.ops.aten.mm.overloads()


@cache
def _adds_half_products(device: torch.device) -> bool:
    """Whether torch adds products of half precision to a tensor in float32: from some version."""
    total = torch.zeros((16, 16), device=device)
    a = total.bfloat16()
    try:
        torch.addmm(total, a, a, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return True
