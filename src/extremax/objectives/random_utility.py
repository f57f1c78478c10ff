"""Random utility: p(y) = P(ξ_y + ε_y is the largest), for every class.

With t the largest utility, and independent ε of density φ and distribution function Φ,

    p(y) = ∫ h(t − ξ_y) Π_y' Φ(t − ξ_y') dt,   h = φ/Φ.

The product does not depend on y, and the integral is a smooth function of ξ_y. So the scores of a
row are counted in cells, two small tables give the product and the integral at every cell, and
log p of every class is interpolated between cells: O(C) per row, far less than sampling ε for each
class. The trapezoid rule converges exponentially for these integrands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Number of scores processed at a time.
BLOCK_SIZE = 1 << 18
# Width of a cell of scores.
_CELL_WIDTH = 0.02

Function = Callable[[Tensor], Tensor]


class Tables(NamedTuple):
    """log Φ(t − ξ), (cells, points), and h(t − ξ), (points, cells), for a largest score of 0."""

    log_cdf: Tensor
    hazard: Tensor


def build_tables(
    log_density: Function,
    log_cdf: Function,
    *,
    depth: float,
    low: float,
    high: float,
    step: float,
) -> Tables:
    """Tabulate log Φ and h.

    depth:            gap to the largest score covered by cells; for larger gaps log p is
                      extrapolated by a parabola.
    low, high, step:  integration grid of t.
    """
    gap = _CELL_WIDTH * torch.arange(round(depth / _CELL_WIDTH) + 1, dtype=torch.float64)
    t = gap[:, None] + torch.arange(low, high, step, dtype=torch.float64)
    return Tables(log_cdf(t), torch.exp(log_density(t) - log_cdf(t)).T.contiguous())


def log_probabilities(scores: Tensor, tables: Tables) -> Tensor:
    """log p(y) of every class, (n, C), in place."""
    for rows in scores.split(max(1, BLOCK_SIZE // scores.shape[1])):
        top = rows.amax(1, keepdim=True)
        counts = torch.zeros(len(rows), len(tables.log_cdf), dtype=torch.float64)
        for block in rows.split(BLOCK_SIZE, dim=1):
            cell, offset = _cells(top - block, len(tables.log_cdf))
            offset.clamp_(max=1.0)
            counts.scatter_add_(1, cell, 1.0 - offset).scatter_add_(1, cell + 1, offset)
        log_product = counts @ tables.log_cdf
        product = torch.exp(log_product - log_product.amax(1, keepdim=True))
        curve = torch.log(product @ tables.hazard)
        first, second = curve.diff(dim=1), curve.diff(n=2, dim=1)
        for block in rows.split(BLOCK_SIZE, dim=1):
            cell, offset = _cells(top - block, len(tables.log_cdf))
            slope = first.gather(1, cell) + 0.5 * (offset - 1.0) * second.gather(1, cell)
            block.copy_(curve.gather(1, cell) + offset * slope)
    return scores.sub_(scores.logsumexp(1, keepdim=True))


def _cells(gap: Tensor, n_cells: int) -> tuple[Tensor, Tensor]:
    """Cell of each class, and the offset of the class from the edge of the cell, in cells."""
    position = gap.double() / _CELL_WIDTH
    # A NaN goes to cell 0; its offset is NaN and makes the whole row NaN.
    cell = position.nan_to_num(nan=0.0).clamp(max=n_cells - 3).long()
    return cell, position - cell
