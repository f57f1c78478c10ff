"""Scores of a few classes; their gradient touches the rows of those classes alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

# Floats that a block of gathered rows may hold.
_BLOCK_FLOATS = 1 << 18


def pair_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, sparse: bool
) -> Tensor:
    """ξ of classes[i, j] on hidden[i]: (n, j)."""
    scores: Tensor = _PairScores.apply(hidden, weight, classes, sparse)
    if bias is not None:
        own = take_rows(bias, classes.reshape(-1), sparse)
        scores = scores + own.view(classes.shape).to(hidden.dtype)
    return scores


def shared_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, drawn: Tensor, sparse: bool
) -> Tensor:
    """ξ of target[i] and of every drawn class on hidden[i]: (n, 1 + m)."""
    classes = torch.cat([target, drawn])
    rows = take_rows(weight, classes, sparse).to(hidden.dtype)
    n = len(target)
    own, others = (hidden * rows[:n]).sum(1, keepdim=True), hidden @ rows[n:].T
    if bias is not None:
        biases = take_rows(bias, classes, sparse).to(hidden.dtype)
        own, others = own + biases[:n, None], others + biases[n:]
    return torch.cat([own, others], 1)


def take_rows(parameter: Tensor, classes: Tensor, sparse: bool) -> Tensor:
    """parameter[classes], for classes of one dimension."""
    if sparse:
        rows: Tensor = _TakeRows.apply(parameter, classes)
        return rows
    return plain_rows(parameter, classes)


def plain_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """tensor[rows], for rows of one dimension."""
    # Three times as fast as index_select.
    return embedding(rows, tensor) if tensor.ndim == 2 else tensor.index_select(0, rows)


class _TakeRows(torch.autograd.Function):
    """Rows with a sparse gradient. torch's embedding has one too, but not for biases."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, classes: Tensor) -> Tensor:
        ctx.save_for_backward(classes)
        ctx.shape = parameter.shape
        return plain_rows(parameter, classes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (classes,) = ctx.saved_tensors
        # Classes repeat; whoever needs each row once calls coalesce, as torch's optimisers do.
        return torch.sparse_coo_tensor(
            classes[None], gradient, ctx.shape, check_invariants=False
        ), None


class _PairScores(torch.autograd.Function):
    """A gathered row of every pair is made a block at a time, and never kept.

    With ∂ξ as a sparse matrix G of examples and classes, gradients are Gᵀ hidden and G weight.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, classes: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(hidden, weight, classes)
        ctx.sparse = sparse
        scores = hidden.new_empty(classes.shape)
        for block in _pair_blocks(hidden, classes):
            rows = embedding(classes[block], weight).to(hidden.dtype)
            # Not a product of matrices: with one column each, it is several times slower.
            scores[block] = (rows * hidden[block, None]).sum(2)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        hidden, weight, classes = ctx.saved_tensors
        for_hidden = for_weight = None
        if ctx.needs_input_grad[0]:
            for_hidden = torch.empty_like(hidden)
            for block in _pair_blocks(hidden, classes):
                rows = embedding(classes[block], weight).to(hidden.dtype)
                for_hidden[block] = (rows * gradient[block, :, None]).sum(1)
        if ctx.needs_input_grad[1]:
            touched, place = torch.unique(classes, return_inverse=True)
            examples = torch.arange(len(classes), device=classes.device)[:, None]
            where = torch.stack([place, examples.expand_as(place)]).view(2, -1)
            size = (len(touched), len(classes))
            pairs = torch.sparse_coo_tensor(
                where, gradient.reshape(-1), size, check_invariants=False
            )
            rows = torch.sparse.mm(pairs, hidden).to(weight.dtype)
            for_weight = torch.sparse_coo_tensor(
                touched[None], rows, weight.shape, check_invariants=False, is_coalesced=True
            )
            if not ctx.sparse:
                for_weight = for_weight.to_dense()
        return for_hidden, for_weight, None, None


def row_blocks(n: int, floats_each: int, device: torch.device) -> list[slice]:
    """Slices of n rows whose floats stay in the processor's cache; on a GPU, all at once.

    Large temporary arrays are also what the system takes longest to hand out.
    """
    step = max(1, _BLOCK_FLOATS // max(1, floats_each))
    step = step if device.type == "cpu" else max(1, n)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _pair_blocks(hidden: Tensor, classes: Tensor) -> list[slice]:
    return row_blocks(len(hidden), classes.shape[1] * hidden.shape[1], hidden.device)
