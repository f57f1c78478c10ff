"""The evaluator: exact figures of a model on labeled rows, for one label per row or several.

Every figure that the package reports comes from here: `score`, `evaluate`, the command line,
comparisons, diagnostics, and the held-out figures of training.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from extremax.errors import ArgumentError
from extremax.evaluation.macro import ClassTally, tally_classes
from extremax.evaluation.marginals import MarginalTally, tally_marginals
from extremax.evaluation.ranking import RankingTally, hits, tally_ranking
from extremax.heads import Ranking
from extremax.labels import LabelLists, is_multilabel, label_array, label_lists, one_label_per_row
from extremax.model import Model
from extremax.prediction.limits import by_marginals
from extremax.prediction.marginals import N_BEST
from extremax.rows import Rows

# Ranks that are tallied, if not more are asked for.
TOP = 5


@dataclass(frozen=True)
class Evaluation:
    """Figures of a model on labeled rows; those of several blocks add up.

    A label that training never saw is never found, and the log-likelihood, which would be minus
    infinity, leaves it out. Rows without a label count for nothing.

    rows:       rows with a label.
    labels:     pairs of a row and one of its labels: as many as rows with one label per row.
    unseen:     pairs whose label training never saw.
    log_prob:   sum of log p(label | row) over the other pairs.
    ranking:    sums for precision, recall, nDCG and propensity-scored precision at 1 to 5 or more.
    by_class:   sums for macro recall and coverage at the same ranks.
    marginals:  sums for Brier score and calibration error at the same ranks, of the probabilities
                that the best classes are labels of their rows.
    """

    labels: int = 0
    unseen: int = 0
    log_prob: float = 0.0
    ranking: RankingTally = field(default_factory=RankingTally)
    by_class: ClassTally = field(default_factory=ClassTally)
    marginals: MarginalTally = field(default_factory=MarginalTally)

    def __repr__(self) -> str:
        # With several labels per row, the best five classes may have some of them.
        at_five = "top5_accuracy" if self.labels == self.rows else "recall_at_5"
        return (
            f"Evaluation(rows={self.rows}, labels={self.labels}, unseen={self.unseen}, "
            f"accuracy={self.accuracy:.4f}, {at_five}={self.top5_accuracy:.4f}, "
            f"log_likelihood={self.log_likelihood:.4f})"
        )

    def __add__(self, other: Evaluation) -> Evaluation:
        names = [f.name for f in fields(self)]
        return Evaluation(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def rows(self) -> int:
        return self.ranking.rows

    @property
    def accuracy(self) -> float:
        """Share of rows whose most probable class is a label: precision at 1."""
        return float(self.ranking.precision[0])

    @property
    def top5_accuracy(self) -> float:
        """Mean share of a row's labels among its five most probable classes: recall at 5."""
        return float(self.ranking.recall[:TOP][-1])

    @property
    def log_likelihood(self) -> float:
        """Mean log p(label | row) over labels that training saw."""
        seen = self.labels - self.unseen
        return self.log_prob / seen if seen else float("-inf")


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What a model says about each row: its best classes, and log p of the row's labels.

    truth:      class numbers of each row's labels, −1 for a label that training never saw.
    log_prob:   log p of each of ``truth.values``, −∞ for −1.
    marginals:  probability that each of the best classes is a label of the row.
    """

    ranking: Ranking
    truth: LabelLists
    log_prob: np.ndarray
    marginals: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        """Whether the most probable class of each row is one of its labels."""
        return is_correct(self.ranking.labels[:, 0].numpy(), self.truth)

    @property
    def accuracy(self) -> float:
        """Share of the rows with labels whose most probable class is one of them."""
        return float(self.correct[self.truth.counts > 0].mean())

    @property
    def log_likelihood(self) -> float:
        """Mean log p(label | row) over labels that training saw."""
        seen = self.log_prob[self.truth.values >= 0]
        return float(seen.mean()) if len(seen) else float("-inf")

    @property
    def confidence(self) -> np.ndarray:
        """Probability that the most probable class of each row is a label of it."""
        return self.marginals[:, 0]


def is_correct(best: np.ndarray, truth: LabelLists) -> np.ndarray:
    """Whether the best class of each row is one of its labels."""
    hits = np.zeros(len(truth), bool)
    hits[truth.rows[np.repeat(best, truth.counts) == truth.values]] = True
    return hits


def class_lists(model: Model, y: Any, n_rows: int) -> LabelLists:
    """Class numbers of each row's labels: y has one label per row or, as lists or an indicator
    matrix, several."""
    if is_multilabel(y):
        lists = label_lists(y, n_rows)
    else:
        lists = one_label_per_row(label_array(y))
        if len(lists) != n_rows:
            raise ArgumentError(f"X has {n_rows} rows but y has {len(lists)} labels")
    return LabelLists(model.labels.encode(lists.values), lists.indptr)


def outcomes(model: Model, rows: Rows, truth: LabelLists, budget: int, k: int = TOP) -> Outcomes:
    """Score every class and compare with the truth."""
    n_best = k if model.marginals is None else max(k, N_BEST)
    ranking, log_prob = model.rank_and_score(rows, truth, n_best, budget)
    marginals = model.marginal_probs(ranking, ranking.log_probs)
    if model.marginals is not None:
        ranking, marginals = by_marginals(ranking, marginals, k)
    return Outcomes(ranking, truth, log_prob.double().numpy(), marginals.numpy())


def evaluate(model: Model, rows: Rows, truth: LabelLists, budget: int) -> Evaluation:
    """Exact figures on rows whose labels are class numbers, −1 for labels never seen."""
    return summarize(model, outcomes(model, rows, truth, budget))


def summarize(model: Model, result: Outcomes, k: int = TOP) -> Evaluation:
    """Sums over rows, for figures at 1 to k, at least 5; there may be fewer classes."""
    truth, seen = result.truth, result.truth.values >= 0
    ranked = np.full((len(truth), max(k, TOP)), -1)
    n_ranks = min(ranked.shape[1], result.ranking.labels.shape[1])
    ranked[:, :n_ranks] = result.ranking.labels[:, :n_ranks].numpy()
    labeled = truth.counts > 0
    hit = hits(ranked[labeled], truth[labeled])
    marginals = np.zeros(ranked.shape)
    marginals[:, :n_ranks] = result.marginals[:, :n_ranks]
    return Evaluation(
        len(truth.values),
        int((~seen).sum()),
        float(result.log_prob[seen].sum()),
        tally_ranking(ranked, truth, model.labels.counts, model.labels.n_rows),
        tally_classes(ranked, truth),
        tally_marginals(marginals[labeled], hit, ranked[labeled] >= 0),
    )
