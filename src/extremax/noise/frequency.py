"""Frequency noise: q(y) ∝ count(y)^power."""

from __future__ import annotations

import numpy as np
import torch

from extremax.checks import check_rows, is_number
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.random import Stream


class FrequencyNoise(Noise):
    """Classes by how often they occur, to a power (word2vec used 0.75; 1 is the class prior).

    A class without examples counts as one, so that it stays reachable. Drawn in O(1) by the
    alias method (Walker 1977), in float64 throughout: right up to 10⁷ classes and beyond.
    """

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> FrequencyNoise:
        if not is_number(self.power):
            raise ValueError(f"power must be a number, got {self.power!r}")
        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        labels = labels if rows is None else labels[rows]
        self._set(np.bincount(labels, minlength=n_classes))
        return self

    def _set(self, counts: np.ndarray) -> None:
        from extremax.kernels.cpu.alias import build_alias

        weights = np.maximum(counts, 1).astype(np.float64) ** self.power
        probabilities = weights / weights.sum()
        if not np.all(probabilities > 0.0) or not np.all(np.isfinite(probabilities)):
            raise ValueError(f"power={self.power} leaves classes with no probability; use less")
        self.n_classes_ = len(counts)
        self.counts_ = torch.from_numpy(np.asarray(counts, dtype=np.int64))
        self.log_q_ = torch.from_numpy(np.log(probabilities).astype(np.float32))
        self._threshold, self._alias = build_alias(probabilities)

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu.alias import draw_alias
        from extremax.kernels.cpu.threads import parallel

        labels = np.empty((len(stream.rows), m), np.int64)
        parallel(
            draw_alias, len(labels), 4096,
            self._threshold, self._alias, stream.key, stream.rows, labels,
        )  # fmt: skip
        drawn = torch.from_numpy(labels)
        return Draw(drawn, self.log_q_[drawn])

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.log_q_[labels]

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        return self.log_q_[None]

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self._set(np.pad(self.counts_.numpy(), (0, n_classes - self.n_classes_)))

    def state(self) -> dict[str, torch.Tensor]:
        return {"counts": self.counts_}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._set(state["counts"].numpy())
