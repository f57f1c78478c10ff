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
        from extremax.kernels.cpu.threads import limit

        # BLAS and LAPACK add in an order that depends on their number of threads.
        with limit(1):
            mean, covariance = self._moments(features)
            values, vectors = torch.linalg.eigh(covariance)
        k = min(self.n_components, len(mean))
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

    def _moments(self, features: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and covariance of the rows that ``fit`` reads, float64."""
        width = features.shape[1]
        stride = -(-len(features) // self.max_rows)
        total = torch.zeros(width, dtype=torch.float64)
        second = torch.zeros((width, width), dtype=torch.float64)
        origin = np.zeros(width, np.float32)
        n_seen = 0
        for start, block in row_blocks(features[::stride]):
            if start == 0:
                # Moments about a rough mean: about zero, a mean that is large beside the
                # spread leaves of the covariance nothing but rounding.
                origin = block.mean(0, dtype=np.float64).astype(np.float32)
            x = torch.from_numpy(block - origin)
            total += x.sum(0, dtype=torch.float64)
            second += (x.T @ x).double()
            n_seen += len(x)
        shift = total / n_seen
        return torch.from_numpy(origin) + shift, second / n_seen - torch.outer(shift, shift)

    def transform(self, features: np.ndarray) -> torch.Tensor:
        """(n, k) float32. A row's z does not depend on the rows beside it."""
        from extremax.kernels.cpu.project import project
        from extremax.kernels.cpu.threads import parallel

        # The kernel would read beyond the end of narrower rows.
        if features.shape[1] != len(self.mean_):
            raise ValueError(
                f"features have {features.shape[1]} columns but the fit had {len(self.mean_)}"
            )
        out = torch.empty((len(features), self.projection_.shape[1]))
        mean, directions = self.mean_.numpy(), self.projection_.T.contiguous().numpy()
        for start, block in row_blocks(features):
            rows = out[start : start + len(block)].numpy()
            parallel(project, len(block), 1024, block, mean, directions, rows)
        return out
