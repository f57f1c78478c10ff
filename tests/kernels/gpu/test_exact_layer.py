"""The layer's exact loss by kernels, against the plain computation in float64."""

from __future__ import annotations

import copy

import pytest
import torch

from extremax.nn import ExtremeSoftmax, exact, probabilities
from extremax.objectives import ExactSoftmax

pytest.importorskip("triton")

pytestmark = pytest.mark.extras

K, C = 24, 300


@pytest.fixture
def make_layer(device, monkeypatch):
    """Layers that use the kernels, and twins in float64 that do not."""
    monkeypatch.setattr(
        probabilities, "has_kernels", lambda hidden, weight: weight.dtype != torch.float64
    )

    def make(**settings):
        torch.manual_seed(0)
        layer = ExtremeSoftmax(K, C, **{"objective": "exact"} | settings).to(device)
        if layer.bias is not None:
            torch.nn.init.normal_(layer.bias)
        return layer, copy.deepcopy(layer).double()

    return make


def batch(n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    target = torch.randint(C, (n,), generator=generator)
    target[n // 2] = -100
    return torch.randn((n, K), generator=generator).to(device), target.to(device)


def assert_same(layer, twin, n, device, tolerance=1e-5, call=None):
    hidden, target = batch(n, device)
    hidden = hidden.to(layer.weight.dtype).requires_grad_()
    plain = hidden.detach().double().requires_grad_()
    found = layer(hidden, target) if call is None else call(hidden, target)
    expected = twin(plain, target)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    times = torch.rand(found.shape, generator=torch.Generator().manual_seed(5)).to(device)
    (times * found).sum().backward()
    (times * expected).sum().backward()
    pairs = [(hidden, plain), *zip(layer.parameters(), twin.parameters(), strict=True)]
    for mine, its in pairs:
        assert mine.grad.dtype == mine.dtype
        error = (mine.grad.double() - its.grad).norm() / its.grad.norm()
        assert error < tolerance, float(error)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_term_of_the_loss(smoothing, z_loss, weighted, make_layer, device):
    settings = {"label_smoothing": smoothing, "z_loss": z_loss, "reduction": "none"}
    settings["class_weight"] = torch.rand(C) if weighted else None
    assert_same(*make_layer(objective=ExactSoftmax(0.02), **settings), 9, device)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [False, True])
def test_reductions_and_layers_without_a_bias(reduction, bias, make_layer, device):
    assert_same(*make_layer(reduction=reduction, bias=bias), 9, device)


def test_half_precision(make_layer, device):
    layer, _ = make_layer(label_smoothing=0.1)
    layer = layer.bfloat16()
    assert_same(layer, copy.deepcopy(layer).double(), 9, device, 1e-2)


def test_autocast(make_layer, device):
    layer, twin = make_layer()

    def call(hidden, target):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return layer(hidden, target)

    assert_same(layer, twin, 9, device, 3e-2, call)


def test_one_graph(make_layer, device):
    torch.compiler.reset()
    layer, twin = make_layer(label_smoothing=0.1, z_loss=0.01)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert_same(layer, twin, 9, device, call=compiled)


def test_evaluation(make_layer, device):
    layer, twin = make_layer(label_smoothing=0.1)
    hidden, target = batch(9, device)
    found = layer.eval()(hidden, target)
    torch.testing.assert_close(found.double(), twin.eval()(hidden.double(), target))


def test_frozen_weights_and_no_rows(make_layer, device):
    layer, twin = make_layer()
    layer.weight.requires_grad_(False)
    hidden, target = batch(9, device)
    hidden.requires_grad_()
    layer(hidden, target).backward()
    assert layer.weight.grad is None
    plain = hidden.detach().double().requires_grad_()
    twin(plain, target).backward()
    torch.testing.assert_close(hidden.grad.double(), plain.grad, rtol=1e-4, atol=1e-6)
    layer.weight.requires_grad_()
    loss = layer(hidden[:0], target[:0])
    loss.backward()
    assert loss == 0.0
    assert not layer.weight.grad.any()


def test_the_operators_keep_the_rules_of_torch(make_layer, device):
    layer, _ = make_layer()
    hidden, target = batch(9, device)
    target = target.clamp(min=0)
    shares = torch.full((C,), 1.0 / C, device=device)
    for squares in (False, True):
        given = (hidden.requires_grad_(), layer.weight, layer.bias, target, shares, squares)
        torch.library.opcheck(exact.score_totals, given)
    torch.library.opcheck(exact.score_totals, (hidden, layer.weight, None, target, None, False))


def test_gradients_of_the_weight_are_not_copied(make_layer, device, monkeypatch):
    from extremax.kernels.gpu import exact as kernels

    made = []
    gradients = kernels.gradients

    def recorded(*given):
        found = gradients(*given)
        made.append(found[1].data_ptr())
        return found

    monkeypatch.setattr(kernels, "gradients", recorded)
    layer, _ = make_layer()
    layer(*batch(9, device)).backward()
    assert made == [layer.weight.grad.data_ptr()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_no_step_waits_for_the_gpu(make_layer, device):
    weights = torch.rand(C) + 0.1
    layer, _ = make_layer(label_smoothing=0.1, z_loss=0.01, class_weight=weights)
    hidden, target = batch(9, device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            optimizer.zero_grad()
            layer(hidden, target).backward()
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_captured_graph_trains_as_the_layer_does(make_layer, device):
    layer, _ = make_layer()
    other = copy.deepcopy(layer)
    hidden, target = batch(9, device)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (layer, other)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        layer(hidden, target).backward()
    torch.cuda.current_stream().wait_stream(stream)
    optimizers[0].zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(hidden, target).backward()
        optimizers[0].step()
    for _ in range(3):
        graph.replay()
        optimizers[1].zero_grad()
        other(hidden, target).backward()
        optimizers[1].step()
    torch.testing.assert_close(layer.weight, other.weight)
    torch.testing.assert_close(layer.bias, other.bias)
