"""Adagrad and Adam that update only the rows with a gradient.

With a sparse gradient, the cost of a step grows with the number of its rows, not with the size of
the parameter. With a dense gradient, a step is that of `torch.optim.Adagrad` or `torch.optim.Adam`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from extremax.nn.checks import check_not_negative
from extremax.nn.scores import cache_blocks, gather_rows


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
        self, parameter: Tensor, rows: Tensor | None, gradient: Tensor, state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:  # fmt: skip
        """Update these rows, or all of them if ``rows`` is None."""


class RowAdagrad(_RowOptimizer):
    """G ← G + g², θ ← θ − lr g/(√G + eps), for rows with a gradient (Duchi, Hazan & Singer 2011).

    Adagrad does not move rows without a gradient, so this always equals `torch.optim.Adagrad`.

    initial_accumulator_value:  G before the first step. With zero, the first step of every
                                coordinate is ±lr, however small its gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        defaults = {"lr": lr, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        for name, value in defaults.items():
            check_not_negative(value, name)
        super().__init__(params, defaults)

    def _update(
        self, parameter: Tensor, rows: Tensor | None, gradient: Tensor, state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:  # fmt: skip
        if not state:
            start = group["initial_accumulator_value"]
            state["sum"] = torch.full_like(parameter, start, memory_format=torch.preserve_format)
        total = _take(state["sum"], rows).addcmul_(gradient, gradient)
        _put(state["sum"], rows, total)
        _add(parameter, rows, gradient / total.sqrt().add_(group["eps"]), -group["lr"])


class RowAdam(_RowOptimizer):
    """Adam (Kingma & Ba 2015) with moments and a step count per row.

    A step without a gradient for a row changes neither its moments nor its step count. A row that
    first gets a gradient late in training therefore starts like one that gets it at once; with one
    count for all rows, as in `torch.optim.SparseAdam`, its first step would be about three times
    too long.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        check_not_negative(lr, "lr")
        check_not_negative(eps, "eps")
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # torch casts the state to the type of the parameter, and bfloat16 cannot count beyond 256.
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for key, parameter in zip(saved["params"], group["params"], strict=True):
                if key in state_dict["state"]:
                    steps = state_dict["state"][key]["steps"]
                    steps = steps.to(parameter.device, torch.float32, copy=True)
                    self.state[parameter]["steps"] = steps

    def _update(
        self, parameter: Tensor, rows: Tensor | None, gradient: Tensor, state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:  # fmt: skip
        if not state:
            state["mean"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["square"] = torch.zeros_like(state["mean"])
            # One count per row, in a shape that broadcasts over the row.
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
    """Blocks of distinct rows of a gradient and their values; (None, values) if it is dense."""
    if not gradient.is_sparse:
        yield None, gradient
        return
    if gradient.sparse_dim() != 1:
        raise ValueError(
            "a sparse gradient must be sparse in its first dimension only, got "
            f"{gradient.sparse_dim()} sparse dimensions"
        )
    rows, values = gradient._indices()[0], gradient._values()
    # Autograd drops the coalesced flag; coalescing again would take a tenth of the step.
    if not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
    for block in cache_blocks(len(rows), values[:1].numel(), values.device):
        yield rows[block], values[block]


def _take(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """A copy of these rows, or the tensor itself if ``rows`` is None."""
    return tensor if rows is None else gather_rows(tensor, rows)


def _put(tensor: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is not None:
        tensor.index_copy_(0, rows, values)


def _add(tensor: Tensor, rows: Tensor | None, values: Tensor, scale: float) -> None:
    if rows is None:
        tensor.add_(values, alpha=scale)
    else:
        tensor.index_add_(0, rows, values, alpha=scale)
