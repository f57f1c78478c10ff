"""Adam at sparse cost against torch's dense Adam."""

from __future__ import annotations

import numpy as np
import torch

from extremax.heads.adam_table import AdamTable

N, WIDTH = 30, 5


def both(touched: int, steps: int, rate: float = 1e-2) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Values by a table and by torch after the same gradients, and how far torch's moved."""
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.standard_normal((N, WIDTH), np.float32))
    table, dense = AdamTable(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([dense], lr=rate)
    for step in range(steps):
        rows = np.sort(rng.choice(N, touched, replace=False))
        # Gradients of a mean other than zero, so that momentum builds up.
        gradient = torch.from_numpy(rng.standard_normal((touched, WIDTH), np.float32) + 1.0)
        falling = rate * (1 - step / steps)
        dense.grad = torch.zeros_like(dense)
        dense.grad[torch.from_numpy(rows)] = gradient
        optimizer.param_groups[0]["lr"] = falling
        optimizer.step()
        table.read(rows)
        table.step(rows, gradient, falling)
    table.catch_up()
    moved = float((dense.detach() - start).abs().mean())
    return table.values, dense.detach(), moved


def test_it_is_adam_where_every_step_touches_every_row() -> None:
    values, expected, _ = both(touched=N, steps=50)
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)


def test_rows_that_were_left_alone_make_up_for_it() -> None:
    values, expected, moved = both(touched=4, steps=400)
    error = float((values - expected).abs().mean())
    assert error < 0.03 * moved
    # Leaving untouched rows where they are is another method.
    alone, _, _ = lazily(touched=4, steps=400)
    assert float((alone - expected).abs().mean()) > 3 * error


def lazily(touched: int, steps: int) -> tuple[torch.Tensor, None, None]:
    """The same without catching up: rows stay where the last step left them."""
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.standard_normal((N, WIDTH), np.float32))
    table = AdamTable(start.clone())
    for step in range(steps):
        rows = np.sort(rng.choice(N, touched, replace=False))
        gradient = torch.from_numpy(rng.standard_normal((touched, WIDTH), np.float32) + 1.0)
        table.last[:] = table.steps
        table.step(rows, gradient, 1e-2 * (1 - step / steps))
    return table.values, None, None


def test_rows_that_no_step_touched_stay() -> None:
    table = AdamTable(torch.ones(4, 3))
    for _ in range(5):
        table.read(np.array([1]))
        table.step(np.array([1]), torch.ones(1, 3), 0.1)
    table.catch_up()
    assert torch.equal(table.values[[0, 2, 3]], torch.ones(3, 3))
    assert (table.values[1] < 0.9).all()


def test_rows_that_come_later_train_as_others_do() -> None:
    table = AdamTable(torch.ones(2, 3))
    table.read(np.array([0]))
    table.step(np.array([0]), torch.ones(1, 3), 0.1)
    before = table.values.clone()
    table.grow(torch.zeros(2, 3))
    assert torch.equal(table.values[:2], before)
    table.read(np.array([3]))
    table.step(np.array([3]), torch.ones(1, 3), 0.1)
    assert (table.values[3] < 0).all()
