"""Sampled softmax of a layer has the gradient of full softmax where q is the softmax."""

from __future__ import annotations

import copy
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear, one_hot

from extremax.nn.device_draws import device_noise
from extremax.noise import FrequencyNoise
from extremax.objectives import SampledSoftmax


def all_draws(classes, m) -> torch.Tensor:
    return torch.tensor(list(product(classes, repeat=m)))


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_mean_gradient_over_all_draws_of_other_classes_is_exact(m, make_layer, make_batch):
    layer = make_layer(n_classes=6, n_negatives=m, reduction="none")
    hidden, _ = make_batch(1)
    for y in (0, 4):
        log_p = layer.log_prob(hidden.detach())[0].detach()
        log_others = log_p - torch.log1p(-log_p[y].exp())
        drawn = all_draws([k for k in range(6) if k != y], m)
        log_q = torch.cat([log_p[y].expand(len(drawn), 1), log_others[drawn]], 1)
        layer.proposals.propose = lambda *_, drawn=drawn, log_q=log_q, **__: (drawn, log_q)
        layer.zero_grad()
        rows = hidden.detach().expand(len(drawn), -1)
        losses = layer(rows, torch.full((len(drawn),), y))
        (log_others[drawn].sum(1).exp() * losses).sum().backward()
        expected = log_p.exp() - one_hot(torch.tensor(y), 6)
        torch.testing.assert_close(layer.bias.grad.to_dense(), expected, atol=1e-12, rtol=0)
        weight_gradient = expected[:, None] * hidden.detach()
        torch.testing.assert_close(
            layer.weight.grad.to_dense(), weight_gradient, atol=1e-12, rtol=0
        )


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_mean_gradient_over_all_shared_draws_is_exact(m, make_layer):
    """Draws from all of q: rows whose draws are all the target are made up for by the others."""
    log_p = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64).log()
    layer = make_layer(n_classes=3, n_negatives=1, shared=True)
    with torch.no_grad():
        layer.bias.copy_(log_p)
    target = torch.tensor([0, 0, 2])
    for drawn in all_draws(range(3), m):
        log_q = torch.cat([log_p[target, None], log_p[drawn].expand(3, m)], 1)
        layer.proposals.propose = lambda *_, drawn=drawn, log_q=log_q, **__: (drawn, log_q)
        loss = layer(torch.zeros(3, 6, dtype=torch.float64), target)
        (log_p[drawn].sum().exp() * loss).backward()
    expected = log_p.exp() - one_hot(target, 3).double().mean(0)
    torch.testing.assert_close(layer.bias.grad.to_dense(), expected, atol=1e-12, rtol=0)


def test_the_penalty_of_shared_draws_is_not_weighted(make_layer, make_batch):
    plain, penalized = (
        make_layer(objective=SampledSoftmax(regularization=rate), shared=True, reduction="none")
        for rate in (0.0, 0.3)
    )
    hidden, target = make_batch(9)
    drawn, _ = copy.deepcopy(plain.proposals).propose(
        hidden, target, 7, True, plain.weight, plain.bias
    )
    squares = linear(hidden, plain.weight, plain.bias).square()
    penalty = squares.gather(1, target[:, None])[:, 0] + squares[:, drawn].mean(1)
    found = penalized(hidden, target) - plain(hidden, target)
    torch.testing.assert_close(found, 0.3 * penalty)
    gradients = (torch.autograd.grad(v.sum(), hidden)[0] for v in (found, 0.3 * penalty))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_with_softmax_noise_every_loss_is_the_exact_loss(
    m, on_device, make_layer, make_batch, monkeypatch
):
    layer = make_layer(noise="softmax", n_negatives=m, reduction="none", dtype=torch.float32)
    with torch.no_grad():
        layer.bias[3] += 6.0  # q of class 3 is almost one.
    hidden, target = make_batch(200, dtype=torch.float32)
    target[:50] = 3
    if on_device:
        form = device_noise(layer.proposals.active, layer.weight, layer.bias)
        monkeypatch.setattr(layer.proposals, "on_device", lambda *_: form)
    expected = cross_entropy(linear(hidden, layer.weight, layer.bias), target, reduction="none")
    torch.testing.assert_close(layer(hidden, target), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("m", [1, 10])
def test_training_with_softmax_noise_finds_the_share_of_a_frequent_class(m, make_layer):
    target = torch.zeros(400, dtype=torch.int64)
    target[361:] = 1 + torch.arange(39) % 11
    layer = make_layer(n_classes=12, noise="softmax", n_negatives=m, dtype=torch.float32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=2.0)
    hidden = torch.zeros(400, 6)
    for _ in range(200):
        optimizer.zero_grad()
        layer(hidden, target).backward()
        optimizer.step()
    share = float(layer.log_prob(hidden[:1])[0, 0].detach().exp())
    assert abs(share - 361 / 400) < 0.005


def test_targets_that_nearly_all_shared_draws_hit_have_finite_losses(make_layer, make_batch):
    labels = np.zeros(10**6, np.int64)
    noise = FrequencyNoise().fit(labels[:, None], labels, 40)
    layer = make_layer(noise=noise, shared=True, reduction="none")
    hidden, _ = make_batch(4)
    losses = layer(hidden, torch.tensor([0, 0, 1, 2]))
    losses.sum().backward()
    assert bool(losses.isfinite().all())
    assert bool(hidden.grad.isfinite().all())
