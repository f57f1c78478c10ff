"""Softmax formulas against autograd, naive float64 arithmetic, known values and extremes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import jacobian

from extremax.softmax import (
    cross_entropy,
    cross_entropy_gradient,
    log_sigmoid,
    log_softmax,
    log_sum_exp,
    logit,
    sigmoid,
    softmax,
    softmax_jacobian,
    weight_gradient,
)

INF = math.inf
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
property_test = settings(deadline=None, max_examples=50)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@st.composite
def random_scores(draw: st.DrawFn, scales: tuple[float, ...] = (1.0, 10.0)) -> Tensor:
    """Float64 scores of any batch shape, possibly empty, with one to seven classes."""
    batch = draw(st.lists(st.integers(0, 4), max_size=2))
    shape = (*batch, draw(st.integers(1, 7)))
    seed = draw(st.integers(0, 2**32))
    return draw(st.sampled_from(scales)) * normal(*shape, seed=seed)


def any_scale() -> st.SearchStrategy[Tensor]:
    return random_scores(scales=(1e-3, 1.0, 100.0, 1e4))


def random_labels(scores: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(scores.numel())
    return torch.randint(scores.shape[-1], scores.shape[:-1], generator=generator)


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, n_classes).double()


def autograd(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Gradient of the sum of ``function`` at ``x``."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    return gradient


def naive_softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


# log-sum-exp


@property_test
@given(any_scale())
def test_log_sum_exp_lies_between_max_and_max_plus_log_n(scores: Tensor) -> None:
    value, highest = log_sum_exp(scores), scores.amax(-1)
    rounding = 1e-15 * (1 + highest.abs())
    assert (value >= highest).all()
    assert (value <= highest + math.log(scores.shape[-1]) + rounding).all()


def test_log_sum_exp_reaches_both_bounds() -> None:
    assert log_sum_exp(torch.tensor([3.0, -INF, -INF])).item() == 3.0
    equal = torch.full((5,), 3.0, dtype=torch.float64)
    assert log_sum_exp(equal).item() == pytest.approx(3.0 + math.log(5), rel=1e-15)


@property_test
@given(any_scale(), st.floats(-1e4, 1e4))
def test_shifting_every_score_shifts_log_sum_exp_and_nothing_else(
    scores: Tensor, shift: float
) -> None:
    torch.testing.assert_close(
        log_sum_exp(scores + shift), log_sum_exp(scores) + shift, rtol=0, atol=1e-10
    )
    torch.testing.assert_close(softmax(scores + shift), softmax(scores), rtol=0, atol=1e-10)
    torch.testing.assert_close(log_softmax(scores + shift), log_softmax(scores), rtol=0, atol=1e-10)


@property_test
@given(random_scores())
def test_log_sum_exp_is_the_log_of_the_sum(scores: Tensor) -> None:
    torch.testing.assert_close(log_sum_exp(scores), scores.exp().sum(-1).log())


@property_test
@given(any_scale())
def test_gradient_of_log_sum_exp_is_softmax(scores: Tensor) -> None:
    torch.testing.assert_close(autograd(log_sum_exp, scores), softmax(scores))


def test_gradient_of_log_sum_exp_against_finite_differences() -> None:
    scores = normal(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(log_sum_exp, scores)


def test_gradient_of_log_sum_exp_keeps_float32_precision_at_scores_of_1e4() -> None:
    gaps = torch.tensor([0.0, -1.0, -3.0], dtype=torch.float64)
    expected = naive_softmax(gaps).float()
    gradient = autograd(log_sum_exp, (gaps + 1e4).float())
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=0)


@both_dtypes
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1e4, -1e4], 1e4),
        ([1e4, 1e4], 1e4 + math.log(2)),
        ([-1e4, -1e4], -1e4 + math.log(2)),
        ([-INF, 0.0, 0.0], math.log(2)),
        ([-INF, -INF], -INF),
        ([-INF], -INF),
        ([INF, 1.0], INF),
        ([INF, -INF], INF),
        ([2.5], 2.5),
    ],
)
def test_log_sum_exp_of_extreme_scores(
    scores: list[float], expected: float, dtype: torch.dtype
) -> None:
    value = log_sum_exp(torch.tensor(scores, dtype=dtype))
    assert value.dtype == dtype
    assert value.item() == pytest.approx(expected, rel=torch.finfo(dtype).eps)


def test_log_sum_exp_of_a_nan_is_nan() -> None:
    assert log_sum_exp(torch.tensor([math.nan, 1.0])).isnan()


# softmax


@property_test
@given(random_scores())
def test_softmax_and_its_log_are_the_naive_formulas(scores: Tensor) -> None:
    torch.testing.assert_close(softmax(scores), naive_softmax(scores))
    torch.testing.assert_close(log_softmax(scores), naive_softmax(scores).log())


@property_test
@given(any_scale())
def test_softmax_is_a_distribution_that_agrees_with_its_log(scores: Tensor) -> None:
    p = softmax(scores)
    assert p.shape == scores.shape
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[..., 0]))
    torch.testing.assert_close(log_softmax(scores).exp(), p)
    # log p = ξ − LSE, up to the rounding of scores of 1e4.
    difference = scores - log_sum_exp(scores).unsqueeze(-1)
    torch.testing.assert_close(log_softmax(scores), difference, rtol=0, atol=1e-10)


@property_test
@given(any_scale())
def test_softmax_keeps_the_order_of_the_scores(scores: Tensor) -> None:
    in_order = softmax(scores.sort(dim=-1).values)
    assert (in_order.diff(dim=-1) >= 0).all()


@both_dtypes
def test_softmax_of_extreme_scores(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1e4, -1e4, 1e4], [-INF, 0.0, -INF]], dtype=dtype)
    assert softmax(scores).tolist() == [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
    # The logarithm keeps the distance of 2e4, while the probability underflows to 0.
    log_half = -math.log(2)
    expected = [[log_half, -2e4 + log_half, log_half], [-INF, 0.0, -INF]]
    torch.testing.assert_close(log_softmax(scores), torch.tensor(expected, dtype=dtype))


@both_dtypes
@pytest.mark.parametrize("scores", [[-INF, -INF], [INF, 0.0], [INF, INF]])
def test_where_no_distribution_exists_probabilities_are_nan(
    scores: list[float], dtype: torch.dtype
) -> None:
    assert softmax(torch.tensor(scores, dtype=dtype)).isnan().all()
    assert log_softmax(torch.tensor(scores, dtype=dtype)).isnan().all()


@both_dtypes
def test_a_single_class_is_certain(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1e4], [-1e4], [0.0]], dtype=dtype)
    labels = torch.zeros(3, dtype=torch.int64)
    assert softmax(scores).tolist() == [[1.0]] * 3
    assert log_softmax(scores).tolist() == [[0.0]] * 3
    assert softmax_jacobian(scores).tolist() == [[[0.0]]] * 3
    assert cross_entropy(scores, labels).item() == 0.0
    assert cross_entropy_gradient(scores, labels).tolist() == [[0.0]] * 3


@both_dtypes
def test_an_empty_batch_gives_empty_results_and_zero_loss(dtype: torch.dtype) -> None:
    scores, labels = torch.empty(0, 5, dtype=dtype), torch.empty(0, dtype=torch.int64)
    assert log_sum_exp(scores).shape == (0,)
    assert softmax(scores).shape == log_softmax(scores).shape == (0, 5)
    assert softmax_jacobian(scores).shape == (0, 5, 5)
    assert cross_entropy(scores, labels).item() == 0.0
    assert cross_entropy_gradient(scores, labels).shape == (0, 5)
    gradient = weight_gradient(torch.empty(0, 3, dtype=dtype), scores, scores)
    assert gradient.tolist() == [[0.0] * 3] * 5


# The Jacobian


@property_test
@given(any_scale())
def test_jacobian_matches_autograd(scores: Tensor) -> None:
    rows = scores.reshape(-1, scores.shape[-1])
    formula = softmax_jacobian(scores).reshape(-1, *(rows.shape[-1:] * 2))
    for row, found in zip(rows, formula, strict=True):
        torch.testing.assert_close(found, jacobian(softmax, row), rtol=1e-9, atol=1e-12)


@property_test
@given(any_scale())
def test_jacobian_is_symmetric_and_its_rows_sum_to_zero(scores: Tensor) -> None:
    found = softmax_jacobian(scores)
    torch.testing.assert_close(found, found.mT, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(found.sum(-1), torch.zeros_like(found[..., 0]), rtol=0, atol=1e-14)


def test_jacobian_of_a_worked_example() -> None:
    # p = [1/4, 3/4]: p_1 (1 − p_1) = 3/16 and −p_1 p_2 = −3/16.
    scores = torch.tensor([0.0, math.log(3)], dtype=torch.float64)
    expected = torch.tensor([[3.0, -3.0], [-3.0, 3.0]], dtype=torch.float64) / 16
    torch.testing.assert_close(softmax_jacobian(scores), expected)


# The sigmoid


@property_test
@given(random_scores())
def test_sigmoid_its_log_and_its_inverse_are_the_naive_formulas(z: Tensor) -> None:
    p = 1 / (1 + (-z).exp())
    torch.testing.assert_close(sigmoid(z), p)
    torch.testing.assert_close(log_sigmoid(z), p.log(), rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(logit(p), (p / (1 - p)).log())


@property_test
@given(st.floats(-30, 30))
def test_logit_inverts_the_sigmoid(z: float) -> None:
    # Near p = 1 the spacing of floats, 1e-16, relative to 1 − p = e^−z limits the accuracy.
    recovered = logit(sigmoid(torch.tensor(z, dtype=torch.float64))).item()
    assert recovered == pytest.approx(z, rel=1e-12, abs=1e-14 + 3e-16 * math.exp(max(z, 0)))


@property_test
@given(random_scores())
def test_derivatives_of_the_sigmoid_family(z: Tensor) -> None:
    p = sigmoid(z)
    torch.testing.assert_close(autograd(sigmoid, z), p * (1 - p))
    torch.testing.assert_close(autograd(log_sigmoid, z), sigmoid(-z))
    middle = p[(p > 1e-6) & (p < 1 - 1e-6)]
    torch.testing.assert_close(autograd(logit, middle), 1 / (middle * (1 - middle)))


@property_test
@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4))
def test_softmax_of_two_classes_is_the_sigmoid_of_their_difference(a: float, b: float) -> None:
    pair = torch.tensor([a, b], dtype=torch.float64)
    torch.testing.assert_close(softmax(pair)[0], sigmoid(pair[0] - pair[1]))
    torch.testing.assert_close(log_softmax(pair)[0], log_sigmoid(pair[0] - pair[1]))


@both_dtypes
def test_sigmoid_family_at_the_extremes(dtype: torch.dtype) -> None:
    z = torch.tensor([-INF, -1e4, 1e4, INF], dtype=dtype)
    assert sigmoid(z).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert log_sigmoid(z).tolist() == [-INF, -1e4, 0.0, 0.0]
    assert autograd(log_sigmoid, z).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert logit(torch.tensor([0.0, 0.5, 1.0], dtype=dtype)).tolist() == [-INF, 0.0, INF]
    assert logit(torch.tensor([-0.1, 1.1], dtype=dtype)).isnan().all()


# Cross-entropy and its gradients


@property_test
@given(random_scores())
def test_cross_entropy_is_minus_the_sum_of_log_probabilities(scores: Tensor) -> None:
    labels = random_labels(scores)
    picked = one_hot(labels, scores.shape[-1]) * naive_softmax(scores).log()
    torch.testing.assert_close(cross_entropy(scores, labels), -picked.sum())


@property_test
@given(any_scale())
def test_cross_entropy_gradient_matches_autograd(scores: Tensor) -> None:
    labels = random_labels(scores)
    found = cross_entropy_gradient(scores, labels)
    torch.testing.assert_close(found, autograd(lambda s: cross_entropy(s, labels), scores))
    torch.testing.assert_close(found, softmax(scores) - one_hot(labels, scores.shape[-1]))


def test_cross_entropy_gradient_against_finite_differences() -> None:
    scores = normal(2, 3, 4).requires_grad_()
    labels = random_labels(scores)
    assert torch.autograd.gradcheck(lambda s: cross_entropy(s, labels), scores)


@property_test
@given(any_scale())
def test_hessian_of_cross_entropy_is_the_softmax_jacobian(scores: Tensor) -> None:
    label = torch.tensor(0)
    for row in scores.reshape(-1, scores.shape[-1]):
        hessian = jacobian(lambda s: cross_entropy_gradient(s, label), row)
        torch.testing.assert_close(hessian, softmax_jacobian(row), rtol=1e-9, atol=1e-12)


@both_dtypes
def test_cross_entropy_of_extreme_scores(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1e4, -1e4], [1e4, -1e4]], dtype=dtype)
    labels = torch.tensor([0, 1])
    # A certain and correct prediction costs 0, a certain and wrong one the whole distance.
    assert cross_entropy(scores, labels).item() == 2e4
    assert cross_entropy_gradient(scores, labels).tolist() == [[0.0, 0.0], [1.0, -1.0]]


def test_cross_entropy_keeps_float32_precision_at_scores_of_1e4() -> None:
    # p = 1 / (1 + 1/e), so J = log(1 + 1/e).
    loss = cross_entropy(torch.tensor([1e4, 1e4 - 1]), torch.tensor(0))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)), rel=1e-6)


@both_dtypes
def test_cross_entropy_with_impossible_classes(dtype: torch.dtype) -> None:
    scores = torch.tensor([-INF, 0.0, 0.0], dtype=dtype)
    possible, impossible = torch.tensor(1), torch.tensor(0)
    assert cross_entropy(scores, possible).item() == pytest.approx(math.log(2), rel=1e-7)
    assert cross_entropy_gradient(scores, possible).tolist() == [0.0, -0.5, 0.5]
    assert cross_entropy(scores, impossible).item() == INF
    assert cross_entropy_gradient(scores, impossible).tolist() == [-1.0, 0.5, 0.5]


def test_cross_entropy_is_summed_in_float64() -> None:
    scores, labels = torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)
    assert cross_entropy(scores, labels).dtype == torch.float64
    assert cross_entropy_gradient(scores, labels).dtype == torch.float32


@property_test
@given(any_scale(), st.integers(1, 5))
def test_weight_gradient_matches_autograd(scores: Tensor, n_features: int) -> None:
    labels = random_labels(scores)
    features = normal(*scores.shape[:-1], n_features)
    n_classes = scores.shape[-1]

    def loss(weights: Tensor) -> Tensor:
        return cross_entropy(scores + features @ weights.T, labels)

    zero = torch.zeros(n_classes, n_features, dtype=torch.float64)
    found = weight_gradient(features, softmax(scores), one_hot(labels, n_classes))
    torch.testing.assert_close(found, autograd(loss, zero))


def test_weight_gradient_of_the_worked_example() -> None:
    # Waite 2020, section 3, with s_3 = 0.2 throughout: s − y = [0.1, 0.7, −0.8], times 2.
    features = torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64)
    s = torch.tensor([0.1, 0.7, 0.2], dtype=torch.float64)
    y = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    expected = torch.tensor([[0.2] * 3, [1.4] * 3, [-1.6] * 3], dtype=torch.float64)
    torch.testing.assert_close(weight_gradient(features, s, y), expected)
    torch.testing.assert_close(cross_entropy_gradient(s.log(), torch.tensor(2)), s - y)


# Mistakes that torch alone would not report


def test_every_row_needs_one_label() -> None:
    scores, too_few = torch.zeros(5, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        cross_entropy(scores, too_few)
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        cross_entropy_gradient(scores, too_few)


@pytest.mark.parametrize("label", [-100, -1, 3])
def test_a_label_out_of_range_is_an_error(label: int) -> None:
    scores, labels = torch.zeros(1, 3), torch.tensor([label])
    with pytest.raises(RuntimeError, match="out of bounds"):
        cross_entropy(scores, labels)
    with pytest.raises(RuntimeError, match="out of bounds"):
        cross_entropy_gradient(scores, labels)


def test_weight_gradient_refuses_labels_as_targets() -> None:
    labels = torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="one-hot"):
        weight_gradient(torch.zeros(3, 2), torch.zeros(3, 3), labels)
