"""Whitened PCA, fitted in one streaming pass."""

from __future__ import annotations

import numpy as np
import torch

from extremax.errors import ArgumentError
from extremax.kernels.cpu.threads import limit, parallel
from extremax.rows import row_blocks


class WhitenedPCA:
    """Project features onto their top k principal directions, scaled to unit variance.

    z = (x − μ) P with P = U Λ^(−½), where U holds the leading eigenvectors of the covariance and
    Λ their eigenvalues.

    n_components:  k; at most the number of features.
    max_rows:      ``fit`` reads at most this many evenly spaced rows. Estimating the covariance of
                   K features takes some hundred times K rows, not all of them.
    """

    def __init__(self, n_components: int, max_rows: int = 100_000) -> None:
        self.n_components, self.max_rows = n_components, max_rows

    def fit(self, features: np.ndarray) -> WhitenedPCA:
        """Estimate mean and principal directions from an array or memory map."""

        # The summation order of BLAS and LAPACK depends on their number of threads.
        with limit(1):
            mean, covariance = self._moments(features)
            values, vectors = torch.linalg.eigh(covariance)
        k = min(self.n_components, len(mean))
        values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
        # The sign of an eigenvector is arbitrary; fix it to get the same result on every machine.
        largest = vectors.abs().argmax(0)
        vectors = vectors * vectors[largest, torch.arange(k)].sign()
        # Directions without variance carry no information: scale them by 0, not by 1/√0.
        varies = values > 1e-7 * values[0].clamp(min=1e-30)
        scale = torch.where(varies, values.clamp(min=1e-30).rsqrt(), 0.0)
        self.mean_ = mean.float()
        self.projection_ = (vectors * scale).float().contiguous()
        return self

    def _moments(self, features: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and covariance of the rows that ``fit`` reads, in float64."""
        width = features.shape[1]
        stride = -(-len(features) // self.max_rows)
        total = torch.zeros(width, dtype=torch.float64)
        second = torch.zeros((width, width), dtype=torch.float64)
        origin = np.zeros(width, np.float32)
        n_seen = 0
        for start, block in row_blocks(features[::stride]):
            if start == 0:
                # Moments about a rough mean. About zero, rounding errors would swamp the
                # covariance of features whose mean is large relative to their spread.
                origin = block.mean(0, dtype=np.float64).astype(np.float32)
            x = torch.from_numpy(block - origin)
            total += x.sum(0, dtype=torch.float64)
            second += (x.T @ x).double()
            n_seen += len(x)
        shift = total / n_seen
        return torch.from_numpy(origin) + shift, second / n_seen - torch.outer(shift, shift)

    def transform(self, features: np.ndarray) -> torch.Tensor:
        """Return z as (n, k) float32. The z of a row does not depend on the other rows."""
        from extremax.kernels.cpu.project import project

        # The kernel would read beyond the end of narrower rows.
        if features.shape[1] != len(self.mean_):
            raise ArgumentError(
                f"features have {features.shape[1]} columns, but WhitenedPCA was fitted to "
                f"{len(self.mean_)}"
            )
        out = torch.empty((len(features), self.projection_.shape[1]))
        mean, directions = self.mean_.numpy(), self.projection_.T.contiguous().numpy()
        for start, block in row_blocks(features):
            rows = out[start : start + len(block)].numpy()
            parallel(project, len(block), 1024, block, mean, directions, rows)
        return out
