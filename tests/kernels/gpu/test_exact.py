"""Softmax over every class on a GPU, against the plain computation in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
kernels = pytest.importorskip("extremax.kernels.gpu.exact")

pytestmark = pytest.mark.extras

HALF = (torch.bfloat16, torch.float16)


class Problem:
    """Random scores and targets, and the loss of each example in float64: with smoothing, the
    square of log Z, a penalty and weights, as far as they are asked for."""

    def __init__(
        self, n: int, n_classes: int, width: int, device: torch.device, dtype: Any = torch.float32,
        weight_dtype: Any = None, bias: bool = True, shares: bool = False, squares: bool = False,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(n + n_classes + width)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.x = random(n, width).to(device, dtype)
        self.weight = (2.0 * random(n_classes, width) / width**0.5).to(
            device, weight_dtype or dtype
        )
        self.bias = random(n_classes).to(device, weight_dtype or dtype) if bias else None
        self.target = torch.randint(n_classes, (n,), generator=generator).to(device)
        self.target[0] = n_classes - 1
        self.shares = random(n_classes).abs().to(device) / n_classes if shares else None
        self.squares = squares
        # The factors of log Z, ξ_y, Σ ξ² and Σ v ξ in the loss of each example.
        self.factors = [random(n).to(device) for _ in range(4)]

    @property
    def scores(self) -> Any:
        return kernels.Scores(self.x, self.weight, self.bias)

    def plain(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Totals and gradients, by autograd."""
        given = [self.x, self.weight] + ([] if self.bias is None else [self.bias])
        leaves = [tensor.double().requires_grad_() for tensor in given]
        scores = leaves[0] @ leaves[1].T
        if self.bias is not None:
            scores = scores + leaves[2]
        totals = [scores.logsumexp(1), scores.gather(1, self.target[:, None])[:, 0]]
        if self.squares:
            totals.append(scores.square().sum(1))
        if self.shares is not None:
            totals.append(scores @ self.shares.double())
        self.loss(totals).backward()
        return [total.detach() for total in totals], [leaf.grad for leaf in leaves]

    def loss(self, totals: list[torch.Tensor]) -> torch.Tensor:
        return sum(
            (factor.to(total.dtype) * total).sum()
            for factor, total in zip(self.used(), totals, strict=True)
        )

    def used(self) -> list[torch.Tensor]:
        on_log_z, on_true, on_squares, on_shared = self.factors
        more = [on_squares / len(self.weight)] if self.squares else []
        return [on_log_z, on_true, *more] + ([] if self.shares is None else [on_shared])

    def slopes(self) -> Any:
        used = self.used()
        squares = used[2] if self.squares else None
        return kernels.Totals(*used[:2], squares, used[-1] if self.shares is not None else None)


def assert_right(problem: Problem, rounding: float = 1e-5) -> None:
    """Totals and gradients are those of float64.

    rounding:  the relative error of products in float32.
    """
    totals, gradients = problem.plain()
    found = kernels.totals(problem.scores, problem.target, problem.shares, problem.squares)
    # Products of half precision are exact in float32, but for weights rounded to the type of x.
    exact = max(rounding, 0.0 if problem.weight.dtype == problem.x.dtype else 1e-2)
    known = [total for total in found if total is not None]
    for mine, its in zip(known, totals, strict=True):
        torch.testing.assert_close(mine.double(), its, rtol=exact, atol=5.0 * exact)
    parts = kernels.gradients(
        problem.scores, problem.target, problem.shares, found.log_z, problem.slopes(),
        kernels.Wanted(True, True, problem.bias is not None),
    )  # fmt: skip
    given = [problem.x, problem.weight, problem.bias]
    for mine, its, like in zip(parts, [*gradients, None], given, strict=False):
        if like is not None:
            assert mine.dtype == like.dtype
            error = (mine.double() - its).norm() / its.norm()
            assert error < (1e-2 if problem.x.dtype in HALF else rounding), float(error)


@pytest.mark.parametrize(("n", "n_classes", "width"), [(1, 1, 1), (3, 5, 7), (150, 700, 40)])
@pytest.mark.parametrize("bias", [False, True])
def test_totals_and_gradients(n: int, n_classes: int, width: int, bias: bool, device) -> None:
    assert_right(Problem(n, n_classes, width, device, bias=bias))


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_penalty_and_shares_of_every_class(shares, squares, dtype, device) -> None:
    assert_right(Problem(9, 300, 24, device, dtype, shares=shares, squares=squares))


