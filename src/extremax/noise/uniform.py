"""Uniform noise: q(y) = 1/C."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from extremax.noise.base import Draw, Noise
from extremax.random import Stream
from extremax.rows import Needs, Sizes


class UniformNoise(Noise):
    """All classes equally likely. Negatives are easy: the model soon tells them apart and then
    learns little from them."""

    needs_no_data = True

    def sample(self, context: Any, m: int, stream: Stream) -> Draw:
        labels = torch.from_numpy((stream.uniform(m) * self.n_classes_).astype(np.int64))
        return Draw(labels, self.log_prob(context, labels))

    def log_prob(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        return torch.full(labels.shape, -math.log(self.n_classes_))

    def log_prob_all(self, context: Any) -> torch.Tensor:
        return torch.full((1, self.n_classes_), -math.log(self.n_classes_))

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        return Needs()
