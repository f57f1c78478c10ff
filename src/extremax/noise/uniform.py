"""Uniform noise: q(y) = 1/C."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from extremax.checks import check_rows
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.random import Stream
from extremax.rows import Needs, Sizes
from extremax.tensors import Tensors


class UniformNoise(Noise):
    """All classes equally likely. Negatives are easy: the model soon tells them apart and then
    learns little from them."""

    needs_no_data = True

    def fit(
        self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray | None = None
    ) -> UniformNoise:
        check_rows(features, check_labels(labels, n_classes))
        self.n_classes_ = n_classes
        return self

    def sample(self, context: Any, m: int, stream: Stream) -> Draw:
        labels = torch.from_numpy((stream.uniform(m) * self.n_classes_).astype(np.int64))
        return Draw(labels, self.log_prob(context, labels))

    def log_prob(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        return torch.full(labels.shape, -math.log(self.n_classes_))

    def log_prob_all(self, context: Any) -> torch.Tensor:
        return torch.full((1, self.n_classes_), -math.log(self.n_classes_))

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes

    def state(self) -> dict[str, torch.Tensor]:
        return {"n_classes": torch.tensor(self.n_classes_)}

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        tensors.only(["n_classes"])
        tensors.integer("n_classes", n_classes, n_classes)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.n_classes_ = int(state["n_classes"])

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        return Needs()
