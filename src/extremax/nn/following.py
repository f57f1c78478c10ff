"""A torch weight as the head that a noise follows, and which of its rows have changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from extremax.head import LinearHead
from extremax.noise import Noise


class WeightHead(LinearHead):
    """ξ = w·h + b of a module, for noises to read. It has no Adagrad state and makes no step.

    In float32 on the CPU it is the module's own memory; otherwise a copy, row by row kept up to
    date (`update`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.scale = 1.0
        source = weight.detach()
        no_bias = torch.zeros(len(source), dtype=source.dtype, device=source.device)
        self._sources = (source, no_bias if bias is None else bias.detach())
        self.weight, self.bias = (_as_float32(s) for s in self._sources)

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def versions(self) -> tuple[int, ...]:
        """How often weight and bias were changed in place, as torch counts."""
        return tuple(source._version for source in self._sources)

    def update(self, classes: Tensor) -> None:
        """Read these rows again."""
        for own, source in zip((self.weight, self.bias), self._sources, strict=True):
            if own.data_ptr() != source.data_ptr():
                rows = source.index_select(0, classes.to(source.device))
                own[classes] = rows.to("cpu", torch.float32)


class Follower:
    """Keeps a noise that follows its head up to date with a module's weight.

    Rows that may have changed are those of the weight's sparse gradients: all its gradients, also
    those of other layers that share it. They are read again until the weight was changed in place.
    After a dense gradient, or a change in place before any gradient, every row is read again.

    What else changes between a gradient and the next draw stays unseen: rows that momentum moves,
    a weight that is normalised after each step.
    """

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self._memory: tuple[Any, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._touched: list[Tensor] = []
        self._all = False
        self._hook: Any = None

    def catch_up(self, weight: Tensor, bias: Tensor | None) -> None:
        """What the weight is now, the noise knows afterwards."""
        memory = (weight.data_ptr(), weight.device, weight.dtype, id(bias))
        if memory != self._memory:
            self._watch(weight)
            self._memory, self._versions, self._all = memory, (), True
        else:
            self._notice()
        if self._all:
            self._head = WeightHead(weight, bias)
            self.noise.attach(self._head)
        elif self._touched:
            classes = torch.unique(torch.cat(self._touched)).cpu()
            self._head.update(classes)
            self.noise.refresh(classes)
        versions = self._head.versions()
        if versions != self._versions:
            # A gradient of before this change has been used; of others the step is still to come.
            self._versions, self._touched, self._all = versions, [], False

    def _notice(self) -> None:
        """A weight that changed without a gradient was changed by hand, in any row."""
        if not self._touched and self._head.versions() != self._versions:
            self._all = True

    def forget(self) -> None:
        """The weight or the noise was changed by hand: begin anew."""
        self._memory = ()

    def close(self) -> None:
        """Watch the weight no longer."""
        self.forget()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _watch(self, weight: Tensor) -> None:
        self.close()
        self._touched = []
        if weight.requires_grad:
            self._hook = weight.register_post_accumulate_grad_hook(self._see)

    def _see(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if not self._all:
            self._notice()
        if gradient is None or not gradient.is_sparse:
            self._all = True
        else:
            self._touched.append(gradient._indices()[0])
        # Gradients that no step uses do not pile up.
        if sum(map(len, self._touched)) > len(parameter):
            self._all, self._touched = True, []

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a weight of its own and attaches itself to that.
        return vars(Follower(self.noise))


def _as_float32(source: Tensor) -> Tensor:
    """The very memory where it is contiguous float32 on the CPU, else a copy."""
    return source.to("cpu", torch.float32).contiguous()
