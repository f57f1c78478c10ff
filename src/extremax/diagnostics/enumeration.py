"""Every set of draws that a small noise can produce, with its probability."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from extremax.errors import ArgumentError
from extremax.objectives.base import Objective, Pairs

# Multisets of m draws; more would take minutes and gigabytes.
_MAX_MULTISETS = 500_000


class Draws(NamedTuple):
    """Every multiset of m draws, (n, m), and its probability, (n,)."""

    labels: Tensor
    probability: Tensor


def all_draws(q: Tensor, m: int) -> Draws:
    """Enumerate m independent draws from q regardless of order, without classes of q = 0."""
    q = _distribution(q)
    if m < 1:
        raise ArgumentError(f"m must be at least 1, got {m}")
    classes = torch.nonzero(q)[:, 0].tolist()
    n = math.comb(len(classes) + m - 1, m)
    if n > _MAX_MULTISETS:
        raise ArgumentError(
            f"{m} draws from {len(classes)} classes have {n:,} possible outcomes, more than "
            f"{_MAX_MULTISETS:,}; enumeration is for small problems"
        )
    labels = torch.tensor(list(combinations_with_replacement(classes, m)))
    # The multinomial coefficient; each row of labels is sorted, so equal ones are adjacent.
    log_ways = torch.full((n,), math.lgamma(m + 1), dtype=torch.float64)
    run = torch.ones(n, dtype=torch.float64)
    for j in range(1, m):
        run = torch.where(labels[:, j] == labels[:, j - 1], run + 1.0, 1.0)
        log_ways -= run.log()
    log_p = log_ways + q.log()[labels].sum(1)
    return Draws(labels, log_p.exp())


def noise_for(objective: Objective, q: Tensor, truth: int) -> Tensor:
    """What an example of class ``truth`` is compared with: q, or q over the other classes."""
    q = _distribution(q)
    if not objective.draws_others or len(q) == 1:
        return q
    others = q.clone()
    others[truth] = 0.0
    return others / others.sum()


def make_pairs(objective: Objective, scores: Tensor, q: Tensor, truth: int, draws: Tensor) -> Pairs:
    """`Pairs` of an example of class ``truth`` for each row of classes drawn from `noise_for`."""
    true = torch.full((len(draws), 1), truth)
    log_q = torch.cat([q.log()[true], noise_for(objective, q, truth).log()[draws]], 1)
    per_example = objective.per_example_start(len(draws)).to(scores.dtype)
    return Pairs(scores[torch.cat([true, draws], 1)], log_q, draws == truth, per_example)


def _distribution(q: Tensor) -> Tensor:
    """q in float64, or an ArgumentError."""
    q = q.double()
    if (
        q.ndim != 1
        or not bool((q >= 0).all())
        or not math.isclose(float(q.sum()), 1.0, abs_tol=1e-6)
    ):
        raise ArgumentError("q must be one distribution over classes: nonnegative, with sum 1")
    return q
