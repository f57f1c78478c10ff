"""Layers in float64, and batches for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from extremax.nn import ExtremeSoftmax

K, C = 6, 40


@pytest.fixture
def p_value():
    """A chi-squared test of draws under q."""

    def p_value_of(drawn: torch.Tensor, log_q: torch.Tensor) -> float:
        """Classes that are expected less than five times count as one."""
        q = log_q.detach().cpu().double().exp().numpy()
        counts = np.bincount(drawn.cpu().numpy().ravel(), minlength=len(q))
        order = np.argsort(q)
        counts, expected = counts[order], q[order] / q.sum() * counts.sum()
        n_rare = max(int((expected < 5).sum()), int(np.searchsorted(np.cumsum(expected), 5)) + 1)
        counts, expected = (
            np.append(values[n_rare:], values[:n_rare].sum()) for values in (counts, expected)
        )
        return float(chisquare(counts, expected).pvalue)

    return p_value_of


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
        ),
    ]
)
def device(request) -> str:
    return request.param


@pytest.fixture
def make_layer():
    """Layers over C classes with random biases and uniform noise, for hidden states of K units."""

    def make(seed: int = 0, n_classes: int = C, **settings: Any) -> ExtremeSoftmax:
        torch.manual_seed(seed)
        settings = {"noise": "uniform", "n_negatives": 7, "dtype": torch.float64} | settings
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
