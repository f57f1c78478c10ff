"""Exact figures of a model on labelled rows, tallied block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier


@dataclass(frozen=True)
class Tally:
    """Counts that add up over blocks. Rows of unseen classes are counted, and count as wrong;
    the log-likelihood, which would be minus infinity, leaves them out."""

    rows: int = 0
    unseen: int = 0
    correct: int = 0
    in_top: int = 0
    log_prob: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.rows + other.rows,
            self.unseen + other.unseen,
            self.correct + other.correct,
            self.in_top + other.in_top,
            self.log_prob + other.log_prob,
        )

    @property
    def accuracy(self) -> float:
        return self.correct / max(self.rows, 1)

    @property
    def top_accuracy(self) -> float:
        """Share of rows whose class is among the best few."""
        return self.in_top / max(self.rows, 1)

    @property
    def log_likelihood(self) -> float:
        """Mean over rows of classes the model knows."""
        seen = self.rows - self.unseen
        return self.log_prob / seen if seen else float("-inf")


def tally(model: ExtremeClassifier, X: Any, y: Any, top: int = 5) -> Tally:
    """Figures of one block, from one look at every class.

    A class tied with the true one ranks after it.
    """
    import numpy as np
    import torch

    from extremax.kernels.cpu import threads
    from extremax.labels import label_array
    from extremax.prediction.blocks import blocks

    scorer = model._scorer
    correct = in_top = 0
    log_prob = 0.0
    with threads.limit(model.n_jobs):
        features = model.encoder_.transform(X)
        truth = torch.from_numpy(model.index_.encode(label_array(y)))
        for rows in blocks(features, scorer.bytes_a_row(), model.memory_budget):
            block = np.array(features[rows], dtype=np.float32, order="C")
            logits = scorer.logits(torch.from_numpy(block), model.noise_.context(block))
            log_p = scorer.objective.log_normalise(logits)
            known = truth[rows] >= 0
            own = log_p.gather(1, truth[rows].clamp(min=0)[:, None])
            rank = (log_p > own).sum(1)
            correct += int((known & (rank == 0)).sum())
            in_top += int((known & (rank < top)).sum())
            log_prob += float(own[:, 0].double()[known].sum())
            # Not held while the next block is scored.
            del logits, log_p
    n_unseen = int((truth < 0).sum())
    return Tally(len(truth), n_unseen, correct, in_top, log_prob)
