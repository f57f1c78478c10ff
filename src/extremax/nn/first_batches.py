"""Class frequencies of the first training batches, for a layer that was given no labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

# Later batches would change little. A power of two.
_LAST = 1024


class FirstBatches:
    """Counts the classes of batches and estimates frequencies after 1, 2, 4, ... 1024 of them."""

    def __init__(self, n_classes: int) -> None:
        self.counts = torch.zeros(n_classes, dtype=torch.int64)
        self.n_batches = 0
        #: Log-frequencies that the biases of the layer stand for; None to leave biases alone.
        self.log_frequency: Tensor | None = None

    @property
    def ended(self) -> bool:
        return self.n_batches >= _LAST

    def add(self, target: Tensor, counted: Tensor) -> bool:
        """Count the classes (n,) of a batch where ``counted``. True if frequencies should be
        estimated now."""
        self.counts = self.counts.to(target.device)
        self.counts.index_add_(0, target, counted.to(self.counts.dtype))
        self.n_batches += 1
        return self.n_batches & (self.n_batches - 1) == 0

    def labels(self) -> Tensor:
        """All classes so far, sorted."""
        return torch.arange(len(self.counts), device=self.counts.device).repeat_interleave(
            self.counts
        )

    def estimate(self) -> Tensor:
        """log of (1 − u) n_y/n + u/C, (C,), with u the share of the classes seen once.

        u estimates the probability of classes that were not seen yet (Good 1953).
        """
        n, once = self.counts.sum().double(), (self.counts == 1).sum()
        unseen = (once + 1.0) / (n + 1.0)
        return torch.log((1.0 - unseen) * self.counts / n + unseen / len(self.counts)).float()

    def state(self) -> dict[str, Any]:
        """A copy of everything, as tensors and numbers."""
        log_frequency = None if self.log_frequency is None else self.log_frequency.clone()
        return {
            "counts": self.counts.clone(),
            "n_batches": self.n_batches,
            "log_frequency": log_frequency,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        for name in ("counts", "log_frequency"):
            tensor = state[name]
            if tensor is not None and tensor.shape != self.counts.shape:
                raise ValueError(
                    f"{name} of the first batches in the state has shape {tuple(tensor.shape)}, "
                    f"expected {tuple(self.counts.shape)}"
                )
        if bool((state["counts"] < 0).any()) or state["counts"].is_floating_point():
            raise ValueError("counts of the first batches in the state are damaged")
        self.counts, self.n_batches = state["counts"].clone(), int(state["n_batches"])
        self.log_frequency = state["log_frequency"]


def even(n_classes: int) -> Tensor:
    """Log-frequencies of classes that are all as frequent, (C,)."""
    return torch.full((n_classes,), -math.log(n_classes))
