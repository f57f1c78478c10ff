"""Tree noise that keeps up with a network: refitted on its latest hidden states."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from extremax.noise import MixtureNoise, Noise, TreeNoise


def trees_in(noise: Noise) -> list[Noise]:
    """The tree noises in a noise."""
    if isinstance(noise, MixtureNoise):
        return [tree for part in noise._parts() for tree in trees_in(part)]
    return [noise] if isinstance(noise, TreeNoise) else []


class Latest:
    """The latest rows of what the noise looks at, and their classes: a ring."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows, self._next, self._filled = n_rows, 0, 0
        self._features: Tensor | None = None
        self._steps = 0

    def due(self, every: int) -> bool:
        """Whether this many batches came in since the last fit."""
        return self._steps >= every

    def add(self, features: Tensor, target: Tensor) -> None:
        features, target = features[-self.n_rows :], target[-self.n_rows :]
        if self._features is None:
            self._features = torch.empty((self.n_rows, features.shape[1]))
            self._target = torch.empty(self.n_rows, dtype=torch.int64)
        at = (self._next + torch.arange(len(target))) % self.n_rows
        self._features[at] = features.detach().to("cpu", torch.float32)
        self._target[at] = target.cpu()
        self._next = (self._next + len(target)) % self.n_rows
        self._filled = min(self.n_rows, self._filled + len(target))
        self._steps += 1

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and classes, for a fit."""
        assert self._features is not None
        self._steps = 0
        return self._features[: self._filled].numpy(), self._target[: self._filled].numpy()
