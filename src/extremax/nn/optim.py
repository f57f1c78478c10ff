"""Adagrad and Adam that update only the rows with a gradient.

With a sparse gradient, the cost of a step grows with the number of its rows, not with the size of
the parameter. With a dense gradient, a step is that of `torch.optim.Adagrad` or `torch.optim.Adam`.
`ExtremeSoftmax` gives sparse gradients to parameters of these optimizers, because most others take
dense gradients only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from extremax.nn.scores import cache_blocks, gather_rows, has_kernels

if TYPE_CHECKING:
    from extremax.kernels.gpu.head import Groups

_MARK = "_extremax_takes_rows"


def takes_rows(parameter: Tensor | None) -> bool:
    """Whether an optimizer of this module updates the parameter."""
    return getattr(parameter, _MARK, False)


class _RowOptimizer(Optimizer):
    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        for name, value in defaults.items():
            if name != "betas" and not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number >= 0, got {value!r}")
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            setattr(parameter, _MARK, True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sorted_rows: dict[int, tuple[Tensor, Groups]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group, sorted_rows)
        return loss

    def _update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any],
        sorted_rows: dict[int, tuple[Tensor, Groups]],
    ) -> None:  # fmt: skip
        state = self.state[parameter]
        if not state:
            state.update(self._start(parameter, group))
        if not gradient.is_sparse:
            parameter.sub_(self._change(gradient, state, group))
            return
        if gradient.sparse_dim() != 1:
            raise ValueError(
                "a sparse gradient must be sparse in its first dimension only, got "
                f"{gradient.sparse_dim()} sparse dimensions"
            )
        if parameter.ndim <= 2 and has_kernels(gradient._values(), parameter):
            values = gradient._values().contiguous().view(gradient._nnz(), -1)
            self._step_sorted(parameter, _sorted(gradient, sorted_rows), values, group)
            return
        for rows, values in _touched(gradient):
            self._step_rows(parameter, rows, values, group)

    def _step_rows(
        self, parameter: Tensor, rows: Tensor, values: Tensor, group: dict[str, Any]
    ) -> None:
        """A step of some rows, all distinct, given their gradients."""
        state = self.state[parameter]
        row_state = {name: gather_rows(tensor, rows) for name, tensor in state.items()}
        change = self._change(values, row_state, group)
        for name, tensor in state.items():
            tensor.index_copy_(0, rows, row_state[name])
        parameter.index_add_(0, rows, change, alpha=-1.0)

    @abstractmethod
    def _step_sorted(
        self, parameter: Tensor, groups: Groups, values: Tensor, group: dict[str, Any]
    ) -> None:
        """A step on a GPU by `extremax.kernels.gpu.rows`, without a wait for the device.

        groups:  the rows of the gradient, sorted; a row may occur more than once.
        values:  (r, K), K = 1 for a parameter of one dimension.
        """

    @abstractmethod
    def _start(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter before its first step, with one row per row of it."""

    @abstractmethod
    def _change(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """Update the state in place; return what a step subtracts from the parameter."""


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
        super().__init__(params, defaults)

    def _start(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        return {"sum": torch.full_like(parameter, group["initial_accumulator_value"])}

    def _step_sorted(
        self, parameter: Tensor, groups: Groups, values: Tensor, group: dict[str, Any]
    ) -> None:
        from extremax.kernels.gpu.rows import adagrad

        total = self.state[parameter]["sum"]
        adagrad(groups, values, parameter, total, group["lr"], group["eps"])

    def _change(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        total = state["sum"].addcmul_(gradient, gradient)
        return (gradient / total.sqrt().add_(group["eps"])).mul_(group["lr"])


class RowAdam(_RowOptimizer):
    """Adam (Kingma & Ba 2015) with moments and a step count per row.

    A step without a gradient for a row changes neither its moments nor its step count. A row that
    first gets a gradient late in training therefore starts like one that gets it at once; with one
    count for all rows, as in `torch.optim.SparseAdam`, its first step would be about three times
    too long. On a GPU, a row whose gradient is all zeros counts as one without.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
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

    def _start(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        # One count per row, in a shape that broadcasts over the row.
        shape = (*parameter.shape[:1], *(1 for _ in parameter.shape[1:]))
        steps = torch.zeros(shape, device=parameter.device)
        mean, square = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return {"mean": mean, "square": square, "steps": steps}

    def _step_sorted(
        self, parameter: Tensor, groups: Groups, values: Tensor, group: dict[str, Any]
    ) -> None:
        from extremax.kernels.gpu.rows import adam

        state = self.state[parameter]
        adam(
            groups, values, parameter, (state["mean"], state["square"]), state["steps"],
            group["lr"], group["betas"], group["eps"],
        )  # fmt: skip

    def _change(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        beta1, beta2 = group["betas"]
        mean = state["mean"].lerp_(gradient, 1.0 - beta1)
        square = state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        counts = state["steps"].add_(1.0).double()
        rate = (group["lr"] / (1.0 - beta1**counts)).to(mean.dtype)
        root = (1.0 - beta2**counts).sqrt().to(mean.dtype)
        return rate * mean / (square.sqrt() / root + group["eps"])


def _touched(gradient: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of distinct rows of a sparse gradient, and their values."""
    rows, values = gradient._indices()[0], gradient._values()
    # Autograd drops the coalesced flag; coalescing again would take a tenth of the step.
    if not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
    for block in cache_blocks(len(rows), values[:1].numel(), values.device):
        yield rows[block], values[block]


def _sorted(gradient: Tensor, sorted_rows: dict[int, tuple[Tensor, Groups]]) -> Groups:
    """The rows of a sparse gradient, sorted.

    sorted_rows:  what was sorted in this step: weight and bias of a layer have the same rows.
    """
    from extremax.kernels.gpu.head import group_by_class

    rows = gradient._indices()[0]
    found = sorted_rows.get(rows.data_ptr())
    if found is None or found[0].shape != rows.shape:
        found = sorted_rows[rows.data_ptr()] = rows, group_by_class(rows)
    return found[1]
