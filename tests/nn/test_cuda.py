"""Layers on a GPU: training, saving and loading with every noise."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from extremax.nn import ExtremeSoftmax, RowAdagrad, RowAdam, clip_grad_norm_
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


def training_step(layer, optimizer, hidden, target, context=None):
    optimizer.zero_grad()
    loss = layer(hidden, target, context)
    loss.backward()
    clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("optimizer", [RowAdagrad, RowAdam])
@pytest.mark.parametrize(
    ("noise", "shared"),
    [("uniform", False), ("uniform", True), ("frequency", False), ("frequency", True),
     ("bigram", False), ("tree", False), ("mixture", False), ("softmax", False), (None, False)],
)  # fmt: skip
def test_a_training_step_does_not_wait_for_the_device(noise, shared, optimizer):
    layer = (
        layer_of(noise, shared=shared)
        if noise
        else ExtremeSoftmax(K, C, n_negatives=7, device="cuda")
    )
    steps = optimizer(layer.parameters(), lr=0.1)
    hidden, target = problem(64)
    hidden.requires_grad_()
    target[3] = -100
    context = context_of(noise, target.clamp(min=0))
    # Kernels are compiled and states created; a layer that counts classes refits after 1, 2 and 4.
    for _ in range(4):
        training_step(layer, steps, hidden, target, context)
    torch.cuda.set_sync_debug_mode("error")
    try:
        training_step(layer, steps, hidden, target, context)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("optimizer", [RowAdagrad, RowAdam])
@pytest.mark.parametrize(
    ("noise", "shared"),
    [("uniform", False), ("frequency", True), ("tree", False), ("mixture", False)],
)
def test_a_captured_step_trains_as_the_step_itself(noise, shared, optimizer):
    layer = layer_of(noise, shared=shared)
    twin = copy.deepcopy(layer)
    steps, others = (optimizer(each.parameters(), lr=0.1) for each in (layer, twin))
    hidden, target = problem(64)
    hidden.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            training_step(layer, steps, hidden, target)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training_step(layer, steps, hidden, target)
    losses = []
    for seed in range(5):
        with torch.no_grad():
            hidden.copy_(problem(64, seed)[0])
            target.copy_(problem(64, seed)[1])
        graph.replay()
        losses.append(loss.clone())
    first, first_target = problem(64)
    for _ in range(3):
        training_step(twin, others, first.requires_grad_(), first_target)
    for seed, replayed in enumerate(losses):
        own, own_target = problem(64, seed)
        expected = training_step(twin, others, own.requires_grad_(), own_target)
        torch.testing.assert_close(replayed, expected, rtol=1e-3, atol=1e-3)
    assert layer.proposals.n_steps == twin.proposals.n_steps == 8
    for mine, wanted in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-3)


def test_a_graph_has_new_draws_whenever_it_is_replayed():
    layer = layer_of("uniform")
    hidden, target = problem(64)
    for _ in range(2):
        layer(hidden, target)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = layer(hidden, target)
    losses = []
    for _ in range(5):
        graph.replay()
        losses.append(float(loss))
    assert len(set(losses)) == 5


def test_a_layer_that_counts_classes_is_not_captured():
    layer = ExtremeSoftmax(K, C, n_negatives=7, device="cuda")
    hidden, target = problem(64)
    layer(hidden, target)
    with (
        pytest.raises(ValueError, match="cannot be captured in a CUDA graph: pass labels="),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        layer(hidden, target)


@pytest.mark.parametrize("shared", [False, True])
def test_autocast_changes_losses_by_rounding_only(shared):
    layer = layer_of("uniform", shared=shared)
    hidden, target = problem(64)
    twin = copy.deepcopy(layer)
    expected = twin(hidden, target)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = layer(hidden.bfloat16(), target)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    found.backward()
    expected.backward()
    for mine, wanted in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=5e-2, atol=5e-3)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD]
)
def test_optimizers_of_torch_take_the_sparse_gradients(optimizer):
    """As the same gradients made dense; rows that stand for no class hold zeros."""
    layer = layer_of("uniform", sparse=True)
    steps = optimizer(layer.parameters(), lr=0.1)
    hidden, target = problem(3)
    target[1] = -100
    layer(hidden, target).backward()
    gradient = layer.weight.grad.coalesce()
    before = layer.weight.detach().clone()
    steps.step()
    moved = (layer.weight.detach() != before).any(1)
    touched = torch.zeros(C, dtype=torch.bool, device="cuda")
    touched[gradient.indices()[0][gradient.values().any(1)]] = True
    assert torch.equal(moved, touched)


def test_a_class_out_of_range_gives_nan_and_harms_no_weight():
    layer = layer_of("uniform")
    steps = RowAdagrad(layer.parameters(), lr=0.1)
    hidden, target = problem(9)
    target[2] = C
    loss = layer(hidden, target)
    assert bool(loss.isnan())
    loss.backward()
    steps.step()
    assert bool(layer.weight.isfinite().all())
