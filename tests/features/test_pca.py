"""Whitened PCA against scikit-learn's, on ordinary and on degenerate features."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import extremax.rows.dense
from extremax.features import WhitenedPCA
from extremax.kernels.cpu.threads import limit


def correlated(n: int = 600, width: int = 7, mean: float = 0.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((n, width)) @ rng.standard_normal((width, width))
    return (mixed + mean).astype(np.float32)


def assert_same_up_to_sign(z: torch.Tensor, features: np.ndarray, tolerance: float = 2e-4) -> None:
    pca = PCA(z.shape[1], whiten=True, svd_solver="full").fit(features.astype(np.float64))
    # scikit-learn divides by n − 1, WhitenedPCA by n.
    expected = pca.transform(features) * np.sqrt(len(features) / (len(features) - 1))
    signs = np.sign((z.numpy() * expected).sum(0))
    np.testing.assert_allclose(z.numpy(), expected * signs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_agrees_with_scikit_learn(k: int) -> None:
    features = correlated()
    z = WhitenedPCA(k).fit(features).transform(features)
    assert z.shape == (600, k)
    assert z.dtype == torch.float32
    assert_same_up_to_sign(z, features)


def test_components_have_mean_zero_variance_one_and_no_correlation() -> None:
    features = correlated(seed=1)
    z = WhitenedPCA(7).fit(features).transform(features).double()
    torch.testing.assert_close(z.mean(0), torch.zeros(7).double(), rtol=0, atol=1e-4)
    covariance = z.T @ z / len(z)
    torch.testing.assert_close(covariance, torch.eye(7).double(), rtol=0, atol=1e-3)


def test_a_large_mean_costs_no_precision() -> None:
    # With a spread of a few units around 1,000, raw second moments would leave only two digits.
    features = correlated(mean=1000.0)
    assert_same_up_to_sign(WhitenedPCA(7).fit(features).transform(features), features, 5e-3)


def test_the_number_of_components_is_at_most_the_number_of_features() -> None:
    assert WhitenedPCA(50).fit(correlated()).transform(correlated()).shape == (600, 7)


@pytest.mark.parametrize("value", [0.0, 3.7, 1234.567])
def test_constant_and_repeated_features_do_not_blow_up(value: float) -> None:
    features = correlated()
    features[:, 2] = value
    features[:, 5] = features[:, 1] - features[:, 4]
    pca = WhitenedPCA(7).fit(features)
    z = pca.transform(features)
    # Five directions vary; the other two are constant.
    torch.testing.assert_close(z[:, :5].var(0, correction=0), torch.ones(5), rtol=1e-3, atol=0)
    assert (z[:, 5:] == 0.0).all()
    # A new value of a constant feature has no effect.
    features[:, 2] += 1e3
    torch.testing.assert_close(pca.transform(features), z, rtol=0, atol=0.2)


@pytest.mark.parametrize("value", [0.0, 1234.567])
def test_constant_features_give_zeros(value: float) -> None:
    features = np.full((50, 3), value, np.float32)
    z = WhitenedPCA(2).fit(features).transform(features)
    assert (z == 0.0).all()


def test_one_row_gives_zeros() -> None:
    features = correlated(n=1)
    assert (WhitenedPCA(3).fit(features).transform(features) == 0.0).all()


def test_float64_and_memory_maps_give_the_same_result(tmp_path: Path) -> None:
    features = correlated()
    expected = WhitenedPCA(4).fit(features).transform(features)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns about read-only arrays.
        for same in (features.astype(np.float64), mapped, np.asfortranarray(features)):
            assert torch.equal(WhitenedPCA(4).fit(same).transform(same), expected)


def test_the_block_size_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    features = correlated(mean=5.0)
    whole = WhitenedPCA(4).fit(features)
    monkeypatch.setattr(extremax.rows.dense, "_BLOCK_BYTES", 4 * 7 * 100)
    blocks = WhitenedPCA(4).fit(features)
    torch.testing.assert_close(blocks.projection_, whole.projection_, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(blocks.mean_, whole.mean_)
    assert torch.equal(whole.transform(features)[250:260], whole.transform(features[250:260]))


def test_max_rows_reads_evenly_spaced_rows() -> None:
    features = correlated()
    strided = WhitenedPCA(3, max_rows=200).fit(features)
    assert torch.equal(strided.projection_, WhitenedPCA(3).fit(features[::3]).projection_)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    # Wide enough for BLAS and LAPACK to use several threads.
    features = correlated(n=3000, width=100, mean=3.0)
    results = []
    for n_threads in (1, 2, 3, 4):
        with limit(n_threads):
            pca = WhitenedPCA(33).fit(features)
            results.append((pca.mean_, pca.projection_, pca.transform(features)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("width", [1, 6, 8])
def test_rows_of_another_width_are_rejected(width: int) -> None:
    pca = WhitenedPCA(3).fit(correlated())
    with pytest.raises(
        ValueError, match=f"features have {width} columns, but WhitenedPCA was fitted to 7"
    ):
        pca.transform(np.zeros((4, width), np.float32))
