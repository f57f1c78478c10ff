"""Frequency noise: q(y) ∝ count(y)^power."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from extremax.errors import ArgumentError, ModelFileError
from extremax.noise.base import Draw, TableNoise, check_number, filled
from extremax.random import Stream
from extremax.rows import Needs, Sizes
from extremax.tensors import Tensors

# float64 counts exactly up to here.
_MOST_EXAMPLES = 1 << 53


class FrequencyNoise(TableNoise):
    """Class frequencies to a power, drawn in O(1) by the alias method (Walker 1977).

    A class without examples counts as one, so that it stays reachable. Everything is computed in
    float64, which is exact enough for 10⁷ classes and beyond.

    power:  1 is the class prior; word2vec used 0.75.
    """

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def check_parameters(self) -> None:
        check_number(self, "power")

    def learn(self, features: Any, labels: np.ndarray, n_classes: int, rows: np.ndarray) -> None:
        self._set(np.bincount(labels[rows], minlength=n_classes))

    def _probabilities(self, counts: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.maximum(counts, 1).astype(np.float64) ** self.power
            probabilities = weights / weights.sum()
        if not np.all(probabilities > 0.0) or not np.all(np.isfinite(probabilities)):
            raise ArgumentError(
                f"power={self.power} leaves classes with no probability; use a smaller one"
            )
        return probabilities

    def _set(self, counts: np.ndarray) -> None:
        from extremax.kernels.cpu.alias import build_alias

        probabilities = self._probabilities(counts)
        self.n_classes_ = len(counts)
        self.counts_ = torch.from_numpy(np.asarray(counts, dtype=np.int64))
        self.log_q_ = torch.from_numpy(np.log(probabilities).astype(np.float32))
        self.threshold_, self.alias_ = build_alias(probabilities)

    def sample(self, context: Any, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu.alias import draw_alias

        labels = filled(
            draw_alias, (len(stream.rows), m), 4096,
            self.threshold_, self.alias_, stream.key, stream.rows, dtype=torch.int64,
        )  # fmt: skip
        return Draw(labels, self.log_q_[labels])

    def extend(self, n_classes: int) -> None:
        super().extend(n_classes)
        self._set(np.pad(self.counts_.numpy(), (0, n_classes - len(self.counts_))))

    def state(self) -> dict[str, torch.Tensor]:
        return {"counts": self.counts_}

    def check_state(self, tensors: Tensors, n_classes: int, n_features: int) -> None:
        self._probabilities(check_counts(tensors, "counts", n_classes))

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._set(state["counts"].numpy())

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        # Counts, log q, thresholds and aliases.
        return Needs(28.0 * sizes.classes, 24.0 * sizes.rows, 8.0 * sizes.classes)


def check_counts(tensors: Tensors, name: str, n: int | None) -> np.ndarray:
    """Saved numbers of examples, n of them, whose sum is exact in float64."""
    counts = tensors.indices(name, _MOST_EXAMPLES, n)
    if counts.sum(dtype=np.float64) > _MOST_EXAMPLES:
        raise ModelFileError(f"{name} of the saved {tensors.owner} sum to more than 2^53")
    return counts
