"""Adagrad and Adam that update only the rows a step has touched.

A sparse gradient names its rows; the cost of a step is theirs, not the parameter's. A dense
gradient touches every row, and the step is then that of `torch.optim.Adagrad` or
`torch.optim.Adam`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from extremax.nn.checks import check_not_negative
from extremax.nn.rows import plain_rows, row_blocks


class _RowOptimizer(Optimizer):
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    for rows, gradient in _touched(parameter.grad):
                        self._update(parameter, rows, gradient, self.state[parameter], group)
        return loss

    @abstractmethod
    def _update(
        self,
        parameter: Tensor,
        rows: Tensor | None,
        gradient: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        """One step of these rows, of all where ``rows`` is None."""


class RowAdagrad(_RowOptimizer):
    """θ ← θ − lr g/(√G + eps), G ← G + g², of touched rows (Duchi, Hazan & Singer 2011).

    Adagrad leaves rows without gradient alone, so this equals `torch.optim.Adagrad` always.

    initial_accumulator_value:  G before the first step. From zero, the first step of every
                                number is ±lr however small its gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        check_not_negative(lr=lr, initial_accumulator_value=initial_accumulator_value, eps=eps)
        defaults = {"lr": lr, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(params, defaults)

    def _update(
        self,
        parameter: Tensor,
        rows: Tensor | None,
        gradient: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        if not state:
            start = group["initial_accumulator_value"]
            state["sum"] = torch.full_like(parameter, start, memory_format=torch.preserve_format)
        total = _take(state["sum"], rows).addcmul_(gradient, gradient)
        _put(state["sum"], rows, total)
        _add(parameter, rows, gradient / total.sqrt().add_(group["eps"]), -group["lr"])


class RowAdam(_RowOptimizer):
    """Adam (Kingma & Ba 2015) of each row over the steps that touched it.

    A row's moments and its number of steps stand still while it is not touched. So a row that
    first occurs late starts like one that occurred at once; with one count for all rows, as in
    `torch.optim.SparseAdam`, its first step would be about three times too long.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        check_not_negative(lr=lr, eps=eps)
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # torch gives a state the type of its parameter, and bfloat16 cannot count beyond 256.
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for key, parameter in zip(saved["params"], group["params"], strict=True):
                if key in state_dict["state"]:
                    steps = state_dict["state"][key]["steps"]
                    steps = steps.to(parameter.device, torch.float32, copy=True)
                    self.state[parameter]["steps"] = steps

    def _update(
        self,
        parameter: Tensor,
        rows: Tensor | None,
        gradient: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        if not state:
            state["mean"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["square"] = torch.zeros_like(state["mean"])
            # A number a row, of a shape that broadcasts over it.
            shape = (*parameter.shape[:1], *(1 for _ in parameter.shape[1:]))
            state["steps"] = torch.zeros(shape, device=parameter.device)
        beta1, beta2 = group["betas"]
        steps = _take(state["steps"], rows).add_(1.0)
        mean = _take(state["mean"], rows).lerp_(gradient, 1.0 - beta1)
        square = _take(state["square"], rows)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        counts = steps.double()
        rate = (group["lr"] / (1.0 - beta1**counts)).to(mean.dtype)
        root = (1.0 - beta2**counts).sqrt().to(mean.dtype)
        for name, values in (("steps", steps), ("mean", mean), ("square", square)):
            _put(state[name], rows, values)
        _add(parameter, rows, rate * mean / (square.sqrt() / root + group["eps"]), -1.0)


def _touched(gradient: Tensor) -> Iterator[tuple[Tensor | None, Tensor]]:
    """The rows of a gradient, each once, and their values; None and all values if dense."""
    if not gradient.is_sparse:
        yield None, gradient
        return
    if gradient.sparse_dim() != 1:
        raise ValueError(
            f"a sparse gradient must be sparse in rows alone, got {gradient.sparse_dim()} "
            "sparse dimensions"
        )
    rows, values = gradient._indices()[0], gradient._values()
    # Autograd forgets that a gradient was coalesced; to do it again would cost a tenth of a step.
    if not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
    for block in row_blocks(len(rows), values[:1].numel(), values.device):
        yield rows[block], values[block]


def _take(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """A copy of these rows, or the tensor itself."""
    return tensor if rows is None else plain_rows(tensor, rows)


def _put(tensor: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is not None:
        tensor.index_copy_(0, rows, values)


def _add(tensor: Tensor, rows: Tensor | None, values: Tensor, scale: float) -> None:
    if rows is None:
        tensor.add_(values, alpha=scale)
    else:
        tensor.index_add_(0, rows, values, alpha=scale)
