"""The closed form of η̄ against the Hessian and covariance of the loss, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from extremax.diagnostics import alpha, estimated_signal, signal_to_noise
from extremax.heads import LinearHead
from extremax.model import Model
from extremax.noise import FrequencyNoise, UniformNoise
from extremax.objectives import NegativeSampling, Pairs, SampledSoftmax
from extremax.rows import as_rows


def distributions(n: int, n_classes: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, n_classes, generator=generator, dtype=torch.float64).mul(1.5).softmax(1)


def enumerated(p_data: torch.Tensor, q: torch.Tensor) -> float:
    """Tr(Cov H⁻¹)⁻¹ by enumerating rows, labels and draws of the objective (Eq. 12)."""
    n, n_classes = p_data.shape
    objective = NegativeSampling(regularization=0.0)
    scores = (p_data / q).log()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        total = flat.new_zeros(())
        xi = flat.view(n, n_classes)
        for x, y, drawn in itertools.product(range(n), range(n_classes), range(n_classes)):
            total = total + p_data[x, y] * q[x, drawn] * of(xi, x, y, drawn)
        return total

    def of(xi: torch.Tensor, x: int, y: int, drawn: int) -> torch.Tensor:
        classes = torch.tensor([[y, drawn]])
        hits = torch.tensor([[y == drawn]])
        pairs = Pairs(xi[x][classes], q[x].log()[classes], hits, torch.empty(1, 0))
        return objective.loss(pairs)[0]

    flat = scores.ravel()
    hessian = torch.autograd.functional.hessian(loss, flat)
    gradient = torch.autograd.functional.jacobian(loss, flat)
    assert float(gradient.abs().max()) < 1e-12, "not the optimum"
    covariance = torch.zeros(len(flat), len(flat), dtype=torch.float64)
    for x, y, drawn in itertools.product(range(n), range(n_classes), range(n_classes)):
        free = flat.clone().requires_grad_()
        one = of(free.view(n, n_classes), x, y, drawn)
        g = n * torch.autograd.grad(one, free)[0]
        covariance += p_data[x, y] * q[x, drawn] / n * torch.outer(g, g)
    return 1.0 / float(torch.trace(covariance @ torch.linalg.inv(hessian)))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_closed_form_is_the_ratio_by_enumeration(seed: int) -> None:
    p_data, q = distributions(3, 4, seed), distributions(3, 4, seed + 10)
    assert signal_to_noise(p_data, q) == pytest.approx(enumerated(p_data, q), rel=1e-9)


def test_the_ratio_is_largest_if_the_noise_is_the_data() -> None:
    p_data = distributions(3, 5, seed=2)
    best = signal_to_noise(p_data, p_data)
    assert float(alpha(p_data, p_data).sum(1).sub(0.5).abs().max()) < 1e-12
    assert best == pytest.approx(1.0 / (3 * 3 * (5 - 1)))
    for seed in range(20):
        q = distributions(3, 5, seed=seed + 30)
        near = 0.95 * p_data + 0.05 * q
        assert signal_to_noise(p_data, q) < signal_to_noise(p_data, near) < best
        assert float(alpha(p_data, q).sum(1).max()) < 0.5


def test_a_class_without_any_probability_contributes_nothing() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    assert alpha(p, q).tolist() == pytest.approx([0.0, 1 / 3, 0.0])


def test_the_signal_of_a_model_is_that_of_its_probabilities(
    bare_model: Callable[..., Model],
) -> None:
    generator = torch.Generator().manual_seed(1)
    head = LinearHead(12, 3, accumulator_start=1.0)
    head.weight.normal_(generator=generator)
    rng = np.random.default_rng(3)
    features = rng.standard_normal((25, 3), dtype=np.float32)
    labels = rng.integers(0, 12, 25)
    frequency = FrequencyNoise().fit(features, labels, 12)
    rows = as_rows(features)
    model = bare_model(head, UniformNoise().fit(features, labels, 12), SampledSoftmax())
    # A few rows at a time.
    signal = estimated_signal(model, rows, labels, frequency, budget=12 * 28 * 4)
    p = head.scores_all(rows).double().softmax(1)
    q = torch.from_numpy(np.maximum(np.bincount(labels, minlength=12), 1.0))
    q = (q / q.sum()).expand(25, -1)
    assert signal.covered == pytest.approx(2 * float(alpha(p, q).sum(1).mean()), rel=1e-5)
    best = signal_to_noise(p, p)
    assert signal.relative == pytest.approx(signal_to_noise(p, q) / best, rel=1e-5)
    assert signal.log_q == pytest.approx(float(q[0].log()[labels].mean()), rel=1e-5)


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(rows, classes\)"):
        signal_to_noise(torch.ones(2, 3) / 3, torch.ones(2, 4) / 4)
