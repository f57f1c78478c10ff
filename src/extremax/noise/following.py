"""Noises whose q depends on the class vectors of a head and changes as the head trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.noise.base import Noise
from extremax.rows import as_rows

if TYPE_CHECKING:
    from extremax.heads import ClassVectors


class FollowingNoise(Noise):
    """A noise that reads dense rows and the class vectors it is attached to, and no labels."""

    follows_head = True
    needs_dense = True
    needs_no_data = True
    keeps_context = False

    _vectors: ClassVectors | None = None

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        self._vectors = None

    def context(self, features: Any) -> torch.Tensor:
        """The rows themselves as float32, without a copy where they are that already."""
        return torch.from_numpy(as_rows(features).dense().float32())

    def attach(self, vectors: ClassVectors) -> None:
        if vectors.n_classes != self.n_classes_:
            raise ArgumentError(f"the head has {vectors.n_classes} classes, not {self.n_classes_}")
        self._vectors = vectors

    def _attached(self) -> ClassVectors:
        if self._vectors is None:
            raise ArgumentError(
                f"{type(self).__name__} follows a head: call attach(head.vectors) before using it"
            )
        return self._vectors

    @property
    def n_features_read(self) -> int | None:
        return None if self._vectors is None else self._vectors.weight.shape[1]

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state(state)
        self._vectors = None
