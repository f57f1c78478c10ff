"""The contract of a sublinear search: candidate classes of each row, and what they score.

A searcher proposes classes; the blend (`extremax.prediction.blend`), which owns the logits formula,
turns its sums link(ξ) + Σ_l a_l log q_l into logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from extremax.rows import Rows

#: The fewest rows that are worth a thread: some 2 ms of Python go with a block.
ROWS_ALONE = 512
#: What an objective makes of scores at prediction: `Objective.link`.
Link = Callable[[torch.Tensor], torch.Tensor]


class Candidates(NamedTuple):
    """Candidates of a block of rows.

    rows:      the block.
    sums:      link(ξ) + Σ_l a_l log q_l of each candidate, (n, j); −∞ in unused places.
    classes:   the classes in some columns (n, k) of the sums; in unused places −1 or any class.
    log_mass:  log of the probability that all candidates of a row have together, (n, 1); 0 where
               the search takes them for all there is.
    scores:    link(ξ) of the classes asked for besides, (n, m), or of what stands for all classes
               that are no candidates, where the searcher `knows_rest`; −∞ in unused places.
    """

    rows: slice
    sums: torch.Tensor
    classes: Callable[[torch.Tensor], torch.Tensor]
    log_mass: torch.Tensor | float
    scores: torch.Tensor


class Searcher(ABC):
    """Finds the likely classes of rows without scoring all of them."""

    #: How log-probabilities of candidates are normalized, in words.
    normalization: str
    #: How wide to search if the caller does not say.
    default_width: int
    #: Whether `predict` searches by default, rather than scoring every class.
    preferred: bool = False
    #: Whether it says what stands for the classes that are no candidates, so that none need be
    #: asked for besides.
    knows_rest: bool = False
    #: Whether threads take blocks of rows, each alone and with all that is done with what it finds,
    #: a multiple of `ROWS_ALONE` rows at a time; otherwise all threads share a block. What is found
    #: for a row must not depend on the block.
    searches_alone: bool = False

    def fits(self, weights: np.ndarray, link: Link) -> bool:
        """Whether it can search by these logits; see `candidates`."""
        return True

    @abstractmethod
    def candidates(
        self, rows: Rows, k: int, width: int, weights: np.ndarray, link: Link,
        also: torch.Tensor | None = None,
    ) -> Iterator[Candidates]:  # fmt: skip
        """Blocks of rows with at least k candidates each, fewer only if there are no more classes.

        weights:  a_l, the weight of each level of log q; empty where log q plays no part.
        also:     classes (m,) to score on every row besides.
        """
