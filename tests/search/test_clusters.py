"""Clusters of class vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from extremax.search import clusters
from extremax.search.clusters import LARGEST_SIZE, cluster_classes


def blobs(n_blobs: int, size: int, width: int = 12) -> torch.Tensor:
    """Vectors of any length around a few directions, class c in blob c % n_blobs."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(n_blobs, width, generator=generator)
    noise = 0.01 * torch.randn(size * n_blobs, width, generator=generator)
    lengths = torch.rand(size * n_blobs, 1, generator=generator) + 0.1
    return (centers.repeat(size, 1) + noise) * lengths


@pytest.mark.parametrize("n", [1, 2, 7, 300, 3001])
@pytest.mark.parametrize("largest_group", [16, 1024])
def test_every_class_is_in_one_cluster_of_few(
    n: int, largest_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_LARGEST_GROUP", largest_group)
    monkeypatch.setattr(clusters, "_SAMPLE", 500)
    weight = torch.randn(n, 5, generator=torch.Generator().manual_seed(1))
    order, first, groups, means = cluster_classes(weight)
    assert sorted(order.tolist()) == list(range(n))
    sizes = np.diff(first)
    assert first[0] == 0
    assert first[-1] == n
    assert sizes.min() >= 1
    assert sizes.max() <= LARGEST_SIZE
    assert groups[0] == 0
    assert groups[-1] == len(sizes)
    assert np.diff(first[groups]).max() <= max(largest_group, 1)
    for g in range(len(sizes)):
        expected = weight[order[first[g] : first[g + 1]]].mean(0)
        torch.testing.assert_close(means[g], expected)


def test_classes_of_one_direction_are_together() -> None:
    found = cluster_classes(blobs(n_blobs=40, size=5))
    blob = found.order % 40
    mixed = [
        len(set(blob[found.first[g] : found.first[g + 1]])) > 1 for g in range(len(found.means))
    ]
    assert np.mean(mixed) < 0.5


def test_vectors_of_zeros_and_equal_vectors_are_clustered_too() -> None:
    for weight in (torch.zeros(50, 4), torch.ones(3000, 4)):
        found = cluster_classes(weight)
        assert len(found.order) == len(weight)
        assert torch.isfinite(found.means).all()


def test_the_same_vectors_give_the_same_clusters() -> None:
    weight = torch.randn(2500, 6, generator=torch.Generator().manual_seed(2))
    one, other = cluster_classes(weight), cluster_classes(weight.clone())
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
