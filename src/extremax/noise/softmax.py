"""Noises drawn from the scores of every class: q(y|x) = exp(f(ξ_y)) / Σ exp(f(ξ)).

With f(ξ) = ξ, or |ξ| where the logits are absolute, q is the head's own softmax, and the expected
gradient of sampled softmax is that of the full softmax (Blanc & Rendle 2018). Scores cost O(C) per
row, which all other noises exist to avoid: the reference.
"""

from __future__ import annotations

from abc import abstractmethod
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


class ScoredNoise(FollowingNoise):
    """q ∝ exp(f(ξ)), f given by `_replace_by_log_mass`.

    Classes that appear after the fit have the scores that the head gives them.
    """

    #: How classes are drawn, see `SoftmaxNoise`.
    method: str = "inverse"

    @abstractmethod
    def _replace_by_log_mass(self, scores: np.ndarray) -> None:
        """f of scores (n, j), in place."""

    def attach(self, vectors: ClassVectors) -> None:
        super().attach(vectors)
        # The last context drawn for, and its log Σ exp(f(ξ)).
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def refresh(self, classes: torch.Tensor) -> None:
        self._last = None

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        draw, log_z, _ = self._sample(context, None, m, stream)
        # A training step asks for log q of the true classes next, which needs the same sums.
        self._last = (context, log_z)
        return draw

    def _sample_others(
        self, context: torch.Tensor, labels: torch.Tensor, m: int, stream: Stream
    ) -> Draw:
        draw, log_others, scores = self._sample(context, labels, m, stream)
        self._last = (context, torch.logaddexp(log_others, scores))
        return draw

    def _sample(
        self, context: torch.Tensor, labels: torch.Tensor | None, m: int, stream: Stream
    ) -> tuple[Draw, torch.Tensor, torch.Tensor]:
        """Draws from the classes other than the labels, if any; log Σ exp(f(ξ)) over those classes,
        and f(ξ) of the labels."""
        from extremax.kernels.cpu import softmax

        kernel = softmax.draw_gumbel if self.method == "gumbel" else softmax.draw_inverse
        draw = Draw(torch.empty((len(context), m), dtype=torch.int64), torch.empty(len(context), m))
        log_z, label_scores = torch.empty((2, len(context)), dtype=torch.float64)
        for rows, scores in self._score_blocks(context):
            if labels is not None:
                label_scores[rows] = _leave_out(scores, labels[rows])
            drawn, numbers, sums = draw.labels[rows], stream.rows[rows], log_z[rows].numpy()
            parallel(kernel, len(numbers), 4, scores, stream.key, numbers, drawn.numpy(), sums)
            draw.log_q[rows] = torch.from_numpy(scores).gather(1, drawn) - log_z[rows, None]
        return draw, log_z, label_scores

    def log_prob_others(
        self, context: torch.Tensor, labels: torch.Tensor, others: torch.Tensor
    ) -> torch.Tensor:
        from extremax.kernels.cpu.softmax import log_normalizer

        log_q = torch.empty(others.shape)
        for rows, scores in self._score_blocks(context):
            _leave_out(scores, labels[rows])
            log_z = torch.empty(len(scores), dtype=torch.float64)
            parallel(log_normalizer, len(scores), 4, scores, log_z.numpy())
            log_q[rows] = torch.from_numpy(scores).gather(1, others[rows]) - log_z[:, None]
        return log_q

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self._attached().pair_scores(
            context.contiguous().numpy(), np.arange(len(context)), labels.contiguous()
        )
        self._replace_by_log_mass(scores.numpy())
        return (scores - self._log_normalizer(context)[:, None]).float()

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        scores = self._attached().all_scores(context)
        self._replace_by_log_mass(scores.numpy())
        return scores.log_softmax(1)

    def _log_normalizer(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.softmax import log_normalizer

        if self._last is not None and self._last[0] is context:
            return self._last[1]
        log_z = np.empty(len(context))
        for rows, scores in self._score_blocks(context):
            parallel(log_normalizer, len(scores), 4, scores, log_z[rows])
        return torch.from_numpy(log_z)

    def _score_blocks(self, context: torch.Tensor) -> Iterator[tuple[slice, np.ndarray]]:
        """Blocks of rows with f(ξ) of every class, in one buffer."""
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
            self._replace_by_log_mass(scores)
            yield rows, scores

    def _attached(self) -> ClassVectors:
        vectors = super()._attached()
        if vectors.n_classes != self.n_classes_:
            raise ArgumentError(
                f"{type(self).__name__} has {self.n_classes_} classes and its head "
                f"{vectors.n_classes}: extend both, and attach the head again"
            )
        return vectors

    def needs(self, sizes: Sizes, n_threads: int) -> Needs:
        all_scores = 4.0 * sizes.classes * sizes.rows
        return Needs(kept=max(4.0 * sizes.classes, min(float(BLOCK_BYTES), all_scores)))


class SoftmaxNoise(ScoredNoise):
    """q(y|x) = exp(ξ_y) / Σ exp(ξ).

    method:    "inverse" inverts the distribution function: one pass over the classes for all draws
               of a row. "gumbel" takes argmax(ξ + G), G = −log(−log U), with one random number per
               draw and class (the Gumbel-max trick): the same distribution, m times slower for m
               draws.
    absolute:  q ∝ exp|ξ|, the softmax of `SampledSoftmax(absolute=True)`.
    """

    def __init__(self, method: str = "inverse", absolute: bool = False) -> None:
        self.method = method
        self.absolute = absolute

    def check_parameters(self) -> None:
        if self.method not in ("inverse", "gumbel"):
            raise ArgumentError(f"method must be 'inverse' or 'gumbel', got {self.method!r}")
        if not isinstance(self.absolute, bool):
            raise ArgumentError(f"absolute must be True or False, got {self.absolute!r}")

    @property
    def is_even(self) -> bool:  # type: ignore[override]
        return self.absolute

    def _replace_by_log_mass(self, scores: np.ndarray) -> None:
        if self.absolute:
            np.abs(scores, out=scores)


class QuarticNoise(ScoredNoise):
    """q(y|x) ∝ ξ_y⁴ + 1, exactly (Blanc & Rendle 2018), even in ξ.

    The features of this kernel are d⁴ numbers, too many for a tree of sums, so it is computed from
    all scores. `QuarticWalkNoise` draws in logarithmic time from something close to it.
    """

    is_even = True

    def _replace_by_log_mass(self, scores: np.ndarray) -> None:
        from extremax.kernels.cpu.softmax import log_quartic

        parallel(log_quartic, len(scores), 16, scores)


def _leave_out(scores: np.ndarray, labels: torch.Tensor) -> torch.Tensor:
    """Set the scores of one class per row to −∞, in place; returns what they were."""
    rows, columns = np.arange(len(scores)), labels[:, 0].numpy()
    taken = torch.from_numpy(scores[rows, columns]).double()
    scores[rows, columns] = -np.inf
    return taken
