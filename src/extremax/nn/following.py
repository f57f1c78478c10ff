"""A torch weight as the class vectors that a noise follows, and which of its rows have changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from extremax.heads import pair_scores
from extremax.noise import Noise


class WeightVectors:
    """ξ_y = w_y·h + b_y of a module, as `extremax.heads.ClassVectors`.

    Contiguous float32 parameters on the CPU are shared. Other parameters are copied, and `update`
    copies changed rows again.
    """

    scale: float = 1.0

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        source = weight.detach()
        zeros = torch.zeros(len(source), dtype=source.dtype, device=source.device)
        self.n_classes = len(source)
        self._sources = (source, zeros if bias is None else bias.detach())
        # No copy where the source is of this kind already.
        self.weight, self.bias = (
            source.to("cpu", torch.float32).contiguous() for source in self._sources
        )

    def table(self) -> np.ndarray:
        return self.weight.numpy()

    def pair_scores(self, features: np.ndarray, rows: np.ndarray, classes: Tensor) -> Tensor:
        return pair_scores(self.table(), self.bias.numpy(), features, rows, classes, self.scale)

    def all_scores(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, features, self.weight.T)

    def versions(self) -> tuple[int, ...]:
        """torch's counts of in-place changes to weight and bias."""
        return tuple(source._version for source in self._sources)

    def update(self, classes: Tensor) -> None:
        """Read the rows of these classes again."""
        for copied, source in zip((self.weight, self.bias), self._sources, strict=True):
            if copied.data_ptr() != source.data_ptr():
                rows = source.index_select(0, classes.to(source.device))
                copied[classes] = rows.to("cpu", torch.float32)


class Follower:
    """Keeps a noise that follows its head up to date with a module's weight.

    The rows of the weight's sparse gradients count as changed, whichever layer the gradients come
    from. They are read again at every draw until the weight changes in place. After a dense
    gradient, or a change in place without a gradient, all rows are read again.

    Other changes between a gradient and the next draw are missed: rows moved by momentum, or a
    weight that is normalized after each step.
    """

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        #: Rows of the gradients since the last change in place.
        self.touched: list[Tensor] = []
        self._all_changed = False
        self._parameters: tuple[Any, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._hook: Any = None

    def catch_up(self, weight: Tensor, bias: Tensor | None) -> None:
        """Bring the noise up to date with these parameters."""
        parameters = (weight.data_ptr(), weight.device, weight.dtype, id(bias))
        if parameters != self._parameters:
            self.close()
            self._parameters, self._versions, self._all_changed = parameters, (), True
            self.touched = []
            if weight.requires_grad:
                self._hook = weight.register_post_accumulate_grad_hook(self._record)
        else:
            self._check_versions()
        if self._all_changed:
            self._vectors = WeightVectors(weight, bias)
            self.noise.attach(self._vectors)
        elif self.touched:
            classes = torch.unique(torch.cat(self.touched)).cpu()
            self._vectors.update(classes)
            self.noise.refresh(classes)
        versions = self._vectors.versions()
        if versions != self._versions:
            # The optimizer has used the gradients. Otherwise their step is still to come.
            self._versions, self.touched, self._all_changed = versions, [], False

    def forget(self) -> None:
        """Read all rows again at the next draw."""
        self._parameters = ()

    def close(self) -> None:
        """Stop watching the weight."""
        self.forget()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _check_versions(self) -> None:
        """A change in place without a gradient may have changed any row."""
        if not self.touched and self._vectors.versions() != self._versions:
            self._all_changed = True

    def _record(self, parameter: Tensor) -> None:
        """Remember the rows of a new gradient."""
        gradient = parameter.grad
        if not self._all_changed:
            self._check_versions()
        if gradient is None or not gradient.is_sparse:
            self._all_changed = True
        else:
            self.touched.append(gradient._indices()[0])
        # Bounded, also if no step ever uses the gradients.
        if sum(map(len, self.touched)) > len(parameter):
            self._all_changed, self.touched = True, []

    def __getstate__(self) -> dict[str, Any]:
        # A copy attaches itself to the weight of its own layer.
        return vars(Follower(self.noise))
