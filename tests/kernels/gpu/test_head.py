"""Kernels of the head on a GPU, against the plain computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from extremax.errors import ArgumentError
from extremax.objectives import NegativeSampling
from extremax.objectives.base import Pairs

pytest.importorskip("triton")
kernels = pytest.importorskip("extremax.kernels.gpu.head")

pytestmark = pytest.mark.extras

N_CLASSES = 37


def problem(
    n: int, width: int, n_columns: int, device: torch.device, seed: int = 0, **types: Any
) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """Vectors, inputs, classes (a few of them frequent) and gradients."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((N_CLASSES, width), generator=generator)
    acc = torch.rand(
        (N_CLASSES,) if types.get("one_per_row") else (N_CLASSES, width), generator=generator
    )
    vectors = kernels.Vectors(
        weight.to(types.get("dtype", torch.float32)).to(device),
        (acc + 0.5).to(device),
        torch.randn(N_CLASSES, generator=generator).to(device),
        (torch.rand(N_CLASSES, generator=generator) + 0.5).to(device),
    )
    features = torch.randn((2 * n, width), generator=generator)
    rows = torch.randint(2 * n, (n,), generator=generator)
    chance = 1.0 / (1.0 + torch.arange(N_CLASSES)) ** 2
    classes = torch.multinomial(chance, n * n_columns, True, generator=generator)
    gradient = torch.randn((n, n_columns), generator=generator)
    inputs = kernels.Inputs(features.to(device), rows.to(device), 0.7)
    return vectors, inputs, classes.view(n, n_columns).to(device), gradient.to(device)


def plain_scores(vectors: Any, inputs: Any, classes: torch.Tensor) -> torch.Tensor:
    x = inputs.scale * inputs.features[inputs.rows].double()
    w = vectors.weight.double()[classes]
    return (w * x[:, None]).sum(2) + vectors.bias.double()[classes]


def plain_step(
    vectors: Any, inputs: Any, classes: torch.Tensor, gradient: torch.Tensor, rate: float
) -> Any:
    """The same step with tables of all classes, in float64."""
    x = inputs.scale * inputs.features[inputs.rows].double()
    total = torch.zeros(vectors.weight.shape, dtype=torch.float64, device=x.device)
    bias_total = torch.zeros(len(total), dtype=torch.float64, device=x.device)
    each = (gradient.double()[:, :, None] * x[:, None]).reshape(-1, x.shape[1])
    total.index_add_(0, classes.reshape(-1), each)
    bias_total.index_add_(0, classes.reshape(-1), gradient.double().reshape(-1))
    one_per_row = vectors.acc.ndim == 1
    square = total.square().mean(1) if one_per_row else total.square()
    acc = vectors.acc.double() + square
    divided = acc.sqrt()[:, None] if one_per_row else acc.sqrt()
    bias_acc = vectors.bias_acc.double() + bias_total.square()
    return kernels.Vectors(
        vectors.weight.double() - rate * total / divided,
        acc,
        vectors.bias.double() - rate * bias_total / bias_acc.sqrt(),
        bias_acc,
    )


