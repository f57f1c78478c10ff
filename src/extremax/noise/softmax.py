"""Softmax noise: q(y|x) = exp(ξ_y(x)) / Σ exp(ξ), exactly the head's own softmax.

It costs O(C) per row, which all other noises exist to avoid: the reference. With it, the expected
gradient of sampled softmax is that of the full softmax (Blanc & Rendle 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.kernels.cpu.threads import parallel
from extremax.noise.base import Draw
from extremax.noise.following import FollowingNoise
from extremax.random import Stream
from extremax.rows import Needs, Sizes

if TYPE_CHECKING:
    from extremax.heads import ClassVectors

#: Bytes of scores held at a time, or one row of them.
BLOCK_BYTES = 64 << 20


class SoftmaxNoise(FollowingNoise):
    """Drawn from the scores of every class.

    Classes that appear after the fit have the scores that the head gives them.

    method:  "inverse" inverts the distribution function: one pass over the classes for all draws
             of a row. "gumbel" takes argmax(ξ + G), G = −log(−log U), with one random number per
             draw and class (the Gumbel-max trick): the same distribution, m times slower for m
             draws.
    """

    def __init__(self, method: str = "inverse") -> None:
        self.method = method

    def check_parameters(self) -> None:
        if self.method not in ("inverse", "gumbel"):
            raise ArgumentError(f"method must be 'inverse' or 'gumbel', got {self.method!r}")

    def attach(self, vectors: ClassVectors) -> None:
        super().attach(vectors)
        # The last context drawn for, and its log Σ exp(ξ).
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def refresh(self, classes: torch.Tensor) -> None:
        self._last = None

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu import softmax

        draw = softmax.draw_gumbel if self.method == "gumbel" else softmax.draw_inverse
        labels = torch.empty((len(context), m), dtype=torch.int64)
        log_q = torch.empty((len(context), m))
        log_z = torch.empty(len(context), dtype=torch.float64)
        for rows, scores in self._score_blocks(context):
            drawn, numbers, sums = labels[rows].numpy(), stream.rows[rows], log_z[rows].numpy()
            parallel(draw, len(numbers), 4, scores, stream.key, numbers, drawn, sums)
            log_q[rows] = torch.from_numpy(scores).gather(1, labels[rows]) - log_z[rows, None]
        # A training step asks for log q of the true classes next, which needs the same sums.
        self._last = (context, log_z)
        return Draw(labels, log_q)

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self._attached().pair_scores(
            context.contiguous().numpy(), np.arange(len(context)), labels.contiguous()
        )
        return (scores - self._log_normalizer(context)[:, None]).float()

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        return self._attached().all_scores(context).log_softmax(1)

    def _log_normalizer(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.softmax import log_normalizer

        if self._last is not None and self._last[0] is context:
            return self._last[1]
        log_z = np.empty(len(context))
        for rows, scores in self._score_blocks(context):
            parallel(log_normalizer, len(scores), 4, scores, log_z[rows])
        return torch.from_numpy(log_z)

    def _score_blocks(self, context: torch.Tensor) -> Iterator[tuple[slice, np.ndarray]]:
        """Blocks of rows with their scores of every class, in one buffer."""
        from extremax.kernels.cpu.softmax import TILE, score_tiles

        vectors = self._attached()
        size = max(1, min(len(context), BLOCK_BYTES // (4 * self.n_classes_)))
        buffer = np.empty((size, self.n_classes_), np.float32)
        n_tiles = -(-self.n_classes_ // TILE)
        for start in range(0, len(context), size):
            rows = slice(start, min(start + size, len(context)))
            x = (context[rows] * vectors.scale).numpy()
            scores = buffer[: len(x)]
            parallel(
                score_tiles, n_tiles, max(1, n_tiles // 16),
                vectors.table(), vectors.bias.numpy(), x, scores,
            )  # fmt: skip
            yield rows, scores

    def _attached(self) -> ClassVectors:
        vectors = super()._attached()
        if vectors.n_classes != self.n_classes_:
            raise ArgumentError(
                f"SoftmaxNoise has {self.n_classes_} classes and its head {vectors.n_classes}: "
                "extend both, and attach the head again"
            )
        return vectors

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        all_scores = 4.0 * sizes.classes * sizes.rows
        return Needs(kept=max(4.0 * sizes.classes, min(float(BLOCK_BYTES), all_scores)))
