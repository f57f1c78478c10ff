"""Ranking metrics for rows with one or several labels, accumulated block by block.

A row has the labels Y; h_j is 1 if the class at rank j is among them, else 0. Averaged over the
rows with at least one label:

    precision@k  =  Σ_{j≤k} h_j / k
    recall@k     =  Σ_{j≤k} h_j / |Y|
    nDCG@k       =  Σ_{j≤k} h_j / log₂(j + 1)  /  Σ_{j≤min(k,|Y|)} 1 / log₂(j + 1)

Propensity-scored precision@k counts a hit as 1 / p_l, because rare labels are missing from the data
more often (Jain, Prabhu & Varma 2016), and divides by the highest value that any ranking reaches:

    PSP@k  =  Σ_rows Σ_{j≤k} h_j / p_l(j)  /  Σ_rows (sum of the k largest 1 / p_l, l in Y)
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from extremax.errors import ArgumentError
from extremax.labels import LabelLists

# The default values of Jain et al.
_A, _B = 0.55, 1.5


def inverse_propensity(counts: np.ndarray, n_rows: int) -> np.ndarray:
    """1 / p_l = 1 + C (N_l + B)^−A, with C = (log N − 1)(B + 1)^A (Jain et al. 2016).

    counts:  N_l, training rows with label l.
    n_rows:  N, training rows. For N < e, C would be negative and is set to 0.
    """
    scale = max(0.0, np.log(max(n_rows, 1)) - 1) * (_B + 1) ** _A
    return 1 + scale * (np.asarray(counts, dtype=np.float64) + _B) ** -_A


def _zero() -> np.ndarray:
    return np.zeros(1)


@dataclass(frozen=True, eq=False)
class RankingTally:
    """Sums over rows, which add up over blocks. Element k − 1 of an array is the value at k.

    rows:         rows with a label.
    hits:         labels among the k best classes.
    recalled:     share of the row's labels among the k best classes.
    gain:         nDCG.
    scored:       propensity-weighted hits.
    best_scored:  the highest value that ``scored`` could have.
    """

    rows: int = 0
    hits: np.ndarray = field(default_factory=_zero)
    recalled: np.ndarray = field(default_factory=_zero)
    gain: np.ndarray = field(default_factory=_zero)
    scored: np.ndarray = field(default_factory=_zero)
    best_scored: np.ndarray = field(default_factory=_zero)

    def __add__(self, other: RankingTally) -> RankingTally:
        return RankingTally(*(a + b for a, b in zip(self._values(), other._values(), strict=True)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankingTally):
            return NotImplemented
        pairs = zip(self._values(), other._values(), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    def _values(self) -> list[Any]:
        return [getattr(self, f.name) for f in fields(self)]

    @property
    def precision(self) -> np.ndarray:
        """Mean share of the k best classes that are labels of their row."""
        return self.hits / np.arange(1, len(self.hits) + 1) / max(self.rows, 1)

    @property
    def recall(self) -> np.ndarray:
        """Mean share of a row's labels that are among its k best classes."""
        return self.recalled / max(self.rows, 1)

    @property
    def ndcg(self) -> np.ndarray:
        """Mean normalized discounted cumulative gain."""
        return self.gain / max(self.rows, 1)

    @property
    def scored_precision(self) -> np.ndarray:
        """Propensity-scored precision, relative to the best possible ranking."""
        return self.scored / np.where(self.best_scored > 0, self.best_scored, 1)


def tally_ranking(
    ranked: np.ndarray, truth: LabelLists, counts: np.ndarray, n_rows: int
) -> RankingTally:
    """Sums for one block, at every k up to the number of ranks.

    ranked:  (n, k) class numbers, best first; −1 for unused ranks.
    truth:   class numbers of each row's labels; −1 for a label that training never saw, which
             counts as missed. Rows without labels are ignored.
    counts:  training rows per class.
    n_rows:  training rows.
    """
    if len(ranked) != len(truth):
        raise ArgumentError(f"ranked has {len(ranked)} rows but truth has {len(truth)}")
    labeled = truth.counts > 0
    ranked, truth = ranked[labeled], truth[labeled]
    k = ranked.shape[1]
    sizes = truth.counts
    hit = hits(ranked, truth)
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)[np.minimum(np.arange(1, k + 1), sizes[:, None]) - 1]
    n_hits = np.cumsum(hit, axis=1)
    weights = _class_weights(ranked, counts, n_rows)
    return RankingTally(
        len(ranked),
        n_hits.sum(0).astype(np.float64),
        (n_hits / sizes[:, None]).sum(0),
        (np.cumsum(hit * discount, axis=1) / ideal).sum(0),
        np.cumsum((hit * weights).sum(0)),
        _best_scored(truth, _class_weights(truth.values, counts, n_rows), k),
    )


def hits(ranked: np.ndarray, truth: LabelLists) -> np.ndarray:
    """(n, k): whether the class at each rank is a label of the row."""
    width = 1 + max(ranked.max(initial=0), truth.values.max(initial=0))
    # One number per (row, class) pair.
    labels = truth.rows * width + truth.values
    predictions = np.arange(len(ranked))[:, None] * width + ranked
    return (ranked >= 0) & np.isin(predictions, labels[truth.values >= 0])


def _class_weights(classes: np.ndarray, counts: np.ndarray, n_rows: int) -> np.ndarray:
    """1 / p of each class; the class −1 has no training rows."""
    return inverse_propensity(np.where(classes >= 0, counts[classes], 0), n_rows)


def _best_scored(truth: LabelLists, weights: np.ndarray, k: int) -> np.ndarray:
    """For each k, the sum over rows of the k largest weights of a row's labels."""
    order = np.lexsort((-weights, truth.rows))
    rank = np.arange(len(weights)) - np.repeat(truth.indptr[:-1], truth.counts)
    top = rank < k
    return np.cumsum(np.bincount(rank[top], weights[order][top], minlength=k))
