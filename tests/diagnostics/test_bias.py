"""Bias of sampled softmax: the integral against enumeration, and what theory says."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.base import clone

from extremax.diagnostics import (
    BiasCurve,
    estimated_bias,
    exact_bias,
    expected_gradient,
    gradient_bias,
)
from extremax.heads import LinearHead
from extremax.model import Model
from extremax.noise import FrequencyNoise, MixtureNoise, Noise, UniformNoise
from extremax.objectives import NegativeSampling, Pairs, SampledSoftmax
from extremax.random import Stream
from extremax.rows import Rows, as_rows


def problem(n_classes: int, seed: int, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and an unrelated noise."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n_classes, generator=generator, dtype=torch.float64)
    q = torch.rand(n_classes, generator=generator, dtype=torch.float64) ** 3 + 1e-3
    return logits, q / q.sum()


def over_negatives(logits: torch.Tensor, truth: int) -> torch.Tensor:
    """q ∝ e^o over the other classes."""
    q = logits.exp()
    q[truth] = 0.0
    return q / q.sum()


@pytest.mark.parametrize("m", [1, 2, 3, 7])
@pytest.mark.parametrize("spread", [0.0, 2.0, 12.0])
def test_the_integral_is_the_mean_over_every_draw(m: int, spread: float) -> None:
    logits, q = problem(6, seed=m, spread=spread)
    for truth in (0, 4):
        enumerated = exact_bias(logits, q, truth, m)
        torch.testing.assert_close(
            gradient_bias(logits, q.log(), truth, [m])[0], enumerated, rtol=0, atol=1e-8
        )


def test_the_integral_holds_for_extreme_probabilities() -> None:
    # Probabilities from 1 down to 1e-60, noise down to 1e-12.
    logits = torch.tensor([0.0, -5.0, -40.0, -140.0], dtype=torch.float64)
    q = torch.tensor([1e-12, 0.2, 0.3, 0.5 - 1e-12], dtype=torch.float64)
    for truth in range(4):
        torch.testing.assert_close(
            gradient_bias(logits, q.log(), truth, [3])[0],
            exact_bias(logits, q, truth, 3),
            rtol=0,
            atol=1e-8,
        )


@pytest.mark.parametrize("m", [1, 4])
def test_no_bias_iff_the_noise_is_the_softmax_over_the_negatives(m: int) -> None:
    logits, q = problem(5, seed=1)
    best = over_negatives(logits, truth=2)
    assert float(exact_bias(logits, best, 2, m).abs().max()) < 1e-12
    assert float(gradient_bias(logits, best.log(), 2, [m]).abs().max()) < 1e-8
    assert float(exact_bias(logits, 0.9 * best + 0.1 * q, 2, m).norm()) > 1e-4
    # So is the uniform noise over the negatives.
    flat = torch.full((5,), 0.25, dtype=torch.float64)
    flat[2] = 0.0
    assert float(exact_bias(logits, flat, 2, m).norm()) > 1e-2


@pytest.mark.parametrize("m", [1, 2, 5])
def test_softmax_noise_has_no_bias_even_where_it_is_sure(m: int) -> None:
    logits, _ = problem(7, seed=3, spread=9.0)
    p = logits.softmax(0)
    assert float(p.max()) > 0.9
    for truth in range(7):
        assert float(exact_bias(logits, p, truth, m).abs().max()) < 1e-12
        assert float(gradient_bias(logits, p.log(), truth, [m]).abs().max()) < 1e-8


@pytest.mark.parametrize("seed", range(6))
def test_the_gradient_of_the_true_class_is_too_high(seed: int) -> None:
    logits, q = problem(6, seed=seed)
    for truth in range(6):
        noise = q.clone()
        noise[truth] = 0.0
        noise /= noise.sum()
        # Jensen: E[1/(A + S)] ≥ 1/(A + E S), so the gradient p' − 1 is too high.
        assert float(exact_bias(logits, noise, truth, 2)[truth]) > 0
        assert float(gradient_bias(logits, q.log(), truth, [1, 5, 50])[:, truth].min()) > 0


def test_bias_falls_with_samples_and_in_the_limit_as_one_over_m() -> None:
    logits, q = problem(40, seed=5)
    sizes = [2**i for i in range(18)]
    norms = gradient_bias(logits, q.log(), 3, sizes).norm(dim=1)
    assert bool((norms[1:] < norms[:-1]).all())
    assert float(norms[-2] / norms[-1]) == pytest.approx(2.0, rel=1e-2)


def test_rounding_of_log_q_does_not_add_up_over_many_samples() -> None:
    logits, q = problem(30, seed=7)
    exact = gradient_bias(logits, q.log(), 3, [100_000])
    rounded = gradient_bias(logits, q.log() + 1e-5, 3, [100_000])
    torch.testing.assert_close(rounded, exact, rtol=1e-6, atol=0)


def test_many_classes_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, q = problem(300, seed=6)
    whole = expected_gradient(logits, q.log(), 9, [1, 8])
    monkeypatch.setattr("extremax.diagnostics.bias._BLOCK_NUMBERS", 4000)
    torch.testing.assert_close(
        expected_gradient(logits, q.log(), 9, [1, 8]), whole, rtol=0, atol=1e-14
    )


def test_absolute_softmax_has_the_bias_of_its_logits() -> None:
    scores, q = problem(5, seed=8)
    signed = exact_bias(scores, q, 1, 3, SampledSoftmax(absolute=True))
    plain = exact_bias(scores.abs(), q, 1, 3)
    torch.testing.assert_close(signed, plain * scores.sign())


def test_a_single_class_has_no_gradient() -> None:
    assert expected_gradient(torch.zeros(1), torch.zeros(1), 0, [3]).tolist() == [[0.0]]


@pytest.fixture(scope="module")
def trained(bare_model: Callable[..., Model]) -> tuple[Model, Rows, np.ndarray]:
    """A random head for 30 classes, and labeled rows."""
    generator = torch.Generator().manual_seed(0)
    head = LinearHead(30, 5, accumulator_start=1.0, scale=1.3)
    head.weight.normal_(generator=generator)
    head.bias.normal_(generator=generator)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((40, 5), dtype=np.float32)
    labels = rng.integers(0, 30, 40) ** 2 % 30
    noise = FrequencyNoise().fit(features, labels, 30)
    return bare_model(head, noise, SampledSoftmax()), as_rows(features), labels


@pytest.mark.parametrize(
    "noise",
    [FrequencyNoise(), MixtureNoise(("frequency", "uniform"), (3, 2)),
     MixtureNoise((MixtureNoise(("frequency", "uniform"), (1, 2)), "softmax"), (2, 1))],
)  # fmt: skip
def test_the_estimate_agrees_with_real_steps(
    noise: Noise, trained: tuple[Model, Rows, np.ndarray]
) -> None:
    """Monte Carlo with the draws of the noise and the gradient of the objective.

    ‖mean of R gradients‖² overestimates by the variance; the product of two independent means does
    not. Twenty such products give a standard error; 4.9 standard errors have a p-value of about
    1e-4 in Student's distribution with 19 degrees of freedom.
    """
    model, rows, labels = trained
    m, rounds, repeats = 5, 40, 200
    noise = clone(noise).fit(rows, labels, 30)
    noise.attach(model.head.vectors)
    curve = estimated_bias(model, rows, labels, noise, [m])
    scores = model.head.scores_all(rows).double()
    exact = scores.softmax(1)
    exact[torch.arange(40), torch.from_numpy(labels)] -= 1.0
    numbers = torch.arange(40).repeat(repeats)
    truth = torch.from_numpy(labels)[numbers][:, None]
    context = noise.context(rows)[numbers]
    means = []
    for round_ in range(rounds):
        stream = Stream.of(1, round_, rows=np.arange(len(numbers)))
        draw = noise.sample_others(context, truth, m, stream)
        classes = torch.cat([truth, draw.labels], 1)
        log_q = torch.cat([noise.log_prob(context, truth), draw.log_q], 1).double()
        drawn_scores = scores[numbers].gather(1, classes)
        pairs = Pairs(drawn_scores, log_q, draw.labels == truth, torch.empty(len(numbers), 0))
        gradient = torch.zeros(40, 30, dtype=torch.float64)
        index = (numbers[:, None] * 30 + classes).ravel()
        gradient.view(-1).index_add_(0, index, model.objective.gradient(pairs).ravel())
        means.append(gradient / repeats - exact)
    products = [float((a * b).sum(1).mean()) for a, b in zip(means[::2], means[1::2], strict=True)]
    error = np.std(products, ddof=1) / math.sqrt(len(products))
    assert error < 0.1 * curve.bias[0] ** 2
    assert abs(np.mean(products) - curve.bias[0] ** 2) < 4.9 * error


def test_the_estimate_is_the_root_mean_square_over_rows(
    trained: tuple[Model, Rows, np.ndarray],
) -> None:
    model, rows, labels = trained
    uniform = UniformNoise().fit(rows, labels, 30)
    # A few rows at a time.
    curve = estimated_bias(model, rows, labels, uniform, [1, 8], budget=30 * 20 * 7)
    scores = model.head.scores_all(rows).double()
    log_q = torch.full((30,), -math.log(30), dtype=torch.float64)
    np.testing.assert_allclose(
        curve.bias, root_mean_square_bias(scores, log_q, labels, [1, 8]), rtol=1e-5
    )
    exact = scores.softmax(1)
    exact[torch.arange(40), torch.from_numpy(labels)] -= 1.0
    assert curve.gradient == pytest.approx(float(exact.square().sum(1).mean().sqrt()), rel=1e-5)
    np.testing.assert_allclose(curve.relative, curve.bias / curve.gradient)
    assert np.all(curve.error > 0)
    assert np.all(curve.error < curve.bias)


def root_mean_square_bias(
    logits: torch.Tensor, log_q: torch.Tensor, labels: np.ndarray, m: list[int]
) -> np.ndarray:
    biases = [
        gradient_bias(row, log_q, int(label), m) for row, label in zip(logits, labels, strict=True)
    ]
    return torch.stack(biases).square().sum(2).mean(0).sqrt().numpy()


def test_logits_of_negative_sampling_include_log_q(
    trained: tuple[Model, Rows, np.ndarray], bare_model: Callable[..., Model]
) -> None:
    model, rows, labels = trained
    corrected = bare_model(model.head, model.noise, NegativeSampling())
    curve = estimated_bias(corrected, rows, labels, model.noise, [4])
    log_q = model.noise.log_prob_all(torch.empty(1, 0))[0].double()
    logits = model.head.scores_all(rows).double() + log_q
    expected = root_mean_square_bias(logits, log_q, labels, [4])
    np.testing.assert_allclose(curve.bias, expected, rtol=1e-5)
    without = estimated_bias(model, rows, labels, model.noise, [4])
    assert abs(curve.bias[0] - without.bias[0]) > 1e-3


def test_draws_for_a_bias_are_interpolated() -> None:
    curve = BiasCurve((1, 10, 100), np.array([1.0, 0.1, 0.01]), np.zeros(3), 1.0)
    assert curve.draws_for(2.0) == 1.0
    assert curve.draws_for(0.1) == pytest.approx(10.0)
    assert curve.draws_for(0.02) == pytest.approx(50.0)
    assert curve.draws_for(0.001) == math.inf


def test_invalid_input_is_refused(
    trained: tuple[Model, Rows, np.ndarray],
) -> None:
    model, rows, _ = trained
    logits, q = problem(4, seed=0)
    with pytest.raises(ValueError, match="at least 1"):
        gradient_bias(logits, q.log(), 0, [5, 0])
    with pytest.raises(ValueError, match="at least 1"):
        exact_bias(logits, q, 0, 0)
    with pytest.raises(ValueError, match="distribution"):
        exact_bias(logits, 2 * q, 0, 1)
    with pytest.raises(ValueError, match="small problems"):
        exact_bias(torch.zeros(100), torch.full((100,), 0.01), 0, 10)
    with pytest.raises(ValueError, match="known classes"):
        estimated_bias(model, rows, np.full(40, -1), model.noise, [1])
