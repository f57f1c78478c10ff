"""The synthetic problem has the documented structure."""

from __future__ import annotations

import tracemalloc

import numpy as np
from scipy.spatial.distance import pdist

from extremax.data import clustered, synthetic


def test_shapes_and_that_every_class_occurs():
    X, y = clustered(500, 200, 7)
    assert (X.shape, X.dtype) == ((500, 7), np.float32)
    assert (y.shape, y.dtype) == ((500,), np.int64)
    assert np.array_equal(np.unique(y), np.arange(200))
    X, y = clustered(50, 200, 7)
    assert X.shape == (50, 7)
    assert y.max() < 200


def test_the_seed_determines_the_problem():
    X, y = clustered(300, 50, 5, seed=3)
    again, same = clustered(300, 50, 5, seed=3)
    assert np.array_equal(X, again)
    assert np.array_equal(y, same)
    assert not np.array_equal(X, clustered(300, 50, 5, seed=4)[0])


def test_classes_form_clusters_of_subclusters():
    # 64 classes in 4 clusters of 4 sub-clusters: 4 classes in each of 16 sub-clusters. Without
    # noise a row is the center of its class. Random directions are nearly orthogonal, so the
    # distance of two classes is √(2 Σ spread²) over the levels that they do not share.
    X, y = clustered(64, 64, 4096, n_clusters=4, noise=0.0)
    distances = pdist(X[np.argsort(y)])
    levels = np.sqrt(2 * np.array([0.5**2, 0.5**2 + 0.7**2, 0.5**2 + 0.7**2 + 1]))
    near = np.abs(distances[:, None] - levels) < 0.1 * levels
    assert near.sum(axis=0).tolist() == [16 * 6, 4 * (16 * 15 // 2 - 4 * 6), 6 * 16 * 16]


def test_the_block_size_does_not_matter(monkeypatch):
    monkeypatch.setattr(synthetic, "_BLOCK_CLASSES", 16)
    monkeypatch.setattr(synthetic, "_BLOCK_ROWS", 7)
    X, y = clustered(600, 40, 8, noise=0.0)
    # Without noise, two rows are equal if and only if their classes are.
    assert len(np.unique(X, axis=0)) == 40
    assert len(np.unique(np.column_stack([y, X]), axis=0)) == 40


def test_noise_is_the_standard_deviation_around_the_class():
    X, y = clustered(20_000, 8, 30, noise=0.25)
    inside = [X[y == label].std(axis=0).mean() for label in range(8)]
    np.testing.assert_allclose(inside, 0.25, rtol=0.1)


def test_frequencies_follow_a_power_law():
    _, y = clustered(200_000, 100, 1)
    counts = np.sort(np.bincount(y))[::-1]
    # Frequency ∝ 1/r: the first class is ten times as frequent as the tenth.
    np.testing.assert_allclose(counts[0] / counts[9], 10, rtol=0.1)
    np.testing.assert_allclose(counts[0] / counts[49], 50, rtol=0.2)
    _, y = clustered(100_000, 100, 1, exponent=0.0)
    np.testing.assert_allclose(np.bincount(y), 1000, rtol=0.2)


def test_memory_is_little_more_than_the_result():
    clustered(10, 5, 2)
    tracemalloc.start()
    try:
        X, _ = clustered(60_000, 10_000, 128)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.8 * X.nbytes
