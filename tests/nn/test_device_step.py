"""The training step for a GPU, here in Triton's interpreter, against plain computations."""

from __future__ import annotations

import copy
import math
import os
from functools import partial

import pytest
import torch
from torch import nn

from extremax.nn import (
    ExtremeSoftmax,
    RowAdagrad,
    RowAdam,
    clip_grad_norm_,
    functional,
    proposals,
    scores,
)
from extremax.nn.device_draws import device_noise
from extremax.noise import MixtureNoise

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")
pytestmark = pytest.mark.extras

K, C = 6, 40
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Layers on this device step as on a GPU."""
    monkeypatch.setattr(scores, "on_gpu", lambda tensor: tensor.device.type == DEVICE)

    def on_device(self, weight, bias):
        return device_noise(self.active, weight, bias)

    monkeypatch.setattr(proposals.Proposals, "on_device", on_device)


def make_layer(**settings) -> ExtremeSoftmax:
    torch.manual_seed(0)
    settings = {"noise": "uniform", "n_negatives": 7, "device": DEVICE} | settings
    layer = ExtremeSoftmax(K, C, **settings)
    with torch.no_grad():
        layer.bias += torch.randn(C).to(DEVICE)
    return layer


def batch(n: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn((n, K), generator=generator).to(DEVICE)
    return hidden.requires_grad_(), torch.randint(C, (n,), generator=generator).to(DEVICE)


LOSSES = {
    "sampled_softmax": functional.sampled_softmax_loss,
    "negative_sampling": partial(functional.negative_sampling_loss, regularization=1e-5),
    "nce": functional.nce_loss,
    "one_vs_each": functional.one_vs_each_loss,
}


def expected_step(layer, objective, hidden, classes):
    """Losses of the classes (n, 1 + m) that were drawn, by autograd in float64."""
    x, w, b = (
        tensor.detach().double().requires_grad_() for tensor in (hidden, layer.weight, layer.bias)
    )
    xi = (w[classes] * x[:, None]).sum(2) + b[classes]
    options = {}
    if objective == "one_vs_each" or (objective == "sampled_softmax" and layer.shared):
        options["hits"] = classes[:, 1:] == classes[:, :1]
    # Uniform noise.
    log_q = torch.full_like(xi.detach(), -math.log(C))
    each = LOSSES[objective](xi, log_q, reduction="none", **options)
    each.sum().backward()
    return each.detach(), x.grad, w.grad, b.grad


@pytest.fixture
def seen(monkeypatch):
    """The classes of every step, (n, 1 + m)."""
    found = []
    propose = proposals.Proposals.propose_marked

    def remember(self, features, target, m, shared, *arguments, **more):
        classes, log_q = propose(self, features, target, m, shared, *arguments, **more)
        n, every = len(target), classes.long()
        found.append(torch.cat([every[:n, None], every[n:].expand(n, m)], 1) if shared else every)
        return classes, log_q

    monkeypatch.setattr(proposals.Proposals, "propose_marked", remember)
    return found


def gradients(layer, hidden, losses):
    losses.sum().backward()
    return losses.detach(), hidden.grad, layer.weight.grad, layer.bias.grad


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("n", [3, 11])
def test_losses_and_gradients(objective, shared, sparse, n, seen):
    layer = make_layer(objective=objective, shared=shared, sparse=sparse, reduction="none")
    hidden, target = batch(n)
    found = gradients(layer, hidden, layer(hidden, target))
    expected = expected_step(layer, objective, hidden, seen[0])
    assert torch.equal(seen[0][:, 0], target)
    assert found[2].is_sparse == found[3].is_sparse == sparse
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.to_dense().double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("objective", ["sampled_softmax", "negative_sampling", "one_vs_each"])
def test_ignored_rows_do_not_count_and_unknown_classes_are_nan(objective, shared, seen):
    layer = make_layer(objective=objective, shared=shared, sparse=True, reduction="none")
    values, target = batch(8)
    kept = torch.tensor([0, 2, 3, 5, 7])
    with torch.no_grad():
        values[1], target[1] = torch.nan, -100
        target[4], target[6] = C, -1
    losses = layer(values, target)
    assert float(losses[1].detach()) == 0.0
    assert bool(losses[[4, 6]].isnan().all())
    _, *found = gradients(layer, values, losses)
    others = layer.weight.new_tensor([1, 4, 6]).long()
    assert bool((found[0][others] == 0).all())
    each, *expected = expected_step(layer, objective, values[kept], seen[0][kept])
    torch.testing.assert_close(losses[kept].detach().double(), each, rtol=1e-4, atol=1e-5)
    found[0] = found[0][kept]
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.to_dense().double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("optimizer", [RowAdagrad, RowAdam])
@pytest.mark.parametrize("n", [3, 30])
def test_row_optimizers_take_the_steps_of_the_cpu(optimizer, shared, n, seen, monkeypatch):
    """With gradients of several batches, clipped; the largest norms are those of the CPU."""
    layer = make_layer(shared=shared)
    steps = optimizer(layer.parameters(), lr=0.1)
    twin = [nn.Parameter(p.detach().cpu().double()) for p in (layer.weight, layer.bias)]
    expected = optimizer(twin, lr=0.1)
    for seed in range(4):
        steps.zero_grad()
        dense = [torch.zeros_like(parameter) for parameter in twin]
        for part in (0, 1):
            hidden, target = batch(n, 10 * seed + part)
            layer(hidden, target).backward()
            _, _, *found = expected_step(layer, "sampled_softmax", hidden, seen[-1])
            for table, gradient in zip(dense, found, strict=True):
                table += gradient.cpu() / n
        for parameter, table in zip(twin, dense, strict=True):
            rows = table.reshape(C, -1).any(1).nonzero()[:, 0]
            parameter.grad = torch.sparse_coo_tensor(
                rows[None], table[rows], table.shape, check_invariants=True
            )
        norms = [clip_grad_norm_(of, 0.3) for of in (layer.parameters(), twin)]
        torch.testing.assert_close(norms[0].cpu().double(), norms[1], rtol=1e-4, atol=1e-5)
        steps.step()
        with monkeypatch.context() as on_cpu:
            on_cpu.setattr(scores, "on_gpu", lambda tensor: False)
            expected.step()
    for mine, wanted in zip((layer.weight, layer.bias), twin, strict=True):
        torch.testing.assert_close(
            mine.detach().cpu().double(), wanted.detach(), rtol=1e-3, atol=1e-4
        )


@pytest.mark.usefixtures("as_on_gpu")
def test_all_rows_ignored_change_nothing():
    for shared in (False, True):
        layer = make_layer(shared=shared)
        steps = RowAdam(layer.parameters(), lr=0.1)
        hidden, target = batch(4)
        layer(hidden, target).backward()
        steps.step()
        steps.zero_grad()
        before = copy.deepcopy([layer.state_dict(), steps.state_dict()["state"]])
        loss = layer(hidden, torch.full_like(target, -100))
        loss.backward()
        steps.step()
        assert float(loss.detach()) == 0.0
        assert torch.equal(layer.weight, before[0]["weight"])
        for name, tensor in steps.state_dict()["state"][0].items():
            assert torch.equal(tensor, before[1][0][name])


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize(
    "noise", ["frequency", "tree", "softmax", MixtureNoise(("frequency", "uniform")), None]
)
@pytest.mark.parametrize("shared", [False, True])
def test_every_kind_of_noise_trains(noise, shared):
    if shared and noise in ("tree", "softmax"):
        return
    layer = make_layer(noise=noise, shared=shared)
    if noise is not None and not layer.proposals.fitted:
        hidden, target = batch(300)
        layer.fit_noise(hidden, target)
    steps = RowAdagrad(layer.parameters(), lr=0.3)
    hidden, target = batch(40)
    target[3] = -100
    before = float(layer.eval()(hidden, target).detach())
    layer.train()
    for _ in range(8):
        steps.zero_grad()
        layer(hidden, target).backward()
        steps.step()
    assert float(layer.eval()(hidden, target).detach()) < before - 0.2
    assert layer.proposals.n_steps == 8
    if noise is None:
        assert int(layer._first.counts.sum()) == 8 * 39


@pytest.mark.usefixtures("as_on_gpu")
def test_a_state_dict_restores_the_draws():
    layer, other = make_layer(), make_layer(n_negatives=7)
    hidden, target = batch(5)
    for _ in range(3):
        layer(hidden, target)
    other.load_state_dict(layer.state_dict())
    found, again = layer(hidden, target), layer(hidden, target)
    assert torch.equal(found, other(hidden, target))
    assert not torch.equal(found, again)
    assert other.proposals.n_steps == 4
