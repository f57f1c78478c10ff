"""Exact figures of a model on labelled rows, tallied block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from extremax.ranking import RankingTally

if TYPE_CHECKING:
    import torch

    from extremax.classifier import ExtremeClassifier
    from extremax.label_lists import LabelLists

# Classes that are ranked where rows have several labels.
TOP = 5


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


@dataclass(frozen=True)
class SeveralTally:
    """Counts of rows with several labels, that add up over blocks. Labels of unseen classes are
    never found; the log-likelihood leaves them out."""

    ranking: RankingTally = field(default_factory=RankingTally)
    pairs: int = 0
    unseen: int = 0
    log_prob: float = 0.0

    def __add__(self, other: SeveralTally) -> SeveralTally:
        return SeveralTally(
            self.ranking + other.ranking,
            self.pairs + other.pairs,
            self.unseen + other.unseen,
            self.log_prob + other.log_prob,
        )

    @property
    def rows(self) -> int:
        return self.ranking.rows

    @property
    def log_likelihood(self) -> float:
        """Mean log p(label | row) over the pairs of a row and a label that the model knows."""
        seen = self.pairs - self.unseen
        return self.log_prob / seen if seen else float("-inf")


def tally(model: ExtremeClassifier, X: Any, y: Any, top: int = 5) -> Tally:
    """Figures of one block, from one look at every class.

    A class tied with the true one ranks after it.
    """
    import torch

    from extremax.labels import label_array

    correct = in_top = 0
    log_prob = 0.0
    truth = torch.from_numpy(model.index_.encode(label_array(y)))
    for rows, log_p in _looks(model, X):
        known = truth[rows] >= 0
        own = log_p.gather(1, truth[rows].clamp(min=0)[:, None])
        rank = (log_p > own).sum(1)
        correct += int((known & (rank == 0)).sum())
        in_top += int((known & (rank < top)).sum())
        log_prob += float(own[:, 0].double()[known].sum())
        # Not held while the next block is scored.
        del log_p
    n_unseen = int((truth < 0).sum())
    return Tally(len(truth), n_unseen, correct, in_top, log_prob)


def tally_several(model: ExtremeClassifier, X: Any, y: LabelLists) -> SeveralTally:
    """Figures of one block of rows with several labels, from one look at every class."""
    import numpy as np
    import torch

    from extremax.label_lists import LabelLists
    from extremax.ranking import tally_ranking

    truth = LabelLists(model.index_.encode(y.values), y.indptr)
    n_classes = len(model.index_)
    ranked = np.full((len(y), TOP), -1)
    log_prob = 0.0
    for rows, log_p in _looks(model, X):
        part = truth[rows]
        known = part.values >= 0
        own = log_p[torch.from_numpy(part.rows[known]), torch.from_numpy(part.values[known])]
        log_prob += float(own.double().sum())
        ranked[rows, :n_classes] = log_p.topk(min(TOP, n_classes), dim=1).indices.numpy()
        del log_p
    ranking = tally_ranking(ranked, truth, model.class_counts_, model.n_rows_)
    return SeveralTally(ranking, len(y.values), int((truth.values < 0).sum()), log_prob)


def _looks(model: ExtremeClassifier, X: Any) -> Iterator[tuple[slice, torch.Tensor]]:
    """log p of every class, for blocks of rows that fit the memory budget."""
    from extremax.kernels.cpu import threads
    from extremax.prediction.blocks import blocks, taken

    scorer = model._scorer
    with threads.limit(model.n_jobs):
        features = model.encoder_.transform(X)
        for rows in blocks(features, scorer.bytes_a_row(), model.memory_budget):
            log_p = scorer.objective.log_normalise(scorer.logits(taken(features, rows)))
            yield rows, log_p
            del log_p