@pytest.mark.parametrize("width", [1, 7, 32, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores(width: int, dtype: torch.dtype, device: torch.device) -> None:
    vectors, inputs, classes, _ = problem(9, width, 3, device, dtype=dtype)
    found = kernels.score_pairs(vectors.weight, vectors.bias, inputs, classes)
    expected = plain_scores(vectors, inputs, classes).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    without = kernels.score_pairs(vectors.weight, None, inputs, classes)
    torch.testing.assert_close(without, expected - vectors.bias[classes], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [1, 7, 32, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_on_inputs(width: int, dtype: torch.dtype, device: torch.device) -> None:
    vectors, _, classes, slopes = problem(9, width, 3, device, dtype=dtype)
    found = kernels.sum_rows(vectors.weight, classes, slopes)
    expected = (slopes.double()[:, :, None] * vectors.weight.double()[classes]).sum(1)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_logistic_losses_and_slopes_are_those_of_the_cpu(
    weighted: bool, device: torch.device
) -> None:
    vectors, inputs, classes, _ = problem(11, 8, 4, device)
    log_q = -torch.rand(classes.shape).to(device) * 4.0
    weights = (torch.rand(11) + 0.1).to(device) if weighted else None
    objective = NegativeSampling(regularization=0.03)
    form = *objective.logistic(3), float(objective.adds_log_q), objective.regularization
    loss, slopes = kernels.logistic_pairs(vectors, inputs, classes, log_q, weights, form)
    scores = kernels.score_pairs(vectors.weight, vectors.bias, inputs, classes).cpu()
    hits = (classes[:, 1:] == classes[:, :1]).cpu()
    pairs = Pairs(scores, log_q.cpu(), hits, torch.empty((11, 0)))
    times = torch.ones(11) if weights is None else weights.cpu()
    expected = objective.loss(pairs) * times
    expected_slopes = objective.gradient(pairs) * times[:, None]
    torch.testing.assert_close(loss.cpu(), expected.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slopes.cpu(), expected_slopes.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("segment", [1, 2, 8, 64])
@pytest.mark.parametrize("one_per_row", [False, True])
@pytest.mark.parametrize(("n", "width", "n_columns"), [(1, 5, 1), (40, 16, 2), (23, 33, 3)])
def test_a_step_writes_every_touched_class_once(
    segment: int,
    one_per_row: bool,
    n: int,
    width: int,
    n_columns: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_SEGMENT", segment)
    vectors, inputs, classes, gradient = problem(
        n, width, n_columns, device, one_per_row=one_per_row
    )
    expected = plain_step(vectors, inputs, classes, gradient, 0.3)
    kernels.update_rows(kernels.group_by_class(classes), vectors, inputs, gradient, 0.3)
    for found, wanted in zip(vectors, expected, strict=True):
        torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("segment", [1, 4, 64])
@pytest.mark.parametrize(("n", "width", "n_columns"), [(1, 5, 1), (40, 16, 2), (23, 33, 3)])
def test_gradients_of_touched_classes(
    segment: int,
    n: int,
    width: int,
    n_columns: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_SEGMENT", segment)
    _, inputs, classes, gradient = problem(n, width, n_columns, device)
    x = inputs.scale * inputs.features[inputs.rows].double()
    # Some pairs are left out.
    classes[::3, -1] = -1
    gradient = torch.where(classes < 0, torch.nan, gradient) if n > 1 else gradient
    counted = torch.where(classes < 0, 0.0, gradient).double()
    expected = torch.zeros((N_CLASSES, width), dtype=torch.float64, device=device)
    bias = torch.zeros(N_CLASSES, dtype=torch.float64, device=device)
    each = (counted[:, :, None] * x[:, None]).reshape(-1, width)
    expected.index_add_(0, classes.clamp(min=0).reshape(-1), each)
    bias.index_add_(0, classes.clamp(min=0).reshape(-1), counted.reshape(-1))
    for n_classes, by_class in ((N_CLASSES, False), (N_CLASSES, True), (1000, False)):
        touched, sums, bias_sums = kernels.sum_pairs(
            kernels.group_by_class(classes), inputs, gradient, n_classes, by_class
        )
        if by_class or n * n_columns >= n_classes:
            assert touched is None
            touched = torch.arange(n_classes, device=device)
        assert len(touched) == min(n_classes, max(n * n_columns, by_class * n_classes))
        used = sums.ne(0.0).any(1)
        assert len(touched[used].unique()) == int(used.sum())
        found = torch.zeros((n_classes, width), device=device).index_add_(0, touched, sums)
        found_bias = torch.zeros(n_classes, device=device).index_add_(0, touched, bias_sums)
        for mine, wanted in ((found, expected), (found_bias, bias)):
            torch.testing.assert_close(mine[:N_CLASSES], wanted.float(), rtol=1e-4, atol=1e-5)
        assert not bool(found[N_CLASSES:].any())


def test_inputs_without_rows_are_the_features_in_their_order(device: torch.device) -> None:
    vectors, inputs, classes, gradient = problem(9, 8, 3, device)
    gathered = inputs.features[inputs.rows]
    plain = kernels.Inputs(gathered, None, inputs.scale)
    found = kernels.score_pairs(vectors.weight, vectors.bias, plain, classes)
    assert torch.equal(found, kernels.score_pairs(vectors.weight, vectors.bias, inputs, classes))
    groups = kernels.group_by_class(classes)
    for mine, wanted in zip(
        kernels.sum_pairs(groups, plain, gradient, N_CLASSES),
        kernels.sum_pairs(groups, inputs, gradient, N_CLASSES),
        strict=True,
    ):
        assert torch.equal(mine, wanted)


def test_classes_below_zero_score_zero_and_add_nothing(device: torch.device) -> None:
    vectors, inputs, classes, slopes = problem(9, 7, 3, device)
    before = kernels.score_pairs(vectors.weight, vectors.bias, inputs, classes)
    left_out = classes % 2 == 0
    marked = torch.where(left_out, -2, classes)
    found = kernels.score_pairs(vectors.weight, vectors.bias, inputs, marked)
    assert torch.equal(found, before.masked_fill(left_out, 0.0))
    sums = kernels.sum_rows(vectors.weight, marked, slopes)
    expected = kernels.sum_rows(vectors.weight, classes, slopes.masked_fill(left_out, 0.0))
    torch.testing.assert_close(sums, expected)


def test_the_same_step_gives_the_same_bits(device: torch.device) -> None:
    found = []
    for _ in range(2):
        vectors, inputs, classes, gradient = problem(40, 16, 3, device)
        kernels.update_rows(kernels.group_by_class(classes), vectors, inputs, gradient, 0.3)
        found.append(vectors)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_weights_in_bfloat16_are_right_on_average(device: torch.device) -> None:
    """Steps far below the spacing of bfloat16 would all be lost by rounding to the nearest."""
    sums, n_seeds = 0.0, 200
    for seed in range(n_seeds):
        vectors, inputs, classes, gradient = problem(2, 8, 2, device, dtype=torch.bfloat16)
        before = vectors.weight.double()
        wanted = plain_step(vectors, inputs, classes, gradient, 1e-4).weight - before
        kernels.update_rows(kernels.group_by_class(classes), vectors, inputs, gradient, 1e-4, seed)
        change = vectors.weight.double() - before
        # At most one unit in the last place away.
        assert (change - wanted).abs().max() <= before.abs().max() * 2.0**-6
        sums = sums + change
    touched = wanted != 0.0
    spacing = before.abs() * 2.0**-7
    standard_error = (wanted.abs() * spacing).sqrt() / n_seeds**0.5
    error = (sums / n_seeds - wanted)[touched] / standard_error[touched].clamp(min=1e-12)
    assert error.abs().mean() < 2.0


def test_pairs_are_grouped_in_the_order_of_the_batch(device: torch.device) -> None:
    classes = torch.tensor([[3, 1], [1, 3], [2, 1]], device=device)
    groups = kernels.group_by_class(classes)
    assert groups.classes.tolist() == [1, 1, 1, 2, 3, 3]
    assert groups.order.tolist() == [1, 2, 5, 4, 0, 3]


def test_rows_that_do_not_fit_are_refused(device: torch.device) -> None:
    wide = torch.zeros((1, 8193), device=device)
    inputs = kernels.Inputs(wide, torch.zeros(1, dtype=torch.int64, device=device), 1.0)
    with pytest.raises(ArgumentError, match="up to 8192 features"):
        kernels.score_pairs(
            wide, None, inputs, torch.zeros((1, 1), dtype=torch.int64, device=device)
        )


def test_no_rows_are_no_work(device: torch.device) -> None:
    vectors, inputs, classes, gradient = problem(4, 8, 2, device)
    before = vectors.weight.clone()
    none = inputs._replace(rows=inputs.rows[:0])
    assert kernels.score_pairs(vectors.weight, None, none, classes[:0]).shape == (0, 2)
    kernels.update_rows(kernels.group_by_class(classes[:0]), vectors, none, gradient[:0], 0.3)
    assert torch.equal(vectors.weight, before)
