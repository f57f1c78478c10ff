"""Compiled models, as one graph, compute what the same model computes without compilation."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import nn

from extremax.nn import ExtremeSoftmax, RowAdam
from extremax.noise import NOISES
from extremax.objectives import OBJECTIVES

K, C = 6, 40


class Model(nn.Module):
    def __init__(self, **settings) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(5, K), nn.Tanh())
        self.output = ExtremeSoftmax(K, C, **{"n_negatives": 7} | settings)

    def forward(self, x, target, *more):
        return 2.0 * self.output(self.network(x), target, *more)


def problem(n: int, device: str = "cpu", seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(C, (n,), generator=generator)
    return torch.randn((n, 5), generator=generator).to(device), target.to(device)


def twins(device: str = "cpu", backend: str = "aot_eager", **settings):
    """A model, and a copy that is compiled, with the state of its draws."""
    torch.compiler.reset()
    torch.manual_seed(0)
    plain = Model(**settings).to(device)
    if not plain.output.proposals.fitted and settings.get("noise") is not None:
        x, target = problem(500, seed=9)
        with torch.no_grad():
            hidden = plain.network.cpu()(x)
        plain.network.to(device)
        rows = target[:, None] // 4 if settings["noise"] == "bigram" else hidden
        plain.output.fit_noise(rows, target)
    other = copy.deepcopy(plain)
    return plain, other, torch.compile(other, backend=backend, fullgraph=True)


def assert_same_steps(plain, other, compiled, device="cpu", **settings):
    """Three steps, from the same state, with losses, gradients and draws that agree."""
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.05) for each in (plain, other)]
    for seed in range(3):
        x, target = problem(9, device, seed)
        target[seed] = -100
        more = [target.clamp(min=0) // 4] if settings.get("noise") == "bigram" else []
        if settings.get("n_examples"):
            more = [None, torch.arange(9, device=device)]
        losses = plain(x, target, *more), compiled(x, target, *more)
        torch.testing.assert_close(*losses)
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for mine, its in zip(plain.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.to_dense(), its.grad, rtol=1e-4, atol=1e-5)
    assert plain.output.proposals.n_steps == other.output.proposals.n_steps


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("shared", [False, True])
def test_training_in_one_graph(backend, shared, device):
    settings = {"shared": shared}
    plain, other, compiled = twins(device, backend, **settings)
    assert_same_steps(plain, other, compiled, device, **settings)
    assert other.output._first.n_batches == 3


@pytest.mark.extras
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_training_with_the_default_backend(device, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert_same_steps(*twins(device, "inductor"), device)


@pytest.mark.parametrize("noise", [name for name in NOISES if name != "sparse_tree"])
def test_every_noise(noise):
    assert_same_steps(*twins(noise=noise), noise=noise)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective(objective):
    settings = {"objective": objective, "n_examples": 9}
    if not objective.startswith("augment"):
        settings = {"objective": objective}
    assert_same_steps(*twins(**settings), **settings)


@pytest.mark.parametrize("objective", ["sampled_softmax", "negative_sampling", "exact"])
def test_evaluation_in_one_graph(objective):
    plain, other, compiled = twins(objective=objective, noise="frequency")
    x, target = problem(9)
    target[2] = -100
    plain.eval()
    other.eval()
    torch.testing.assert_close(compiled(x, target), plain(x, target))
    layer = other.output
    log_prob = torch.compile(layer.log_prob, backend="aot_eager", fullgraph=True)
    hidden = other.network(x)
    torch.testing.assert_close(log_prob(hidden), layer.log_prob(hidden))


def test_operators_check_values_when_they_run():
    _, _, compiled = twins()
    x, target = problem(9)
    compiled(x, target)
    with pytest.raises(ValueError, match="target has class 40, not in"):
        compiled(x, target.clamp(min=40))
    with pytest.raises(ValueError, match="must be finite"):
        compiled(x * float("nan"), target)


def test_another_batch_size_and_autocast():
    plain, _, compiled = twins()
    for n in (9, 5, 12):
        x, target = problem(n)
        torch.testing.assert_close(compiled(x, target), plain(x, target))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(x, target), plain(x, target)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_gradients_are_dense_also_for_row_optimizers():
    plain, other, compiled = twins()
    steps = RowAdam(other.parameters(), lr=0.05)
    x, target = problem(9)
    compiled(x, target).backward()
    assert not other.output.weight.grad.is_sparse
    steps.step()
    RowAdam(plain.parameters())
    plain(x, target).backward()
    assert plain.output.weight.grad.is_sparse


def test_the_operators_keep_the_rules_of_torch(device):
    """Schemas, fake kernels and autograd registrations, as `torch.library.opcheck` tests them."""
    from extremax.nn import ops

    torch.manual_seed(0)
    layer = ExtremeSoftmax(K, C, n_negatives=7, noise="uniform", device=device)
    sampled_losses = layer.sampled_losses

    def same_draws(*arguments):
        layer.proposals.n_steps = 0
        return sampled_losses(*arguments)

    layer.sampled_losses = same_draws
    hidden = torch.randn((9, K), device=device, requires_grad=True)
    target = torch.randint(C, (9,), device=device)
    arguments = (hidden, layer.weight, layer.bias, target, None, None, layer._number, 7)
    for shared in (False, True):
        layer.shared = shared
        torch.library.opcheck(ops.sampled_losses, (*arguments, shared, False, False))
    features = hidden.detach()
    torch.library.opcheck(ops.log_q_of_all, (features, layer._number, C))


def test_a_second_derivative_is_refused():
    torch.manual_seed(0)
    layer = ExtremeSoftmax(K, C, n_negatives=7)
    hidden = torch.randn((9, K), requires_grad=True)
    loss = layer(hidden, torch.arange(9))
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()
