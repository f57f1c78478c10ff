"""Rows held out to watch a run."""

from __future__ import annotations

import numpy as np

from extremax.random import Purpose, Stream

# Fewer held-out rows say nothing worth stopping for.
FEWEST = 50
# More say nothing more, and serve better in training.
MOST = 10_000


def holdout(
    labels: np.ndarray,
    fraction: float,
    seed: int,
    rows: np.ndarray | None = None,
    owner: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, held-out rows in random order), of all rows or of the given ones.

    A class must not lose all its examples: where it would, its first one trains. That is rare, so
    that rare classes are held out about as often as others, and held-out rows say how frequent
    classes are. If fewer than 50 rows would be held out, none are; no more than about 10,000 are.

    owner:  what each row is a part of; parts of one owner go the same way.
    """
    rows = np.arange(len(labels)) if rows is None else rows
    owners = rows if owner is None else owner[rows]
    chance = Stream.of(seed, Purpose.HOLDOUT, rows=owners).uniform(1)[:, 0]
    out = chance < min(fraction, MOST / max(len(rows), 1))
    classes, first = np.unique(labels[rows], return_index=True)
    lost = ~np.isin(classes, labels[rows[~out]])
    out &= ~np.isin(owners, owners[first[lost]])
    if out.sum() < FEWEST:
        return rows, rows[:0]
    return rows[~out], rows[out][np.argsort(chance[out], kind="stable")]


def expected_held_out(n_rows: int, fraction: float) -> float:
    """About how many rows `holdout` takes, for planning; fewer if many classes have one row."""
    expected = min(fraction * n_rows, float(MOST))
    return expected if expected >= FEWEST else 0.0
