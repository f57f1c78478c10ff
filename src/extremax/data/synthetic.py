"""Synthetic problems with the cluster structure that makes negative sampling hard."""

from __future__ import annotations

import numpy as np

# Distance of a cluster from the origin, of a sub-cluster from its cluster, and of a class from
# its sub-cluster. Classes in the same sub-cluster are easily confused.
_SPREADS = (1.0, 0.7, 0.5)
_BLOCK_CLASSES = 4096
_BLOCK_ROWS = 8192


def clustered(
    n: int,
    n_classes: int,
    n_features: int,
    n_clusters: int | None = None,
    seed: int = 0,
    *,
    noise: float = 0.15,
    exponent: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Generate rows whose classes form clusters of sub-clusters, with power-law frequencies.

    Args:
        n: Number of rows. If it is at least ``n_classes``, every class has at least one row.
        n_classes: Number of classes.
        n_features: Number of features.
        n_clusters: Number of clusters, and of sub-clusters per cluster; None means the cube root
            of ``n_classes``, so that all levels have the same branching factor.
        seed: Seed of the random generator.
        noise: Standard deviation of each feature of a row around the center of its class. The
            centers of two classes in the same sub-cluster are about 0.7 apart, for any
            ``n_features``.
        exponent: The frequency of the class of rank r is proportional to r**−exponent.

    Returns:
        X of shape (n, n_features), float32, and y of shape (n,), int64.
    """
    rng = np.random.default_rng(seed)
    y = _draw_classes(n, n_classes, exponent, rng)
    n_clusters = n_clusters or max(1, round(n_classes ** (1 / 3)))
    clusters = _offsets(n_clusters, n_features, _SPREADS[0], rng)
    parents = np.repeat(np.arange(n_clusters), n_clusters)
    groups = clusters[parents] + _offsets(len(parents), n_features, _SPREADS[1], rng)
    group_of = rng.permutation(np.arange(n_classes) % len(groups))

    X = np.empty((n, n_features), dtype=np.float32)
    # Class by class, so that only one block of class centers is in memory.
    order = np.argsort(y, kind="stable")
    for first in range(0, n_classes, _BLOCK_CLASSES):
        block = group_of[first : first + _BLOCK_CLASSES]
        centers = groups[block] + _offsets(len(block), n_features, _SPREADS[2], rng)
        begin, end = np.searchsorted(y, [first, first + len(block)], sorter=order)
        for start in range(begin, end, _BLOCK_ROWS):
            rows = order[start : min(start + _BLOCK_ROWS, end)]
            values = rng.standard_normal((len(rows), n_features), dtype=np.float32)
            values *= np.float32(noise)
            values += centers[y[rows] - first]
            X[rows] = values
    return X, y


def _offsets(count: int, n_features: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Draw random vectors of length about ``spread``, for any number of features."""
    offsets = rng.standard_normal((count, n_features), dtype=np.float32)
    offsets *= np.float32(spread / np.sqrt(n_features))
    return offsets


def _draw_classes(n: int, n_classes: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """Draw classes with power-law frequencies, in random order."""
    weights = np.arange(1, n_classes + 1, dtype=np.float64) ** -exponent
    rng.shuffle(weights)  # The frequency of a class does not depend on its index.
    every_class = np.arange(n_classes if n >= n_classes else 0)
    drawn = rng.choice(n_classes, size=n - len(every_class), p=weights / weights.sum())
    y = np.concatenate([every_class, drawn]).astype(np.int64)
    rng.shuffle(y)
    return y
