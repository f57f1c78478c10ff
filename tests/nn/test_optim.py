"""Row optimizers equal the dense optimizer on touched rows and change no other row."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor

from extremax.nn import RowAdagrad, RowAdam

PAIRS = {
    "adagrad": (
        lambda p: RowAdagrad(p, lr=0.1, initial_accumulator_value=0.3),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.3),
    ),
    "adam": (
        lambda p: RowAdam(p, lr=0.05, betas=(0.8, 0.95)),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95)),
    ),
}


def parameters(seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((7, 3), (7,), (2, 3, 2), ())
    return [torch.nn.Parameter(torch.randn(s, generator=generator).double()) for s in shapes]


def sparse_rows(rows: list[int], values: Tensor, like: Tensor) -> Tensor:
    index = torch.tensor([rows])
    return torch.sparse_coo_tensor(index, values, like.shape, check_invariants=True)


@pytest.mark.parametrize("name", PAIRS)
def test_dense_gradients_give_the_dense_optimizer(name):
    ours, theirs = parameters(), parameters()
    optimizers = PAIRS[name][0](ours), PAIRS[name][1](theirs)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        for mine, other in zip(ours, theirs, strict=True):
            gradient = torch.randn(mine.shape, generator=generator).double()
            mine.grad, other.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", PAIRS)
def test_sparse_gradients_of_all_rows_give_the_dense_optimizer_too(name):
    ours, theirs = parameters()[:2], parameters()[:2]
    optimizers = PAIRS[name][0](ours), PAIRS[name][1](theirs)
    generator = torch.Generator().manual_seed(2)
    # Row 4 twice: its gradients add up.
    rows = [4, 0, 6, 1, 4, 3, 2, 5]
    for _ in range(5):
        for mine, other in zip(ours, theirs, strict=True):
            values = torch.randn((8, *mine.shape[1:]), generator=generator).double()
            mine.grad = sparse_rows(rows, values, mine)
            other.grad = torch.zeros_like(other).index_add_(0, torch.tensor(rows), values)
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", PAIRS)
def test_a_row_moves_by_the_steps_that_touch_it_and_no_others(name):
    """Each row is the dense optimizer run on that row's own gradients."""
    generator = torch.Generator().manual_seed(3)
    (mine,) = parameters()[:1]
    alone = [torch.nn.Parameter(row.detach().clone()) for row in mine]
    optimizer = PAIRS[name][0]([mine])
    optimizers = [PAIRS[name][1]([row]) for row in alone]
    for step in range(8):
        rows = [step % 3, 3 + step % 2] + ([5] if step == 7 else [])
        values = torch.randn((len(rows), 3), generator=generator).double()
        before = mine.detach().clone()
        mine.grad = sparse_rows(rows, values, mine)
        optimizer.step()
        others = [r for r in range(7) if r not in rows]
        assert torch.equal(mine[others], before[others])
        for row, value in zip(rows, values, strict=True):
            alone[row].grad = value.clone()
            optimizers[row].step()
    torch.testing.assert_close(mine.detach(), torch.stack([row.detach() for row in alone]))


@pytest.mark.parametrize("name", PAIRS)
def test_a_loaded_state_resumes_training(name):
    generator = torch.Generator().manual_seed(4)
    gradients = [torch.randn((3, 3), generator=generator).double() for _ in range(6)]

    def run(parameter, optimizer, steps):
        for i in steps:
            parameter.grad = sparse_rows([i, (i + 2) % 7, 6], gradients[i], parameter)
            optimizer.step()

    whole, first = parameters()[0], parameters()[0]
    run(whole, PAIRS[name][0]([whole]), range(6))
    optimizer = PAIRS[name][0]([first])
    run(first, optimizer, range(3))
    part = torch.nn.Parameter(first.detach().clone())
    other = PAIRS[name][0]([part])
    saved = optimizer.state_dict()
    other.load_state_dict(copy.deepcopy(saved))
    run(part, other, range(3, 6))
    assert torch.equal(whole, part)


def test_half_precision_counts_steps_beyond_256():
    (half,) = (torch.nn.Parameter(p.detach().bfloat16()) for p in parameters()[:1])
    optimizer = RowAdam([half])
    half.grad = torch.ones_like(half)
    optimizer.step()
    # bfloat16 represents 256 and 258, but not 257.
    optimizer.state[half]["steps"].fill_(257.0)
    other = RowAdam([half])
    other.load_state_dict(optimizer.state_dict())
    steps = other.state[half]["steps"]
    assert steps.dtype == torch.float32
    assert bool((steps == 257).all())
    other.step()
    assert bool((other.state[half]["steps"] == 258).all())
    assert bool((optimizer.state[half]["steps"] == 257).all())


@pytest.mark.parametrize("name", PAIRS)
def test_the_gradient_is_unchanged_and_no_warning_is_raised(name):
    (mine,) = parameters()[:1]
    gradient = sparse_rows([1, 2], torch.ones((2, 3)).double(), mine).coalesce()
    mine.grad = gradient
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PAIRS[name][0]([mine]).step()
    assert bool((gradient.values() == 1).all())


def test_closures_return_the_loss_and_bad_settings_raise():
    (mine,) = parameters()[:1]
    optimizer = RowAdagrad([mine], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = mine.square().sum()
        loss.backward()
        return loss

    before = float(mine.detach().square().sum())
    assert float(optimizer.step(closure).detach()) == before
    assert float(mine.detach().square().sum()) < before
    with pytest.raises(ValueError, match="lr must be a number >= 0, got -1"):
        RowAdagrad([mine], lr=-1)
    with pytest.raises(ValueError, match="eps must be"):
        RowAdam([mine], eps=float("nan"))
    with pytest.raises(ValueError, match="betas must be two numbers"):
        RowAdam([mine], betas=(0.9, 1.0))
    mine.grad = torch.sparse_coo_tensor(
        torch.tensor([[0], [1]]), torch.ones(1).double(), (7, 3), check_invariants=True
    )
    with pytest.raises(ValueError, match="sparse in its first dimension only"):
        optimizer.step()
