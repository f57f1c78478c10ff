"""Softmax noise: q(y|x) = exp(ξ_y(x)) / Σ exp(ξ), the head's own softmax, exactly.

O(C) a row, what all other noises are there to avoid: the reference. With it the gradient of
sampled softmax is that of the full softmax on average (Blanc & Rendle 2018).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from extremax.checks import check_rows
from extremax.head import LinearHead
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.random import Stream

# Bytes of scores held at once, or one row of them.
_BLOCK_BYTES = 64 << 20


class SoftmaxNoise(Noise):
    """Drawn from the scores of every class; follows its head without knowing anything itself.

    method:  "inverse" inverts the distribution function: one walk over the classes for all draws
             of a row. "gumbel" takes argmax(ξ + G), G = −log(−log U), with a random number for
             each draw and class (the Gumbel-max trick): slower, m times so for m draws, and of
             the same distribution.

    Classes that appear after the fit have the scores that the head gives them.
    """

    follows_head = True
    keeps_context = False

    def __init__(self, method: str = "inverse") -> None:
        self.method = method

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> SoftmaxNoise:
        if self.method not in ("inverse", "gumbel"):
            raise ValueError(f"method must be 'inverse' or 'gumbel', got {self.method!r}")
        labels = check_labels(labels, n_classes)
        check_rows(features, labels)
        self.n_classes_ = n_classes
        return self

    def context(self, features: np.ndarray) -> torch.Tensor:
        """The features themselves."""
        return torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))

    def attach(self, head: LinearHead) -> None:
        if head.n_classes != self.n_classes_:
            raise ValueError(f"the head has {head.n_classes} classes, not {self.n_classes_}")
        self._head = head
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def refresh(self, classes: torch.Tensor) -> None:
        self._last = None

    def sample(self, context: torch.Tensor, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu import softmax
        from extremax.kernels.cpu.threads import parallel

        draw = softmax.draw_gumbel if self.method == "gumbel" else softmax.draw_inverse
        labels = torch.empty((len(context), m), dtype=torch.int64)
        log_q, log_z = torch.empty((len(context), m)), np.empty(len(context))
        for rows, scores in self._score_blocks(context):
            own, at = labels[rows].numpy(), stream.rows[rows]
            parallel(draw, len(at), 4, scores, stream.key, at, own, log_z[rows])
            parallel(softmax.log_prob, len(at), 512, scores, own, log_z[rows], log_q[rows].numpy())
        # A step asks for log q of the true classes next: the sum over all classes is still good.
        self._last = (context, torch.from_numpy(log_z))
        return Draw(labels, log_q)

    def log_prob(self, context: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        head = self._attached()
        rows, features = np.arange(len(context)), context.numpy()
        scores = head.scores(features, rows, labels.contiguous())
        return (scores - self._log_normaliser(context)[:, None]).float()

    def log_prob_all(self, context: torch.Tensor) -> torch.Tensor:
        return self._attached().scores_all(context).log_softmax(1)

    def _log_normaliser(self, context: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.softmax import log_normaliser
        from extremax.kernels.cpu.threads import parallel

        if self._last is not None and self._last[0] is context:
            return self._last[1]
        log_z = np.empty(len(context))
        for rows, scores in self._score_blocks(context):
            parallel(log_normaliser, len(scores), 4, scores, log_z[rows])
        return torch.from_numpy(log_z)

    def _score_blocks(self, context: torch.Tensor) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows and their scores of every class, in blocks that fit."""
        from extremax.kernels.cpu.softmax import TILE, score_tiles
        from extremax.kernels.cpu.threads import parallel

        head = self._attached()
        size = max(1, min(len(context), _BLOCK_BYTES // (4 * self.n_classes_)))
        buffer = np.empty((size, self.n_classes_), np.float32)
        n_tiles = -(-self.n_classes_ // TILE)
        for start in range(0, len(context), size):
            rows = slice(start, min(start + size, len(context)))
            x = (context[rows] * head.scale).numpy()
            scores = buffer[: len(x)]
            parallel(
                score_tiles, n_tiles, max(1, n_tiles // 16),
                head.table(), head.bias.numpy(), x, scores,
            )  # fmt: skip
            yield rows, scores

    def _attached(self) -> LinearHead:
        head: LinearHead | None = getattr(self, "_head", None)
        if head is None:
            raise ValueError("SoftmaxNoise follows a head: attach(head) comes before its use")
        if head.n_classes != self.n_classes_:
            raise ValueError(
                f"SoftmaxNoise has {self.n_classes_} classes and its head {head.n_classes}: "
                "grow both, and attach the head again"
            )
        return head

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes

    def state(self) -> dict[str, torch.Tensor]:
        return {"n_classes": torch.tensor(self.n_classes_)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.n_classes_ = int(state["n_classes"])
