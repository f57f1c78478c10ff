"""Clusters of similar class vectors.

Classes are halved until a group has a thousand of them or fewer, by the two directions that the
unit vectors of a sample have most in common with (spherical 2-means, both halves of one size). In
each group, spherical k-means makes clusters of about five classes (Dhillon & Modha, "Concept
decompositions for large sparse text data using clustering", 2001). The angle decides, not the
distance: the best class of a row is one whose vector points its way, and frequent classes have
longer vectors than rare ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

#: Classes per cluster, on average and at most. More and smaller clusters find more: their means are
#: closer to their classes, and scoring all means is one matrix product.
MEAN_SIZE, LARGEST_SIZE = 5, 8
_LARGEST_GROUP, _SAMPLE = 1024, 4096
_HALVINGS, _ITERATIONS = 8, 4
# Rows of weights that are taken at a time.
_BLOCK = 1 << 13


class Clusters(NamedTuple):
    """
    order:   the classes, cluster by cluster, (C,).
    first:   cluster g has order[first[g]:first[g + 1]], (n + 1,).
    groups:  group h has clusters groups[h] to groups[h + 1] − 1, (m + 1,).
    means:   the mean weights of each cluster, (n, K).
    """

    order: np.ndarray
    first: np.ndarray
    groups: np.ndarray
    means: torch.Tensor


def cluster_classes(weight: torch.Tensor) -> Clusters:
    """Clusters of the rows of a matrix (C, K); the same for the same rows."""
    order, sizes, groups, means = [], [], [0], []
    for members in _groups(weight):
        rows = weight[members]
        cluster = _cut(_clusters(_unit(rows)))
        by_cluster = np.argsort(cluster, kind="stable")
        counts = np.bincount(cluster)
        sums = torch.zeros((len(counts), weight.shape[1]))
        sums.index_add_(0, torch.from_numpy(cluster), rows)
        means.append(sums / torch.from_numpy(counts)[:, None])
        order.append(members[by_cluster])
        sizes.append(counts)
        groups.append(groups[-1] + len(counts))
    first = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    return Clusters(np.concatenate(order), first, np.array(groups), torch.cat(means))


def _groups(weight: torch.Tensor) -> list[np.ndarray]:
    """The classes, halved again and again."""
    random, groups = np.random.default_rng(0), [np.arange(len(weight))]
    while len(groups[0]) > _LARGEST_GROUP:
        groups = [half for group in groups for half in _halves(weight, group, random)]
    return groups


def _halves(
    weight: torch.Tensor, members: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    sample = members
    if len(members) > _SAMPLE:
        sample = np.sort(random.choice(members, _SAMPLE, replace=False))
    rows, half = _unit(weight[sample]), len(sample) // 2
    one, other = rows[random.choice(len(rows), 2, replace=False)]
    for _ in range(_HALVINGS):
        order = (rows @ (one - other)).argsort(descending=True, stable=True)
        one, other = _unit(torch.stack([rows[order[:half]].sum(0), rows[order[half:]].sum(0)]))
    leaning = np.concatenate(
        [
            _unit(weight[members[start : start + _BLOCK]]) @ (one - other)
            for start in range(0, len(members), _BLOCK)
        ]
    )
    order = np.argsort(-leaning, kind="stable")
    middle = len(members) // 2
    return np.sort(members[order[:middle]]), np.sort(members[order[middle:]])


def _clusters(rows: torch.Tensor) -> np.ndarray:
    """The number of the cluster of each unit vector; none is empty."""
    n = -(-len(rows) // MEAN_SIZE)
    centers = rows[np.random.default_rng(0).choice(len(rows), n, replace=False)]
    for _ in range(_ITERATIONS):
        nearest = (rows @ centers.T).argmax(1)
        centers = _unit(torch.zeros_like(centers).index_add_(0, nearest, rows))
    nearest = (rows @ centers.T).argmax(1)
    return np.unique(nearest.numpy(), return_inverse=True)[1]


def _cut(cluster: np.ndarray) -> np.ndarray:
    """Cut clusters that are too large, and number them anew."""
    order = np.argsort(cluster, kind="stable")
    counts = np.bincount(cluster)
    place = np.empty(len(cluster), np.int64)
    place[order] = np.arange(len(cluster)) - np.repeat(np.cumsum(counts) - counts, counts)
    pieces = cluster * len(cluster) + place // LARGEST_SIZE
    return np.unique(pieces, return_inverse=True)[1]


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows, dim=1)
