"""Whitened PCA, fitted in one streaming pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

_BLOCK_BYTES = 32 << 20


def row_blocks(features: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, float32 block) over a dense array or memmap, a few tens of MB at a time."""
    rows = max(1, _BLOCK_BYTES // max(4 * features.shape[1], 1))
    for start in range(0, len(features), rows):
        yield start, np.ascontiguousarray(features[start : start + rows], dtype=np.float32)


class WhitenedPCA:
    """z = (x − μ) P with P = U Λ^(−½): the top k principal directions, each of unit variance.

    ``fit`` reads at most ``max_rows`` evenly spaced rows: the covariance of a K-dimensional
    feature needs some hundred times K rows, not all of them.
    """

    def __init__(self, n_components: int, max_rows: int = 100_000) -> None:
        self.n_components, self.max_rows = n_components, max_rows

    def fit(self, features: np.ndarray) -> WhitenedPCA:
        n, width = features.shape
        stride = -(-n // self.max_rows)
        mean = torch.zeros(width, dtype=torch.float64)
        second = torch.zeros((width, width), dtype=torch.float64)
        n_seen = 0
        for _, block in row_blocks(features[::stride]):
            x = torch.from_numpy(block)
            mean += x.sum(0, dtype=torch.float64)
            second += (x.T @ x).double()
            n_seen += len(x)
        mean /= n_seen
        covariance = second / n_seen - torch.outer(mean, mean)
        values, vectors = torch.linalg.eigh(covariance)
        k = min(self.n_components, width)
        values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
        # The sign of an eigenvector is arbitrary; fix it so that results carry over machines.
        largest = vectors.abs().argmax(0)
        vectors = vectors * vectors[largest, torch.arange(k)].sign()
        # Directions without variance say nothing: they get weight zero instead of a blow-up.
        useful = values > 1e-7 * values[0].clamp(min=1e-30)
        scale = torch.where(useful, values.clamp(min=1e-30).rsqrt(), 0.0)
        self.mean_ = mean.float()
        self.projection_ = (vectors * scale).float().contiguous()
        return self

    def transform(self, features: np.ndarray) -> torch.Tensor:
        """(n, k) float32."""
        out = torch.empty((len(features), self.projection_.shape[1]))
        shift = self.mean_ @ self.projection_
        for start, block in row_blocks(features):
            out[start : start + len(block)] = torch.from_numpy(block) @ self.projection_ - shift
        return out
