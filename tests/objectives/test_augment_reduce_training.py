"""Augment & reduce recovers the distribution of the data when trained as in practice."""

from __future__ import annotations

import math

import pytest
import torch

from extremax.objectives import Objective, Pairs, make_objective

TRUE = torch.tensor([0.3, 0.25, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02], dtype=torch.float64)
N_CLASSES, N_EXAMPLES, BATCH = len(TRUE), 8_000, 250


def learned(objective: Objective, m: int, epochs: int, seed: int = 0) -> torch.Tensor:
    """log p of a model with one score per class, by Adagrad and uniform draws."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(N_CLASSES).repeat_interleave((TRUE * N_EXAMPLES).round().long())
    scores, squares = torch.zeros(N_CLASSES).double(), torch.full((N_CLASSES,), 1e-8).double()
    kept = objective.per_example_start(N_EXAMPLES).double()
    log_q = torch.full((BATCH, 1 + m), -math.log(N_CLASSES), dtype=torch.float64)
    for epoch in range(epochs):
        order = torch.randperm(N_EXAMPLES, generator=generator)
        for step, rows in enumerate(order.split(BATCH)):
            drawn = torch.randint(N_CLASSES, (BATCH, m), generator=generator)
            classes = torch.cat([labels[rows, None], drawn], 1)
            pairs = Pairs(scores[classes], log_q, drawn == classes[:, :1], kept[rows])
            uniform = torch.rand((BATCH, kept.shape[1]), generator=generator, dtype=torch.float64)
            now = pairs._replace(per_example=objective.current_per_example(pairs))
            kept[rows] = objective.update_per_example(pairs, epoch, uniform)
            gradient = torch.zeros(N_CLASSES, dtype=torch.float64)
            gradient.index_add_(0, classes.flatten(), objective.gradient(now).flatten() / BATCH)
            squares += gradient.square()
            left = 1.0 - (epoch + step * BATCH / N_EXAMPLES) / epochs
            scores -= 0.5 * left * gradient / squares.sqrt()
    return objective.log_normalize(scores[None].clone())[0]


@pytest.mark.parametrize("m", [1, 10])
@pytest.mark.parametrize(
    "name", ["augment_reduce", "augment_reduce_probit", "augment_reduce_logistic"]
)
def test_training_recovers_the_distribution_of_the_data(name: str, m: int) -> None:
    log_p = learned(make_objective(name), m, epochs=20)
    assert float(TRUE @ (TRUE.log() - log_p)) < 5e-4
