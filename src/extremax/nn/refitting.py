"""Recent hidden states, for noises that are refitted as the network changes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class RecentRows:
    """Ring buffer of the latest ``n_rows`` rows that the noise reads, and their classes."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows, self._next, self._filled = n_rows, 0, 0
        self._features: Tensor | None = None
        #: Batches added since the last `take`.
        self.n_batches = 0

    def add(self, features: Tensor, target: Tensor) -> None:
        """Store one batch, in place of the oldest rows if the buffer is full."""
        features, target = features[-self.n_rows :], target[-self.n_rows :]
        if self._features is None:
            self._features = torch.empty((self.n_rows, features.shape[1]))
            self._target = torch.empty(self.n_rows, dtype=torch.int64)
        positions = (self._next + torch.arange(len(target))) % self.n_rows
        self._features[positions] = features.detach().to("cpu", torch.float32)
        self._target[positions] = target.cpu()
        self._next = (self._next + len(target)) % self.n_rows
        self._filled = min(self.n_rows, self._filled + len(target))
        self.n_batches += 1

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Stored rows and their classes, without copies."""
        assert self._features is not None
        self.n_batches = 0
        return self._features[: self._filled].numpy(), self._target[: self._filled].numpy()
