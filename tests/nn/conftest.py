"""Layers in float64, and batches for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from extremax.nn import ExtremeSoftmax

K, C = 6, 40


@pytest.fixture
def make_layer():
    """Layers over C classes with random biases, for hidden states of K units."""

    def make(seed: int = 0, n_classes: int = C, **settings: Any) -> ExtremeSoftmax:
        torch.manual_seed(seed)
        settings = {"n_negatives": 7, "dtype": torch.float64} | settings
        layer = ExtremeSoftmax(K, n_classes, **settings)
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias += torch.randn(n_classes)
        return layer

    return make


@pytest.fixture
def make_batch():
    """Random hidden states of K units and targets."""

    def make(*leading: int, seed: int = 0, dtype: torch.dtype = torch.float64, n_classes: int = C):
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn((*leading, K), generator=generator, dtype=dtype)
        target = torch.randint(n_classes, leading, generator=generator)
        return hidden.requires_grad_(), target

    return make
