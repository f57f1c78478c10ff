"""Random utility: p(y) = P(ξ_y + ε_y is the largest), for every class at once.

With t the largest utility, and independent ε of density φ and distribution function Φ,

    p(y) = ∫ h(t − ξ_y) Π_y' Φ(t − ξ_y') dt,   h = φ/Φ.

The product does not depend on y, and the integral depends on y through ξ_y only: a smooth curve.
So the scores of a row are counted in cells, the product and the curve follow from two small
tables, and every class is read off the curve: O(C) a row, where sampling ε for each class is far
more. The trapezoid rule converges exponentially for such integrands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Width of a cell of scores.
_CELL = 0.02
# Scores taken at a time.
_AT_ONCE = 1 << 18

Function = Callable[[Tensor], Tensor]


class Tables(NamedTuple):
    """log Φ(t − ξ), (cells, points), and h(t − ξ), (points, cells), for the largest score at 0."""

    log_cdf: Tensor
    hazard: Tensor


def tables(
    log_density: Function,
    log_cdf: Function,
    *,
    depth: float,
    low: float,
    high: float,
    step: float,
) -> Tables:
    """depth: how far below the largest score others are followed; beyond, log p goes on as a
    parabola. low, high, step: of t."""
    gap = _CELL * torch.arange(round(depth / _CELL) + 1, dtype=torch.float64)
    t = torch.arange(low, high, step, dtype=torch.float64)
    at = gap[:, None] + t
    return Tables(log_cdf(at), torch.exp(log_density(at) - log_cdf(at)).T.contiguous())


def log_shares(scores: Tensor, tables: Tables) -> Tensor:
    """log p(y) of every class, (n, C), in place."""
    for rows in scores.split(max(1, _AT_ONCE // scores.shape[1])):
        top = rows.amax(1, keepdim=True)
        counts = torch.zeros(len(rows), len(tables.log_cdf), dtype=torch.float64)
        for part in rows.split(_AT_ONCE, dim=1):
            cell, beyond = _cells(top - part, len(tables.log_cdf))
            beyond.clamp_(max=1.0)
            counts.scatter_add_(1, cell, 1.0 - beyond).scatter_add_(1, cell + 1, beyond)
        log_product = counts @ tables.log_cdf
        product = torch.exp(log_product - log_product.amax(1, keepdim=True))
        curve = torch.log(product @ tables.hazard)
        first, second = curve.diff(dim=1), curve.diff(n=2, dim=1)
        for part in rows.split(_AT_ONCE, dim=1):
            cell, beyond = _cells(top - part, len(tables.log_cdf))
            slope = first.gather(1, cell) + 0.5 * (beyond - 1.0) * second.gather(1, cell)
            part.copy_(curve.gather(1, cell) + beyond * slope)
    return scores.sub_(scores.logsumexp(1, keepdim=True))


def _cells(gap: Tensor, n_cells: int) -> tuple[Tensor, Tensor]:
    """The cell of each class, and how many cells beyond its edge the class is."""
    at = gap.double() / _CELL
    # What is not a number has no cell; how far it is beyond makes its row not a number.
    cell = at.nan_to_num(nan=0.0).clamp(max=n_cells - 3).long()
    return cell, at - cell
