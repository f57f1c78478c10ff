"""Scores of a few classes, and their gradients, which touch only the rows of those classes.

Classes are (n, j), or, with shared draws, (n + m,): the target of each of n rows, then m draws.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

# The most features of kernels on a GPU.
_WIDEST = 8192
# Floats per block of gathered rows.
_BLOCK_FLOATS = 1 << 18


class Touched(NamedTuple):
    """Rows of the parameters with their gradients; a class may occur more than once.

    classes:  (r,), or None for all classes in their order.
    weight:   (r, K), or None if not asked for.
    bias:     (r,), likewise.
    """

    classes: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def score_type(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The type of scores, at least float32."""
    if hidden.dtype == weight.dtype == torch.float32:
        return torch.float32
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def has_kernels(scored: Tensor, weight: Tensor) -> bool:
    """Whether kernels of `extremax.kernels.gpu` take these: not in float64, nor with rows too long
    for them, nor without Triton, which torch brings along where it runs."""
    return (
        on_gpu(weight)
        and weight.is_contiguous()
        and score_type(scored, weight) == torch.float32
        and 0 < math.prod(weight.shape[1:]) <= _WIDEST
        and len(weight) > 0
        and _has_triton()
    )


def on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def pair_scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor) -> Tensor:
    """ξ of classes[i, j] on hidden[i]: (n, j).

    Weight rows are gathered one block at a time: there are n j of them. On a GPU, a kernel reads
    them where they are.
    """
    if has_kernels(hidden, weight):
        from extremax.kernels.gpu import head

        inputs = head.Inputs(hidden.contiguous(), None, 1.0)
        return head.score_pairs(weight, bias, inputs, classes.contiguous())
    scores = hidden.new_empty(classes.shape)
    for block in _pair_blocks(hidden.shape[1], classes):
        rows = embedding(classes[block], weight).to(hidden.dtype)
        # Matrix products with a single column each would be several times slower.
        scores[block] = (rows * hidden[block, None]).sum(2)
    if bias is not None:
        scores += gather_rows(bias, classes.reshape(-1)).view(classes.shape)
    return scores


def shared_scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor) -> Tensor:
    """ξ of each row's target and of all drawn classes: (n, 1 + m)."""
    n, rows = len(hidden), gather_rows(weight, classes).to(hidden.dtype)
    true, drawn = (hidden * rows[:n]).sum(1, keepdim=True), hidden @ rows[n:].T
    if bias is not None:
        biases = gather_rows(bias, classes).to(hidden.dtype)
        true, drawn = true + biases[:n, None], drawn + biases[n:]
    return torch.cat([true, drawn], 1)


def hidden_gradient(slopes: Tensor, weight: Tensor, classes: Tensor, shared: bool) -> Tensor:
    """∂loss/∂hidden (n, K) from ∂loss/∂ξ."""
    n = len(slopes)
    if shared:
        rows = gather_rows(weight, classes).to(slopes.dtype)
        # No draws if all rows are ignored.
        return slopes[:, :1] * rows[:n] + slopes[:, 1 : 1 + len(rows) - n] @ rows[n:]
    gradient = slopes.new_empty((n, weight.shape[1]))
    for block in _pair_blocks(weight.shape[1], classes):
        rows = embedding(classes[block], weight).to(slopes.dtype)
        gradient[block] = (rows * slopes[block, :, None]).sum(1)
    return gradient


def touched_rows(
    slopes: Tensor, hidden: Tensor, classes: Tensor, shared: bool, for_weight: bool, for_bias: bool
) -> Touched:
    """Gradients of weight and bias from ∂loss/∂ξ."""
    weight = bias = None
    if shared:
        hidden = hidden.to(slopes.dtype)
        drawn = slopes[:, 1 : 1 + len(classes) - len(slopes)].T
        if for_weight:
            weight = torch.cat([slopes[:, :1] * hidden, drawn @ hidden])
        if for_bias:
            bias = torch.cat([slopes[:, 0], drawn.sum(1)])
        return Touched(classes, weight, bias)
    touched, positions = torch.unique(classes, return_inverse=True)
    if for_weight:
        # With ∂loss/∂ξ as a sparse matrix G (examples × classes), Gᵀ hidden.
        examples = torch.arange(len(classes), device=classes.device)[:, None]
        indices = torch.stack([positions, examples.expand_as(positions)]).view(2, -1)
        size = (len(touched), len(classes))
        transposed = torch.sparse_coo_tensor(
            indices, slopes.reshape(-1), size, check_invariants=False
        )
        weight = torch.sparse.mm(transposed, hidden.to(slopes.dtype))
    if for_bias:
        bias = slopes.new_zeros(len(touched))
        bias.index_add_(0, positions.view(-1), slopes.reshape(-1))
    return Touched(touched, weight, bias)


def gather_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """tensor[rows] for one-dimensional rows."""
    # embedding is three times as fast as index_select.
    return embedding(rows, tensor) if tensor.ndim == 2 else tensor.index_select(0, rows)


def cache_blocks(n: int, floats_per_row: int, device: torch.device) -> list[slice]:
    """Slices of n rows that fit in the processor cache; on a GPU, one slice of all rows.

    Small blocks also avoid large temporary arrays, which are slow to allocate.
    """
    size = max(1, n if device.type != "cpu" else _BLOCK_FLOATS // max(1, floats_per_row))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _pair_blocks(width: int, classes: Tensor) -> list[slice]:
    return cache_blocks(len(classes), classes.shape[1] * width, classes.device)
