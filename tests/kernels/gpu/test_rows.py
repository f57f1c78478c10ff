"""Steps of optimizers on the rows of sparse gradients on a GPU, against torch in float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
kernels = pytest.importorskip("extremax.kernels.gpu.rows")
head = pytest.importorskip("extremax.kernels.gpu.head")

pytestmark = pytest.mark.extras

N_ROWS = 13


def gradient(n: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows, a few of them frequent, and values."""
    generator = torch.Generator().manual_seed(seed)
    chance = 1.0 / (1.0 + torch.arange(N_ROWS)) ** 2
    rows = torch.multinomial(chance, n, True, generator=generator)
    return rows, torch.randn((n, width), generator=generator)


def dense(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    table = torch.zeros((N_ROWS, values.shape[1]), dtype=torch.float64)
    return table.index_add_(0, rows, values.double())


@pytest.fixture(params=[1, 4, 64])
def segment(request, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_SEGMENT", request.param)


@pytest.mark.usefixtures("segment")
@pytest.mark.parametrize(("n", "width"), [(1, 5), (60, 16), (37, 33), (80, 1)])
def test_sums(n: int, width: int, device: torch.device) -> None:
    rows, values = gradient(n, width, 0)
    groups = head.group_by_class(rows.to(device))
    expected = dense(rows, values).float()
    table = torch.zeros((N_ROWS, width), device=device)
    kernels.sum_into(table, groups, values.to(device))
    torch.testing.assert_close(table.cpu(), expected, rtol=1e-4, atol=1e-5)
    found = kernels.combined(groups, values.to(device)).cpu()
    places = groups.classes.long().cpu()
    torch.testing.assert_close(dense(places, found).float(), expected, rtol=1e-4, atol=1e-5)
    # One place per row at most has values.
    used = found.ne(0.0).any(1)
    assert len(places[used].unique()) == int(used.sum())


@pytest.mark.usefixtures("segment")
@pytest.mark.parametrize(("n", "width"), [(1, 5), (60, 16), (37, 33), (80, 1)])
def test_adagrad(n: int, width: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn((N_ROWS, width), generator=generator)
    wanted = torch.nn.Parameter(start.double())
    theirs = torch.optim.Adagrad([wanted], lr=0.1, initial_accumulator_value=0.2, eps=1e-6)
    parameter, total = start.to(device), torch.full_like(start, 0.2).to(device)
    for seed in range(3):
        rows, values = gradient(n, width, seed)
        wanted.grad = dense(rows, values)
        theirs.step()
        groups = head.group_by_class(rows.to(device))
        kernels.adagrad(groups, values.to(device), parameter, total, 0.1, 1e-6)
    torch.testing.assert_close(parameter.cpu(), wanted.detach().float(), rtol=1e-4, atol=1e-5)
    sums = theirs.state[wanted]["sum"].float()
    torch.testing.assert_close(total.cpu(), sums, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("segment")
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
@pytest.mark.parametrize(("n", "width"), [(1, 5), (60, 16), (37, 33), (80, 1)])
def test_adam_with_steps_of_each_row(n: int, width: int, betas, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn((N_ROWS, width), generator=generator)
    # Every row is a parameter of its own, which has a gradient or none.
    wanted = [torch.nn.Parameter(row.double()) for row in start]
    theirs = torch.optim.Adam(wanted, lr=0.05, betas=betas, eps=1e-6)
    parameter, steps = start.to(device), torch.zeros((N_ROWS, 1), device=device)
    moments = torch.zeros_like(parameter), torch.zeros_like(parameter)
    for seed in range(4):
        rows, values = gradient(n, width, seed)
        # Zeros for a row are no step of it.
        rows, values = torch.cat([rows, torch.tensor([12])]), torch.cat([values, 0 * values[:1]])
        touched = dense(rows, values)
        for row, own in enumerate(wanted):
            own.grad = touched[row] if bool(touched[row].any()) else None
        theirs.step()
        groups = head.group_by_class(rows.to(device))
        kernels.adam(groups, values.to(device), parameter, moments, steps, 0.05, betas, 1e-6)
    expected = torch.stack([own.detach() for own in wanted]).float()
    torch.testing.assert_close(parameter.cpu(), expected, rtol=1e-4, atol=1e-5)
    counts = [float(theirs.state[own].get("step", 0.0)) for own in wanted]
    assert steps[:, 0].tolist() == counts


def test_the_same_step_gives_the_same_bits(device: torch.device) -> None:
    found = []
    for _ in range(2):
        rows, values = gradient(90, 16, 0)
        parameter, total = (torch.ones((N_ROWS, 16), device=device) for _ in range(2))
        groups = head.group_by_class(rows.to(device))
        kernels.adagrad(groups, values.to(device), parameter, total, 0.1, 0.0)
        found.append(parameter)
    assert torch.equal(*found)


def test_bfloat16(device: torch.device) -> None:
    rows, values = gradient(60, 16, 0)
    parameter = torch.ones((N_ROWS, 16), dtype=torch.bfloat16, device=device)
    total = torch.ones_like(parameter)
    groups = head.group_by_class(rows.to(device))
    kernels.adagrad(groups, values.to(device), parameter, total, 0.1, 1e-10)
    g = dense(rows, values)
    expected = 1.0 - 0.1 * g / (1.0 + g.square()).sqrt()
    torch.testing.assert_close(parameter.cpu().double(), expected, rtol=1e-2, atol=1e-2)
