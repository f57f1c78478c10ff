"""Layers on a GPU: training, saving and loading with every noise."""

from __future__ import annotations

import io

import pytest
import torch

from extremax.nn import ExtremeSoftmax, RowAdam
from extremax.nn.device_draws import device_noise
from extremax.noise import NOISES
from extremax.objectives import OBJECTIVES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
K, C = 6, 40


def problem(n: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(C, (n,), generator=generator)
    centers = 2 * torch.randn((C, K), generator=torch.Generator().manual_seed(7))
    hidden = centers[target] + torch.randn((n, K), generator=generator)
    return hidden.cuda(), target.cuda()


def layer_of(noise: str, seed: int = 0, n_negatives: int = 7, **settings) -> ExtremeSoftmax:
    torch.manual_seed(seed)
    layer = ExtremeSoftmax(K, C, noise=noise, n_negatives=n_negatives, device="cuda", **settings)
    if not layer.proposals.fitted:
        hidden, target = problem(2000, seed=1)
        layer.fit_noise(target[:, None] // 4 if noise == "bigram" else hidden, target)
    return layer


def context_of(noise: str, target):
    return target // 4 if noise == "bigram" else None


@pytest.mark.parametrize("noise", NOISES)
def test_a_layer_learns_and_resumes_from_a_file(noise):
    layer = layer_of(noise)
    probe, truth = problem(1000, seed=99)
    optimizer = RowAdam(layer.parameters(), lr=0.05)
    before = float(layer.eval()(probe, truth, context_of(noise, truth)).detach())
    layer.train()
    for seed in range(40):
        hidden, target = problem(64, seed)
        hidden.requires_grad_()
        optimizer.zero_grad()
        loss = layer(hidden, target, context_of(noise, target))
        loss.backward()
        optimizer.step()
        assert loss.device == hidden.grad.device == layer.weight.grad.device == hidden.device
        assert layer.weight.grad.is_sparse
        assert bool(loss.isfinite())
        assert bool(hidden.grad.isfinite().all())
    after = float(layer.eval()(probe, truth, context_of(noise, truth)).detach())
    assert after < before - 0.3
    layer.train()

    file = io.BytesIO()
    torch.save([layer.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True, map_location="cpu")
    other = layer_of(noise, seed=1)
    other.load_state_dict(saved[0])
    steps = RowAdam(other.parameters(), lr=0.05)
    steps.load_state_dict(saved[1])
    for seed in range(50, 53):
        hidden, target = problem(64, seed)
        losses = []
        for each, optimize in ((layer, optimizer), (other, steps)):
            optimize.zero_grad()
            losses.append(each(hidden, target, context_of(noise, target)))
            losses[-1].backward()
            optimize.step()
        # Sums of sparse gradients on a GPU have no fixed order.
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("objective", ["sampled_softmax", "nce", "negative_sampling", "exact"])
def test_losses_and_probabilities_are_those_of_the_cpu(objective, shared):
    layer = layer_of("uniform", objective=objective, shared=shared)
    hidden, target = problem(9)
    twin = ExtremeSoftmax(K, C, objective, "uniform", n_negatives=7, shared=shared)
    twin.load_state_dict(layer.state_dict())
    torch.testing.assert_close(
        layer.log_prob(hidden).cpu(), twin.log_prob(hidden.cpu()), rtol=1e-4, atol=1e-4
    )
    assert torch.equal(layer.predict(hidden).cpu(), twin.predict(hidden.cpu()))
    # Draw on the CPU for both.
    layer.proposals.on_device = lambda *_: None
    found, expected = layer(hidden, target), twin(hidden.cpu(), target.cpu())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    found.backward()
    expected.backward()
    for mine, other in zip(layer.parameters(), twin.parameters(), strict=True):
        gradient = mine.grad.cpu().to_dense()
        torch.testing.assert_close(gradient, other.grad.to_dense(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_with_softmax_noise_every_loss_of_sampled_softmax_is_the_exact_loss(m):
    layer = layer_of("softmax", n_negatives=m, reduction="none")
    hidden, target = problem(200)
    found = layer(hidden, target)
    torch.testing.assert_close(found, layer.eval()(hidden, target), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "noise", ["uniform", "frequency", "log_uniform", "tree", "mixture", "quadratic", "softmax"]
)
def test_draws_of_other_classes_follow_their_q(noise, p_value):
    layer = layer_of(noise)
    weights = (layer.weight, layer.bias)
    on_device = device_noise(layer.proposals.active, *weights)
    hidden = problem(1)[0].expand(3000, -1)
    every = torch.arange(C, device="cuda")
    best = on_device.log_prob(hidden[:1], every[None])[0].argmax()
    drawn, log_q = layer.proposals.propose(
        hidden, best.expand(3000), 7, False, *weights, others=True
    )
    others = every[every != best]
    expected = on_device.log_prob_others(hidden[:1], best.view(1, 1), others[None])[0]
    assert drawn.device == hidden.device
    assert not bool((drawn == best).any())
    positions = torch.searchsorted(others, drawn)
    torch.testing.assert_close(log_q[:, 1:], expected[positions], rtol=1e-4, atol=1e-4)
    assert p_value(positions, expected) > 1e-4


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if "augment" in name])
def test_augment_and_reduce_is_that_of_the_cpu_and_loads_there(objective):
    layer = layer_of("uniform", objective=objective, n_examples=9)
    twin = ExtremeSoftmax(K, C, objective, "uniform", n_negatives=7, n_examples=9)
    twin.load_state_dict(layer.state_dict())
    # Draw on the CPU for both.
    layer.proposals.on_device = lambda *_: None
    hidden, target = problem(9)
    for numbers in (torch.arange(9), torch.arange(5), torch.arange(8, -1, -1)):
        found = layer(hidden[numbers], target[numbers], examples=numbers.cuda())
        expected = twin(hidden[numbers].cpu(), target[numbers].cpu(), examples=numbers)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)
        found.backward()
        assert bool(layer.weight.grad.to_dense().isfinite().all())
    torch.testing.assert_close(
        layer.log_prob(hidden).cpu(), twin.log_prob(hidden.cpu()), rtol=1e-3, atol=1e-3
    )
    twin.load_state_dict(layer.state_dict())
    numbers = torch.arange(9)
    found = layer(hidden, target, examples=numbers.cuda())
    expected = twin(hidden.cpu(), target.cpu(), examples=numbers)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_tensors_on_other_devices_are_named():
    layer = layer_of("uniform")
    hidden, target = problem(5)
    with pytest.raises(ValueError, match="target is on cpu but hidden is on cuda"):
        layer(hidden, target.cpu())
    with pytest.raises(ValueError, match="hidden is on cpu but the weight is on cuda"):
        layer(hidden.cpu(), target)
