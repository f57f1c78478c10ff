"""Exact answers over every class, in blocks of rows that fit a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from extremax.errors import DivergedError, MemoryBudgetError
from extremax.kernels.cpu.threads import each
from extremax.rows import Rows

# Bytes per row and class that scoring a block may take: the scores, and three more numbers while a
# noise adds its own.
BYTES_PER_SCORE = 16
_MOST_ROWS = 4096
# Slices that threads may work on at the same time, the fewest rows that are worth one, and bytes
# per row and class there: the scores, and copies of few rows of them.
_PARTS, _ROWS_ALONE, _BYTES_ALONE = 16, 16, 8
# Rows that are not worth dividing.
_FEWEST_ROWS = 4

#: log p of every class, (n, C), for one block of rows.
LogProbabilities = Callable[[Rows], torch.Tensor]


class Ranking(NamedTuple):
    """The k best classes of each row, best first, with log-probabilities."""

    labels: torch.Tensor
    log_probs: torch.Tensor


def row_slices(n_rows: int, n_classes: int, budget: int, more: int = 0) -> Iterator[slice]:
    """Slices of rows whose scores of every class fit the budget.

    more:  bytes per row and class that the caller needs besides.
    """
    per_row = (BYTES_PER_SCORE + more) * n_classes
    if per_row > budget:
        raise MemoryBudgetError(
            f"scoring one row against all classes needs {per_row:,} bytes, but memory_budget is "
            f"{budget:,}; increase memory_budget"
        )
    size = max(1, min(_MOST_ROWS, budget // per_row))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def over_rows(
    work: Callable[[slice], None], n_rows: int, n_classes: int, budget: int, more: int = 0
) -> None:
    """Call ``work`` with slices of rows, which threads take and work on alone; together their
    scores of every class fit the budget. Slices do not depend on the number of threads.

    more:  as in `row_slices`.
    """
    most = min(_MOST_ROWS, budget // ((_BYTES_ALONE + more) * n_classes)) // _PARTS
    if not most:
        # So many classes that threads share the few rows of a block.
        for block in row_slices(n_rows, n_classes, budget, more):
            work(block)
        return
    size = min(most, max(_ROWS_ALONE, n_rows // (4 * _PARTS)))
    each(lambda i: work(slice(i * size, min((i + 1) * size, n_rows))), -(-n_rows // size), _PARTS)


def eighths(n_rows: int) -> Iterator[slice]:
    """Slices of about an eighth of the rows each, or of few, for work that copies what it is
    given."""
    size = max(_FEWEST_ROWS, n_rows // 8)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def check_overflow(log_p: torch.Tensor, block: slice) -> None:
    """Refuse log-probabilities (n, j) of normalized rows that are NaN; then a whole row is."""
    bad = log_p[:, :1].isnan().nonzero()
    if len(bad):
        raise DivergedError(
            f"the scores of row {block.start + int(bad[0, 0])} overflow; its features, or the "
            "model's weights, are too large"
        )


def rank_and_score_in_blocks(
    log_probs_of: LogProbabilities,
    rows: Rows,
    n_classes: int,
    labels: np.ndarray,
    k: int,
    budget: int,
    alone: bool = False,
) -> tuple[Ranking, torch.Tensor]:
    """The k most probable classes and log p of labels (n, j), in one pass over the classes; either
    may be none.

    alone:  whether threads take rows and work alone (`over_rows`), as suits many small operations;
            otherwise they share every operation, as suits large products.
    """
    k = min(k, n_classes)
    ranked = torch.empty((len(rows), k), dtype=torch.int64)
    best, out = torch.empty((len(rows), k)), torch.empty(labels.shape)

    def answer(block: slice) -> None:
        log_p = log_probs_of(rows[block])
        check_overflow(log_p, block)
        if k:
            best[block], ranked[block] = log_p.topk(k, dim=1)
        out[block] = log_p.gather(1, torch.from_numpy(np.ascontiguousarray(labels[block])))

    if alone:
        over_rows(answer, len(rows), n_classes, budget)
    else:
        for block in row_slices(len(rows), n_classes, budget):
            answer(block)
    return Ranking(ranked, best), out
