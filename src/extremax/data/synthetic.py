"""Made-up problems with the structure that makes negative sampling hard."""

from __future__ import annotations

import numpy as np

# Distances of a cluster from the origin, a sub-cluster from its cluster, a class from its
# sub-cluster: classes of one sub-cluster are the ones easily taken for each other.
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
    """Rows of classes in clusters of sub-clusters; returns X (float32) and y (int64).

    Args:
        n: Number of rows; if at least ``n_classes``, every class has one.
        n_classes: Number of classes.
        n_features: Number of features.
        n_clusters: Number of clusters, each of as many sub-clusters; None: the cube root of
            ``n_classes``, so that each level branches alike.
        seed: The same seed makes the same problem.
        noise: Standard deviation of a row around its class, in each feature. Classes of one
            sub-cluster are about 0.7 apart, whatever ``n_features``.
        exponent: The class of rank r has a frequency like 1 / r**exponent.
    """
    rng = np.random.default_rng(seed)
    y = _draw_classes(n, n_classes, exponent, rng)
    n_clusters = n_clusters or max(1, round(n_classes ** (1 / 3)))
    clusters = _offsets(n_clusters, n_features, _SPREADS[0], rng)
    parents = np.repeat(np.arange(n_clusters), n_clusters)
    groups = clusters[parents] + _offsets(len(parents), n_features, _SPREADS[1], rng)
    group_of = rng.permutation(np.arange(n_classes) % len(groups))

    X = np.empty((n, n_features), dtype=np.float32)
    # Rows class by class, so that only some classes' centres exist at a time.
    order = np.argsort(y, kind="stable")
    for first in range(0, n_classes, _BLOCK_CLASSES):
        block = group_of[first : first + _BLOCK_CLASSES]
        centres = groups[block] + _offsets(len(block), n_features, _SPREADS[2], rng)
        begin, end = np.searchsorted(y, [first, first + len(block)], sorter=order)
        for at in range(begin, end, _BLOCK_ROWS):
            rows = order[at : min(at + _BLOCK_ROWS, end)]
            values = rng.standard_normal((len(rows), n_features), dtype=np.float32)
            values *= np.float32(noise)
            values += centres[y[rows] - first]
            X[rows] = values
    return X, y


def _offsets(count: int, n_features: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Random directions of about the length ``spread``, in any number of features."""
    offsets = rng.standard_normal((count, n_features), dtype=np.float32)
    offsets *= np.float32(spread / np.sqrt(n_features))
    return offsets


def _draw_classes(n: int, n_classes: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """Classes with power-law frequencies, in random order."""
    weights = np.arange(1, n_classes + 1, dtype=np.float64) ** -exponent
    rng.shuffle(weights)  # The number of a class says nothing about its frequency.
    each_once = np.arange(n_classes if n >= n_classes else 0)
    drawn = rng.choice(n_classes, size=n - len(each_once), p=weights / weights.sum())
    y = np.concatenate([each_once, drawn]).astype(np.int64)
    rng.shuffle(y)
    return y
