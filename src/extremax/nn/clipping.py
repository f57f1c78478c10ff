"""torch's gradient clipping, for gradients that may be sparse."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import utils

from extremax.nn.scores import has_kernels


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_`, which also accepts sparse gradients.

    Scales all gradients so that their norm, taken together, is at most ``max_norm``. Returns the
    norm that they had.
    """
    return utils.clip_grad_norm_(_values(parameters), max_norm, norm_type, error_if_nonfinite)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """`torch.nn.utils.clip_grad_value_`, which also accepts sparse gradients.

    Clips every entry of the gradients to [−clip_value, clip_value].
    """
    utils.clip_grad_value_(_values(parameters), clip_value)


def _values(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The parameters; for those with sparse gradients, tensors with the touched rows as gradients.

    Whatever changes these gradients changes the sparse ones, with which they share memory.
    """
    found = []
    for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            # Rows that occur more than once would be clipped one by one.
            parameter.grad = _combined(gradient)
            rows = parameter.grad._values()
            parameter = torch.empty_like(rows)
            parameter.grad = rows
        found.append(parameter)
    return found


def _combined(gradient: Tensor) -> Tensor:
    """A sparse gradient in which no row occurs twice with other values than zeros."""
    rows, values = gradient._indices(), gradient._values()
    if gradient.sparse_dim() != 1 or values.ndim > 2 or not has_kernels(values, values):
        return gradient.coalesce()
    from extremax.kernels.gpu.head import group_by_class
    from extremax.kernels.gpu.rows import combined

    groups = group_by_class(rows)
    sums = combined(groups, values.view(len(values), -1)).view_as(values)
    return torch.sparse_coo_tensor(
        groups.classes[None].long(), sums, gradient.shape, check_invariants=False
    )
