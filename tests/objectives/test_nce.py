"""Noise-contrastive estimation: its relation to negative sampling, and self-normalization."""

from __future__ import annotations

import math

import numpy as np
import torch

from extremax import ExtremeClassifier
from extremax.objectives import NCE, NegativeSampling, Pairs
from extremax.rows import DenseRows


def test_negative_sampling_is_uniform_noise_with_as_many_draws_as_classes() -> None:
    # Then m q = 1. Negative sampling takes the mean over draws, NCE the sum.
    n, n_classes = 7, 6
    generator = torch.Generator().manual_seed(0)
    scores = 3.0 * torch.randn((n, 1 + n_classes), generator=generator, dtype=torch.float64)
    pairs = Pairs(
        scores,
        torch.full_like(scores, -math.log(n_classes)),
        torch.rand((n, n_classes), generator=generator) < 0.2,
        torch.empty(n, 0),
    )
    contrast, sampling = NCE(), NegativeSampling(regularization=0.0)
    positive = torch.nn.functional.softplus(-scores[:, 0])
    torch.testing.assert_close(
        contrast.loss(pairs) - positive, n_classes * (sampling.loss(pairs) - positive)
    )
    factor = torch.tensor([1.0] + n_classes * [float(n_classes)], dtype=torch.float64)
    torch.testing.assert_close(contrast.gradient(pairs), factor * sampling.gradient(pairs))


def test_scores_learn_to_normalize_themselves() -> None:
    rng = np.random.default_rng(0)
    contexts, n_classes, n = 6, 10, 12_000
    truth = np.exp(1.5 * rng.standard_normal((contexts, n_classes)))
    truth /= truth.sum(1, keepdims=True)
    context = rng.integers(contexts, size=n)
    y = (rng.random((n, 1)) < truth[context].cumsum(1)).argmax(1)
    one_hot = np.eye(contexts, dtype=np.float32)

    def mean_log_z(epochs: int) -> float:
        model = ExtremeClassifier(
            "nce", "frequency", epochs=epochs, learning_rate=2.0, validation_fraction=0.0,
            n_jobs=1, random_state=0,
        ).fit(one_hot[context], y)  # fmt: skip
        scores = model.model_.head.scores_all(DenseRows(one_hot))
        return float(scores.double().logsumexp(1).abs().mean())

    early, late = mean_log_z(1), mean_log_z(25)
    assert late < 0.5 * early
    # Two thousand rows per context determine each p to about 5%, and Σ p more closely.
    assert late < 0.05
