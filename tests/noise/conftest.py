"""Trees with random nodes, and a small problem that suits trees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from extremax.data.synthetic import clustered
from extremax.noise import TreeNoise


@pytest.fixture
def random_tree() -> Callable[..., TreeNoise]:
    def make(
        n_classes: int, k: int = 5, seed: int = 0, size: float = 0.6, sharpness: float = 1.0
    ) -> TreeNoise:
        generator = torch.Generator().manual_seed(seed)
        tree = TreeNoise(n_components=k)
        tree.load_state(
            {
                "nodes": size * torch.randn((n_classes, k + 1), generator=generator),
                "order": torch.randperm(n_classes, generator=generator),
                "n_classes": torch.tensor(n_classes),
                "penalties": torch.zeros(0),
                "sharpness": torch.tensor(sharpness, dtype=torch.float64),
                "pca_mean": torch.zeros(k),
                "pca_projection": torch.eye(k),
            }
        )
        return tree

    return make


@pytest.fixture(scope="session")
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Five thousand rows of a hundred clustered classes with frequencies from 1 to 1/100."""
    return clustered(5000, 100, 12, seed=3, noise=0.3)