@pytest.mark.parametrize("types", [HALF, (torch.bfloat16, torch.float32)])
def test_chunks_and_weights_of_another_type(types, device, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_SLOPE_BYTES", 200_000)
    monkeypatch.setattr(kernels, "_COPY_BYTES", 20_000)
    assert_right(Problem(70, 1900, 17, device, *types, shares=True, squares=True))


def test_tf32_where_torch_allows_it(device) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert_right(Problem(150, 300, 40, device, shares=True, squares=True), 1e-2)
    finally:
        torch.set_float32_matmul_precision(before)


def test_classes_that_cannot_occur_have_no_slopes(device) -> None:
    problem = Problem(5, 600, 8, device)
    problem.bias[torch.arange(600, device=device) >= 256] = -torch.inf
    problem.target %= 256
    assert_right(problem)


def test_a_target_that_is_no_class_makes_the_loss_of_its_row_nan(device) -> None:
    problem = Problem(5, 30, 8, device)
    problem.target[3] = 30
    found = kernels.totals(problem.scores, problem.target, None, False)
    assert found.true.isnan().tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("regularization", [0.0, 0.05])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("one_per_row", [False, True])
def test_a_step_of_adagrad(regularization, weighted, one_per_row, device, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_SLOPE_BYTES", 20_000)
    problem = Problem(20, 700, 12, device)
    x, truth, scale, rate = problem.x, problem.target[:11], 0.7, 0.3
    rows = torch.randperm(20, generator=torch.Generator().manual_seed(0))[:11].to(device)
    weights = problem.factors[0][:11].abs() + 0.1 if weighted else None
    acc = torch.rand((700,) if one_per_row else (700, 12)).to(device) + 0.5
    bias_acc = torch.rand(700).to(device) + 0.5
    vectors = kernels.Vectors(problem.weight, acc, problem.bias, bias_acc)

    leaves = [problem.weight.double().requires_grad_(), problem.bias.double().requires_grad_()]
    scores = scale * x[rows].double() @ leaves[0].T + leaves[1]
    true = scores.gather(1, truth[:, None])[:, 0]
    penalty = true.square() + scores.square().mean(1)
    losses = scores.logsumexp(1) - true + regularization * penalty
    losses = losses if weights is None else weights.double() * losses
    losses.sum().backward()
    expected = []
    for parameter, total in zip(leaves, (acc, bias_acc), strict=True):
        square = parameter.grad.square()
        if total.ndim < parameter.ndim:
            square = square.mean(1)
        total = total.double() + square
        divisor = total.sqrt()[:, None] if total.ndim < parameter.ndim else total.sqrt()
        expected += [parameter.detach() - rate * parameter.grad / divisor, total]

    inputs = kernels.Inputs(x, rows, scale)
    found = kernels.exact_step(vectors, inputs, truth, weights, regularization, rate)
    torch.testing.assert_close(found.double(), losses.detach(), rtol=1e-5, atol=1e-5)
    for mine, its in zip(vectors, expected, strict=True):
        torch.testing.assert_close(mine.double(), its, rtol=1e-4, atol=1e-5)


def test_a_step_rounds_weights_in_bfloat16_by_chance(device, monkeypatch) -> None:
    """The mean of many roundings is the step in float32."""
    monkeypatch.setattr(kernels, "_SLOPE_BYTES", 1)
    problem = Problem(9, 600, 8, device, torch.bfloat16)
    found, n_steps = [], 64
    for seed in range(n_steps + 1):
        # Weights in float32 are not rounded.
        dtype = torch.float32 if seed == n_steps else torch.bfloat16
        weight, acc = problem.weight.to(dtype, copy=True), torch.ones((600, 8), device=device)
        bias = problem.bias.float()
        vectors = kernels.Vectors(weight, acc, bias, torch.ones(600, device=device))
        inputs = kernels.Inputs(problem.x, torch.arange(9, device=device), 1.0)
        kernels.exact_step(vectors, inputs, problem.target, None, 0.0, 0.1, seed * 100)
        found.append(weight.double())
    error = torch.stack(found[:-1]).mean(0) - found[-1]
    # One rounding errs by up to a unit of the last of 8 bits.
    unit = found[-1].abs() * 2.0**-7
    assert (error.abs() <= 5.0 * unit / n_steps**0.5 + 1e-6).all()
