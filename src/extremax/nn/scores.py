"""Scores of a few classes, with gradients only for the rows of those classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

# Floats per block of gathered rows.
_BLOCK_FLOATS = 1 << 18


def pair_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, sparse: bool
) -> Tensor:
    """ξ of classes[i, j] on hidden[i]: (n, j)."""
    scores: Tensor = _PairScores.apply(hidden, weight, classes, sparse)
    if bias is not None:
        biases = take_rows(bias, classes.reshape(-1), sparse)
        scores = scores + biases.view(classes.shape).to(hidden.dtype)
    return scores


def shared_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, drawn: Tensor, sparse: bool
) -> Tensor:
    """ξ of target[i] and of all drawn classes on hidden[i]: (n, 1 + m)."""
    classes = torch.cat([target, drawn])
    rows = take_rows(weight, classes, sparse).to(hidden.dtype)
    n = len(target)
    true, negative = (hidden * rows[:n]).sum(1, keepdim=True), hidden @ rows[n:].T
    if bias is not None:
        biases = take_rows(bias, classes, sparse).to(hidden.dtype)
        true, negative = true + biases[:n, None], negative + biases[n:]
    return torch.cat([true, negative], 1)


def take_rows(parameter: Tensor, classes: Tensor, sparse: bool) -> Tensor:
    """parameter[classes] for one-dimensional classes, with a sparse gradient if ``sparse``."""
    # Classes may repeat: optimizers that need each row once call coalesce, as torch's do.
    if parameter.ndim == 1:
        return parameter.gather(0, classes, sparse_grad=sparse)
    return embedding(classes, parameter, sparse=sparse)


def gather_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """tensor[rows] for one-dimensional rows."""
    # embedding is three times as fast as index_select.
    return embedding(rows, tensor) if tensor.ndim == 2 else tensor.index_select(0, rows)


class _PairScores(torch.autograd.Function):
    """Gathers weight rows one block at a time and does not keep them for the backward pass.

    With ∂loss/∂ξ as a sparse matrix G (examples × classes), the gradients are G weight for the
    hidden states and Gᵀ hidden for the weight.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, classes: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(hidden, weight, classes)
        ctx.sparse = sparse
        scores = hidden.new_empty(classes.shape)
        for block in _pair_blocks(hidden, classes):
            rows = embedding(classes[block], weight).to(hidden.dtype)
            # Matrix products with a single column each would be several times slower.
            scores[block] = (rows * hidden[block, None]).sum(2)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        hidden, weight, classes = ctx.saved_tensors
        hidden_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            hidden_gradient = torch.empty_like(hidden)
            for block in _pair_blocks(hidden, classes):
                rows = embedding(classes[block], weight).to(hidden.dtype)
                hidden_gradient[block] = (rows * gradient[block, :, None]).sum(1)
        if ctx.needs_input_grad[1]:
            touched, positions = torch.unique(classes, return_inverse=True)
            examples = torch.arange(len(classes), device=classes.device)[:, None]
            indices = torch.stack([positions, examples.expand_as(positions)]).view(2, -1)
            size = (len(touched), len(classes))
            transposed = torch.sparse_coo_tensor(
                indices, gradient.reshape(-1), size, check_invariants=False
            )
            rows = torch.sparse.mm(transposed, hidden).to(weight.dtype)
            weight_gradient = torch.sparse_coo_tensor(
                touched[None], rows, weight.shape, check_invariants=False, is_coalesced=True
            )
            if not ctx.sparse:
                weight_gradient = weight_gradient.to_dense()
        return hidden_gradient, weight_gradient, None, None


def cache_blocks(n: int, floats_per_row: int, device: torch.device) -> list[slice]:
    """Slices of n rows that fit in the processor cache; on a GPU, one slice of all rows.

    Small blocks also avoid large temporary arrays, which are slow to allocate.
    """
    size = max(1, n if device.type != "cpu" else _BLOCK_FLOATS // max(1, floats_per_row))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _pair_blocks(hidden: Tensor, classes: Tensor) -> list[slice]:
    return cache_blocks(len(hidden), classes.shape[1] * hidden.shape[1], hidden.device)
