"""Noises that follow a weight: which changes they notice, and at what cost."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from extremax.nn import ExtremeSoftmax, RowAdagrad


@pytest.fixture(params=[torch.float32, torch.float64], ids=["shared memory", "copy"])
def tied(request):
    """A layer with quadratic noise, and the embedding whose weight it shares."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(40, 6, sparse=True, dtype=request.param)
    layer = ExtremeSoftmax(
        6, 40, noise="quadratic", n_negatives=3, weight=embedding.weight, sparse=True
    )
    return layer, embedding


def loss_of(layer, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn((2, 6), generator=generator, dtype=torch.float64)
    target = torch.randint(40, (2,), generator=generator)
    return layer(hidden.to(layer.weight.dtype), target)


def assert_up_to_date(layer):
    probe = torch.randn((3, 6), generator=torch.Generator().manual_seed(9))
    found = layer.proposals.log_prob_all(probe, layer.weight, layer.bias)
    scores = linear(probe.double(), layer.weight.double(), layer.bias.double()).detach()
    expected = torch.log_softmax(torch.log(100 * scores.square() + 1), 1).float()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_a_draw_between_backward_and_step(tied):
    layer, _ = tied
    steps = RowAdagrad(layer.parameters(), lr=0.5)
    for seed in range(3):
        steps.zero_grad()
        loss_of(layer, seed).backward()
        loss_of(layer, 10 + seed)
        steps.step()
        assert_up_to_date(layer)


def test_gradients_that_add_up_before_a_step(tied):
    layer, _ = tied
    steps = RowAdagrad(layer.parameters(), lr=0.5)
    for seed in range(3):
        loss_of(layer, seed).backward()
    steps.step()
    assert_up_to_date(layer)


def test_a_weight_and_a_bias_changed_by_hand(tied):
    layer, embedding = tied
    loss_of(layer, 0)
    with torch.no_grad():
        layer.weight[7] += 2.0
    assert_up_to_date(layer)
    with torch.no_grad():
        layer.bias[5] += 2.0
    assert_up_to_date(layer)
    # Also if a step on other rows follows.
    with torch.no_grad():
        layer.weight[7] -= 3.0
    embedding(torch.arange(10, 13)).square().sum().backward()
    RowAdagrad(layer.parameters(), lr=0.5).step()
    assert_up_to_date(layer)


def test_a_state_dict_loaded_into_a_layer_that_has_drawn(tied):
    layer, _ = tied
    loss_of(layer, 0)
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v
             for k, v in layer.state_dict().items()}  # fmt: skip
    state["weight"] += 1.0
    layer.load_state_dict(state)
    assert_up_to_date(layer)


def test_a_frozen_weight_with_a_bias_that_learns(tied):
    layer, _ = tied
    layer.weight.requires_grad_(False)
    steps = RowAdagrad([layer.bias], lr=0.5)
    for seed in range(2):
        steps.zero_grad()
        loss_of(layer, seed).backward()
        steps.step()
        assert_up_to_date(layer)


def test_a_step_costs_its_rows_and_not_all_of_them(tied, monkeypatch):
    layer, _ = tied
    attached = []
    noise = layer.proposals.active
    attach = noise.attach
    monkeypatch.setattr(noise, "attach", lambda v: (attached.append(v), attach(v)))
    steps = RowAdagrad(layer.parameters(), lr=0.5)
    for seed in range(5):
        steps.zero_grad()
        loss_of(layer, seed).backward()
        steps.step()
    assert len(attached) == 1


def test_gradients_without_a_step_do_not_pile_up(tied):
    layer, _ = tied
    for seed in range(30):
        loss_of(layer, seed).backward()
    assert sum(map(len, layer.proposals.follower.touched)) <= 40


def test_a_replaced_noise_stops_watching_the_weight(tied):
    layer, _ = tied
    for seed in range(3):
        loss_of(layer, seed).backward()
        layer.load_state_dict(layer.state_dict())
        layer.fit_noise(None, torch.arange(40))
    loss_of(layer, 3)
    assert len(layer.weight._post_accumulate_grad_hooks) == 1
