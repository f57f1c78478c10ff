"""Uniform noise: q(y) = 1/C."""

from __future__ import annotations

import math

import numpy as np
import torch

from extremax.checks import check_rows
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.random import Stream


class UniformNoise(Noise):
    """Every class alike. Easy negatives: the model soon tells them apart and stops learning."""

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> UniformNoise:
        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        self.n_classes_ = n_classes
        return self

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        labels = torch.from_numpy((stream.uniform(m) * self.n_classes_).astype(np.int64))
        return Draw(labels, self.log_prob(context, labels))

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.full(labels.shape, -math.log(self.n_classes_))

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        return torch.full((1, self.n_classes_), -math.log(self.n_classes_))

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes

    def state(self) -> dict[str, torch.Tensor]:
        return {"n_classes": torch.tensor(self.n_classes_)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.n_classes_ = int(state["n_classes"])
