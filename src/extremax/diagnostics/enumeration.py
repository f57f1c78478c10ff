"""All the draws that a small noise can make, with their probabilities."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from extremax.objectives.base import Objective, Pairs

# Multisets of draws, each m numbers: more take minutes and gigabytes.
_MOST = 500_000


class Draws(NamedTuple):
    """Every multiset of m draws, (n, m), and how likely it is, (n,)."""

    labels: Tensor
    probability: Tensor


def all_draws(q: Tensor, m: int) -> Draws:
    """m independent draws from q, their order forgotten; classes without probability left out."""
    q = q.double()
    if (
        q.ndim != 1
        or not bool((q >= 0).all())
        or not math.isclose(float(q.sum()), 1.0, abs_tol=1e-6)
    ):
        raise ValueError("q must be one distribution over classes: not negative, summing to one")
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}")
    classes = torch.nonzero(q)[:, 0].tolist()
    n = math.comb(len(classes) + m - 1, m)
    if n > _MOST:
        raise ValueError(
            f"{m} draws from {len(classes)} classes are {n:,} different ones, over {_MOST:,}; "
            "enumeration is for small problems"
        )
    labels = torch.tensor(list(combinations_with_replacement(classes, m)))
    # The multinomial coefficient: labels are sorted, so equal ones are neighbors.
    log_ways = torch.full((n,), math.lgamma(m + 1), dtype=torch.float64)
    run = torch.ones(n, dtype=torch.float64)
    for j in range(1, m):
        run = torch.where(labels[:, j] == labels[:, j - 1], run + 1.0, 1.0)
        log_ways -= run.log()
    log_p = log_ways + q.log()[labels].sum(1)
    return Draws(labels, log_p.exp())


def pairs_of(objective: Objective, scores: Tensor, q: Tensor, truth: int, draws: Tensor) -> Pairs:
    """What the objective sees of an example of class ``truth`` when these classes are drawn."""
    classes = torch.cat([torch.full((len(draws), 1), truth), draws], 1)
    local = objective.per_example_start(len(draws)).to(scores.dtype)
    return Pairs(scores[classes], q.log()[classes], draws == truth, local)
