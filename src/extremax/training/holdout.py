"""Rows held out to watch a run."""

from __future__ import annotations

import numpy as np

from extremax.random import Stream

# Fewer held-out rows than this say nothing worth stopping for.
_FEWEST = 50
_HOLDOUT = 3


def holdout(
    labels: np.ndarray, fraction: float, seed: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, held-out rows in random order), of all rows or of the given ones.

    The first row of each class always trains: a class must not lose its only example. None is
    held out when that would leave fewer than 50 rows.
    """
    rows = np.arange(len(labels)) if rows is None else rows
    chance = Stream.of(seed, _HOLDOUT, rows=rows).uniform(1)[:, 0]
    first = np.zeros(len(rows), bool)
    first[np.unique(labels[rows], return_index=True)[1]] = True
    out = (chance < fraction) & ~first
    if out.sum() < _FEWEST:
        return rows, rows[:0]
    return rows[~out], rows[out][np.argsort(chance[out], kind="stable")]
