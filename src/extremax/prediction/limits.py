"""Rankings of some classes only: those asked for, without those that must not be answered, or with
a probability worth naming."""

from __future__ import annotations

import numpy as np
import torch

from extremax.heads import Ranking


def visible(ranking: Ranking, hidden: torch.Tensor, k: int) -> Ranking:
    """The first k classes that are not hidden, in their order; places without one have log p = −∞.

    hidden:  (n, j) which places of the ranking not to show.
    """
    # A stable sort by what is hidden keeps the others in their order.
    columns = hidden.long().argsort(dim=1, stable=True)[:, :k]
    log_probs = ranking.log_probs.masked_fill(hidden, -torch.inf)
    return Ranking(ranking.labels.gather(1, columns), log_probs.gather(1, columns))


def best_of(classes: np.ndarray, log_probs: torch.Tensor, k: int) -> Ranking:
    """The k most probable of some classes (j,), from log p of each of them, (n, j)."""
    best, columns = log_probs.topk(min(k, len(classes)), dim=1)
    return Ranking(torch.from_numpy(classes)[columns], best)


def renormalized(ranking: Ranking, log_mass: torch.Tensor) -> Ranking:
    """Probabilities given that the class is one of those that have this probability together,
    (n,)."""
    return Ranking(ranking.labels, (ranking.log_probs - log_mass[:, None]).float())


def at_least(ranking: Ranking, probabilities: torch.Tensor, threshold: float) -> Ranking:
    """log p = −∞ for classes whose probability, (n, k), is below the threshold."""
    below = probabilities < threshold
    return Ranking(ranking.labels, ranking.log_probs.masked_fill(below, -torch.inf))


def by_marginals(ranking: Ranking, marginals: torch.Tensor, k: int) -> tuple[Ranking, torch.Tensor]:
    """The k classes of the largest marginals (n, j), in their order, and these marginals.

    A row may have several labels: the best guess at one of them is the class of the largest
    marginal, which gives rare classes more than their share does (`extremax.prediction.marginals`).
    """
    marginals, columns = marginals.sort(dim=1, descending=True, stable=True)
    columns = columns[:, :k]
    best = Ranking(ranking.labels.gather(1, columns), ranking.log_probs.gather(1, columns))
    return best, marginals[:, :k]
