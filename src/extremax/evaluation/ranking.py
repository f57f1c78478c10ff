"""Figures of ranked classes for rows with several labels, tallied block by block.

A row has the labels Y; h_j is 1 where the class on rank j is among them, else 0. Averaged over
the rows that have a label:

    precision@k  =  Σ_{j≤k} h_j / k
    recall@k     =  Σ_{j≤k} h_j / |Y|
    nDCG@k       =  Σ_{j≤k} h_j / log₂(j + 1)  /  Σ_{j≤min(k,|Y|)} 1 / log₂(j + 1)

Propensity-scored precision@k counts a hit as 1 / p_l, as rare labels are missing from the data
more often (Jain, Prabhu & Varma 2016), and divides by the most that can be reached:

    PSP@k  =  Σ_rows Σ_{j≤k} h_j / p_l(j)  /  Σ_rows (sum of the k largest 1 / p_l, l in Y)
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from extremax.labels import LabelLists

# The values Jain et al. give for data in general.
_A, _B = 0.55, 1.5


def inverse_propensity(counts: np.ndarray, n_rows: int) -> np.ndarray:
    """1 / p_l = 1 + C (N_l + B)^−A, with C = (log N − 1)(B + 1)^A.

    counts:  N_l, how many rows of training have the label.
    n_rows:  N, the rows of training. Below e of them C would be negative, and is 0.
    """
    scale = max(0.0, np.log(max(n_rows, 1)) - 1) * (_B + 1) ** _A
    return 1 + scale * (np.asarray(counts, dtype=np.float64) + _B) ** -_A


def _nothing() -> np.ndarray:
    return np.zeros(1)


@dataclass(frozen=True, eq=False)
class RankingTally:
    """Sums that add up over blocks. Place k − 1 of an array is the figure at k."""

    rows: int = 0
    hits: np.ndarray = field(default_factory=_nothing)
    found: np.ndarray = field(default_factory=_nothing)
    gain: np.ndarray = field(default_factory=_nothing)
    scored: np.ndarray = field(default_factory=_nothing)
    best_scored: np.ndarray = field(default_factory=_nothing)

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
        return self.hits / np.arange(1, len(self.hits) + 1) / max(self.rows, 1)

    @property
    def recall(self) -> np.ndarray:
        return self.found / max(self.rows, 1)

    @property
    def ndcg(self) -> np.ndarray:
        return self.gain / max(self.rows, 1)

    @property
    def scored_precision(self) -> np.ndarray:
        """Propensity-scored precision, of the best possible."""
        return self.scored / np.where(self.best_scored > 0, self.best_scored, 1)


def tally_ranking(
    ranked: np.ndarray, truth: LabelLists, counts: np.ndarray, n_rows: int
) -> RankingTally:
    """Sums for one block, at every k up to the number of ranks.

    ranked:  (n, k) indices of classes, best first; −1 for none.
    truth:   the indices of each row's labels; −1 for a class the model has not, which is never
             found. Rows without a label are left out.
    counts:  by index, how many of the ``n_rows`` rows of training have the class.
    """
    if len(ranked) != len(truth):
        raise ValueError(f"{len(ranked)} rows are ranked but {len(truth)} have labels")
    labeled = truth.counts > 0
    ranked, truth = ranked[labeled], truth[labeled]
    k = ranked.shape[1]
    sizes = truth.counts
    hit = _hits(ranked, truth)
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)[np.minimum(np.arange(1, k + 1), sizes[:, None]) - 1]
    found = np.cumsum(hit, axis=1)
    weight = _weights(ranked, counts, n_rows)
    return RankingTally(
        len(ranked),
        found.sum(0).astype(np.float64),
        (found / sizes[:, None]).sum(0),
        (np.cumsum(hit * discount, axis=1) / ideal).sum(0),
        np.cumsum((hit * weight).sum(0)),
        _best(truth, _weights(truth.values, counts, n_rows), k),
    )


def _hits(ranked: np.ndarray, truth: LabelLists) -> np.ndarray:
    """(n, k): whether the class on each rank is a label of the row."""
    width = 1 + max(ranked.max(initial=0), truth.values.max(initial=0))
    # One number for each (row, class).
    pairs = truth.rows * width + truth.values
    asked = np.arange(len(ranked))[:, None] * width + ranked
    return (ranked >= 0) & np.isin(asked, pairs[truth.values >= 0])


def _weights(index: np.ndarray, counts: np.ndarray, n_rows: int) -> np.ndarray:
    """1 / p of each class; one that the model has not had no row of training."""
    return inverse_propensity(np.where(index >= 0, counts[index], 0), n_rows)


def _best(truth: LabelLists, weights: np.ndarray, k: int) -> np.ndarray:
    """For each k, the sum over rows of the k largest weights of a row's labels."""
    order = np.lexsort((-weights, truth.rows))
    rank = np.arange(len(weights)) - np.repeat(truth.indptr[:-1], truth.counts)
    some = rank < k
    return np.cumsum(np.bincount(rank[some], weights[order][some], minlength=k))
