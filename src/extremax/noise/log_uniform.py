"""Log-uniform noise: the class of frequency rank r ≥ 0 has q = log((r + 2)/(r + 1)) / log(C + 1).

Zipf's law over the ranking of classes by frequency. Only ranks matter, not counts, so that q of a
frequent class is lower and of a rare class higher than under `FrequencyNoise`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from extremax.noise.base import Draw, TableNoise, filled
from extremax.random import Stream
from extremax.rows import Needs, Sizes
from extremax.tensors import Tensors


class LogUniformNoise(TableNoise):
    """q falls like 1/rank. Drawn in O(1) from a formula in float64, exact enough for 10⁷ classes.

    Equally frequent classes are ranked by number, classes without examples come last, and classes
    that appear after the fit (`extend`) get the ranks after them.
    """

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        counts = np.bincount(labels[rows], minlength=n_classes)
        self._set(torch.from_numpy(np.argsort(-counts, kind="stable")))

    def _set(self, by_rank: torch.Tensor) -> None:
        self.n_classes_ = len(by_rank)
        self.by_rank_ = by_rank
        ranks = np.arange(self.n_classes_, dtype=np.float64)
        log_q = np.log(np.log1p(1.0 / (ranks + 1.0)) / math.log(self.n_classes_ + 1.0))
        self.log_q_ = torch.empty(self.n_classes_)
        self.log_q_[by_rank] = torch.from_numpy(log_q.astype(np.float32))

    def sample(self, context: Any, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu.log_uniform import draw_log_uniform

        labels = filled(
            draw_log_uniform, (len(stream.rows), m), 4096,
            self.by_rank_.numpy(), stream.key, stream.rows, dtype=torch.int64,
        )  # fmt: skip
        return Draw(labels, self.log_q_[labels])

    def extend(self, n_classes: int) -> None:
        super().extend(n_classes)
        self._set(torch.cat([self.by_rank_, torch.arange(len(self.by_rank_), n_classes)]))

    def state(self) -> dict[str, torch.Tensor]:
        return {"by_rank": self.by_rank_}

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        tensors.permutation("by_rank", n_classes)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._set(state["by_rank"])

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        # Ranks and log q.
        return Needs(12.0 * sizes.classes, 24.0 * sizes.rows, 8.0 * sizes.classes)
