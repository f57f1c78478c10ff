"""How right marginal probabilities are, summed up block by block.

η_j is the probability that the class at rank j is a label of its row, h_j whether it is. Over the
ranks up to k of the rows with at least one label:

    Brier score@k  =  mean of (η_j − h_j)²
    ECE@k          =  mean over 15 bins of |mean η − mean h|    (`extremax.evaluation.reliability`)

Where rows have one label, η_j = p_j. So that blocks add up, probabilities are counted in steps of
0.01 of their log odds, and bins of about equal size are made of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from extremax.evaluation.reliability import N_BINS, Reliability, reliability_of

# Steps, and how many make one of the log odds.
_STEPS, _PER_UNIT = 4000, 100
_LEAST = 1e-12


def _nothing() -> np.ndarray:
    return np.zeros((1, 4, 1))


@dataclass(frozen=True, eq=False)
class MarginalTally:
    """Sums over rows, which add up over blocks. Element k − 1 of an array is the value at k.

    sums:     of 1, η, h and η (1 − η), by rank and step of η, (ranks, 4, steps).
    squares:  of (η − h)², by rank.
    """

    sums: np.ndarray = field(default_factory=_nothing)
    squares: np.ndarray = field(default_factory=lambda: np.zeros(1))

    def __add__(self, other: MarginalTally) -> MarginalTally:
        return MarginalTally(self.sums + other.sums, self.squares + other.squares)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarginalTally):
            return NotImplemented
        return np.array_equal(self.sums, other.sums) and np.array_equal(self.squares, other.squares)

    __hash__ = None  # type: ignore[assignment]

    @property
    def brier(self) -> np.ndarray:
        """Mean squared error of the probabilities of the k best classes."""
        return np.cumsum(self.squares) / np.maximum(np.cumsum(self.sums[:, 0].sum(1)), 1)

    @property
    def calibration_error(self) -> np.ndarray:
        """Expected calibration error of the probabilities of the k best classes."""
        return np.array([self.reliability(k).error for k in range(1, len(self.sums) + 1)])

    @property
    def calibration_error_by_chance(self) -> np.ndarray:
        """Mean of that error if every probability were right."""
        return np.array([self.reliability(k).by_chance for k in range(1, len(self.sums) + 1)])

    def reliability(self, k: int) -> Reliability:
        """Probabilities of the k best classes against what came true."""
        sums = self.sums[:k].sum(0)
        n = sums[0]
        # The bin of a step is that of its middle.
        bins = (np.cumsum(n) - n / 2) * N_BINS // max(n.sum(), 1)
        return reliability_of(*np.stack([np.bincount(bins.astype(int), row) for row in sums]))


def tally_marginals(marginals: np.ndarray, hit: np.ndarray, used: np.ndarray) -> MarginalTally:
    """Sums for one block.

    marginals:  (n, k) probabilities that the class at each rank is a label of the row.
    hit:        (n, k) whether it is.
    used:       (n, k) whether there is a class at that rank; the other two are zero if not.
    """
    eta = np.clip(marginals.astype(np.float64), _LEAST, 1.0 - _LEAST)
    log_odds = np.log(eta) - np.log1p(-eta)
    step = np.clip(np.floor(_PER_UNIT * log_odds) + _STEPS // 2, 0, _STEPS - 1).astype(np.int64)
    terms = used, marginals, hit, marginals * (1.0 - marginals)
    sums = [
        [np.bincount(step[:, j], term[:, j], minlength=_STEPS) for term in terms]
        for j in range(eta.shape[1])
    ]
    squares = np.square(marginals - hit.astype(np.float64)).sum(0)
    return MarginalTally(np.array(sums), squares)
