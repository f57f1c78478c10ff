"""`ExtremeSoftmax`: loss, gradients and probabilities."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from extremax.nn import ExtremeSoftmax, RowAdagrad, RowAdam
from extremax.nn import functional as F
from extremax.noise import FrequencyNoise, QuarticNoise, TreeNoise, UniformNoise
from extremax.objectives import NCE, ExactSoftmax, NegativeSampling, OneVsEach, SampledSoftmax

FUNCTIONS = {
    "sampled_softmax": (SampledSoftmax(), F.sampled_softmax_loss),
    "nce": (NCE(), F.nce_loss),
    "negative_sampling": (NegativeSampling(0.0), F.negative_sampling_loss),
    "one_vs_each": (OneVsEach(), F.one_vs_each_loss),
}


def drawn_by(layer: ExtremeSoftmax, hidden, target):
    """The draws of the layer's next step."""
    twin = copy.deepcopy(layer.proposals)
    return twin.propose(
        hidden, target, layer.n_negatives, layer.shared, layer.weight, layer.bias,
        others=layer.objective.draws_others and not layer.shared,
    )  # fmt: skip


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_loss_and_gradients_equal_the_dense_computation(
    name, shared, sparse, make_layer, make_batch
):
    objective, function = FUNCTIONS[name]
    layer = make_layer(objective=objective, shared=shared, sparse=sparse)
    hidden, target = make_batch(9)
    drawn, _ = drawn_by(layer, hidden, target)
    loss = layer(hidden, target)
    loss.backward()
    found = [hidden.grad, layer.weight.grad, layer.bias.grad]
    assert all(g.is_sparse is sparse for g in found[1:])

    scores = linear(hidden, layer.weight, layer.bias)
    classes = torch.cat([target[:, None], drawn.expand(9, 7)], 1)
    # Draws per example of sampled softmax come from the other classes.
    takes_hits = name == "one_vs_each" or (shared and name == "sampled_softmax")
    more = {"hits": classes[:, 1:] == target[:, None]} if takes_hits else {}
    uniform = torch.tensor(-math.log(40), dtype=torch.float64)
    expected = function(scores.gather(1, classes), uniform, **more)
    # log q of the layer is float32.
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    gradients = torch.autograd.grad(expected, [hidden, layer.weight, layer.bias])
    for ours, dense in zip(found, gradients, strict=True):
        torch.testing.assert_close(ours.to_dense(), dense, atol=1e-6, rtol=1e-6)


def test_gradients_of_a_whole_layer_by_finite_differences(make_layer, make_batch):
    layer = make_layer()
    hidden, target = make_batch(4)
    state = copy.deepcopy(layer.proposals.state())

    def loss(h):
        layer.proposals.load_state(state)  # Repeat the same draws.
        return layer(h, target)

    assert torch.autograd.gradcheck(loss, hidden)


def test_any_leading_shape_every_reduction_and_ignored_targets(make_layer, make_batch):
    hidden, target = make_batch(2, 3, 4)
    target[0, 1, 2] = target[1, 0] = -100
    kept = target != -100
    flat, values = hidden.detach()[kept], target[kept]
    each = make_layer(reduction="none")(flat, values)
    found = make_layer(reduction="none")(hidden, target)
    assert found.shape == (2, 3, 4)
    torch.testing.assert_close(found[kept], each)
    assert bool((found[~kept] == 0).all())
    torch.testing.assert_close(make_layer(reduction="sum")(hidden, target), each.sum())
    mean = make_layer(reduction="mean")(hidden, target)
    torch.testing.assert_close(mean, each.mean())
    mean.backward()
    assert bool((hidden.grad[~kept] == 0).all())
    nothing = make_layer()(hidden, torch.full_like(target, -100))
    assert float(nothing.detach()) == 0.0
    torch.testing.assert_close(
        make_layer(ignore_index=3)(hidden[:1, :2], torch.tensor([[[3, 3, 3, 5], [3, 3, 3, 3]]])),
        make_layer()(hidden[0, 0, 3:], torch.tensor([5])),
    )


def test_exact_is_cross_entropy_of_a_linear_layer(make_layer, make_batch):
    hidden, target = make_batch(3, 5)
    target[0, 0] = -100
    for reduction in ("mean", "sum", "none"):
        layer = make_layer(objective="exact", reduction=reduction)
        logits = linear(hidden, layer.weight, layer.bias)
        expected = cross_entropy(logits.flatten(0, 1), target.flatten(), reduction=reduction)
        found = layer(hidden, target)
        torch.testing.assert_close(found, expected.view(found.shape))
        pairs = zip(*(torch.autograd.grad(v.sum(), [hidden, layer.weight, layer.bias])
                      for v in (found, expected)), strict=True)  # fmt: skip
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs)


def test_exact_takes_soft_targets(make_layer, make_batch):
    hidden, target = make_batch(5)
    layer = make_layer(objective="exact")
    soft = torch.rand((5, 40), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    soft /= soft.sum(1, keepdim=True)
    expected = cross_entropy(linear(hidden, layer.weight, layer.bias), soft)
    torch.testing.assert_close(layer(hidden, soft), expected)
    one_hot = torch.nn.functional.one_hot(target, 40).double()
    penalized = make_layer(objective=ExactSoftmax(regularization=0.1))
    torch.testing.assert_close(penalized(hidden, one_hot), penalized(hidden, target))
    squares = linear(hidden, layer.weight, layer.bias).square()
    penalty = 0.1 * (squares.gather(1, target[:, None])[:, 0] + squares.mean(1)).mean()
    torch.testing.assert_close(penalized(hidden, target), layer(hidden, target) + penalty)


def test_probabilities_are_exact_and_come_in_blocks(make_layer, make_batch, monkeypatch):
    layer = make_layer()
    hidden, target = make_batch(4, 3)
    expected = linear(hidden, layer.weight, layer.bias).log_softmax(-1)
    for block in (1 << 20, 5 * 16 * 40, 1):
        monkeypatch.setattr("extremax.nn.probabilities._BLOCK_BYTES", block)
        torch.testing.assert_close(layer.log_prob(hidden), expected)
        one = layer.log_prob(hidden, target)
        torch.testing.assert_close(one, expected.gather(2, target[..., None])[..., 0])
        multiple = torch.stack([target, 39 - target], -1)
        found = layer.log_prob(hidden, multiple)
        torch.testing.assert_close(found, expected.gather(2, multiple))
        assert torch.equal(layer.predict(hidden), expected.argmax(-1))
        best = layer.topk(hidden, 5)
        torch.testing.assert_close(best.log_probs, expected.topk(5).values)
        assert torch.equal(best.labels, expected.topk(5).indices)
    assert torch.autograd.gradcheck(lambda h: layer.log_prob(h, target), hidden)
    assert layer.log_prob(hidden[:0]).shape == (0, 3, 40)
    assert layer.predict(hidden[0, 0]).shape == ()


def test_evaluation_gives_the_exact_loss_and_draws_nothing(make_layer, make_batch):
    layer = make_layer().eval()
    hidden, target = make_batch(6)
    expected = cross_entropy(linear(hidden, layer.weight, layer.bias), target)
    torch.testing.assert_close(layer(hidden, target), expected)
    assert layer.proposals.n_steps == 0


def test_negative_sampling_adds_log_q_at_prediction(make_layer, make_batch):
    labels = torch.arange(40).repeat_interleave(torch.arange(40) + 1)
    noise = FrequencyNoise().fit(labels[:, None].numpy(), labels.numpy(), 40)
    layer = make_layer(objective="negative_sampling", noise=noise)
    hidden, _ = make_batch(6)
    logits = linear(hidden, layer.weight, layer.bias) + noise.log_q_
    torch.testing.assert_close(layer.log_prob(hidden), logits.log_softmax(1))


def test_the_absolute_form_predicts_by_the_size_of_scores(make_layer, make_batch):
    layer = make_layer(
        objective=SampledSoftmax(absolute=True), noise="quadratic", dtype=torch.float32
    )
    hidden, target = make_batch(5, dtype=torch.float32)
    layer(hidden, target).backward()
    scores = linear(hidden, layer.weight, layer.bias)
    torch.testing.assert_close(layer.log_prob(hidden), scores.abs().log_softmax(1))


@pytest.mark.parametrize(
    ("objective", "noise", "absolute"),
    [
        ("sampled_softmax", "quadratic", True),
        ("sampled_softmax(regularization=0.1)", QuarticNoise(), True),
        ("sampled_softmax", "uniform", False),
        ("sampled_softmax(absolute=False)", "quadratic", False),
        (SampledSoftmax(), "quadratic", False),
    ],
)
def test_the_name_of_sampled_softmax_is_the_absolute_form_with_even_noises(
    objective, noise, absolute, make_layer, make_batch
):
    layer = make_layer(objective=objective, noise=noise, dtype=torch.float32)
    hidden, _ = make_batch(5, dtype=torch.float32)
    scores = linear(hidden, layer.weight, layer.bias)
    logits = scores.abs() if absolute else scores
    torch.testing.assert_close(layer.log_prob(hidden), logits.log_softmax(1))


@pytest.mark.parametrize("name", ["tree", "softmax"])
def test_sampled_softmax_does_not_ask_for_log_q_of_the_target(
    name, make_layer, make_batch, monkeypatch
):
    layer = make_layer(noise=name, dtype=torch.float32)
    hidden, target = make_batch(50, dtype=torch.float32)
    if not layer.proposals.fitted:
        layer.fit_noise(hidden.detach(), target)

    def refuse(*_):
        raise AssertionError("log q of the target is not needed")

    monkeypatch.setattr(layer.proposals.active, "log_prob", refuse)
    assert bool(layer(hidden, target).isfinite())


def test_a_tied_embedding_gets_the_gradients_of_both_uses(make_batch):
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(40, 6, sparse=True, dtype=torch.float64)
    layer = ExtremeSoftmax(6, 40, noise="uniform", n_negatives=5, weight=embedding.weight)
    assert layer.weight is embedding.weight
    assert layer.bias.dtype == torch.float64
    _, words = make_batch(8)
    target = words.flip(0)
    drawn, _ = drawn_by(layer, embedding(words), target)
    layer(embedding(words), target).backward()
    scores = linear(layer.weight[words], layer.weight, layer.bias)
    classes = torch.cat([target[:, None], drawn], 1)
    uniform = torch.tensor(-math.log(40), dtype=torch.float64)
    expected = F.sampled_softmax_loss(scores.gather(1, classes), uniform)
    (gradient,) = torch.autograd.grad(expected, layer.weight)
    torch.testing.assert_close(layer.weight.grad.to_dense(), gradient, atol=1e-6, rtol=1e-6)
    RowAdagrad(layer.parameters()).step()


def test_a_layer_without_bias(make_layer, make_batch):
    layer = make_layer(bias=False, noise="softmax", dtype=torch.float32)
    hidden, target = make_batch(5, dtype=torch.float32)
    layer(hidden, target).backward()
    expected = (hidden @ layer.weight.T).log_softmax(1)
    torch.testing.assert_close(layer.log_prob(hidden), expected)
    with pytest.raises(ValueError, match="start_bias needs a bias"):
        layer.start_bias(target)


@pytest.mark.parametrize("objective", ["sampled_softmax", "exact"])
def test_autocast_to_bfloat16_adds_up_in_float32(objective, make_layer, make_batch):
    layer = make_layer(objective=objective, dtype=torch.float32)
    hidden, target = make_batch(6, dtype=torch.float32)
    half = hidden.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = layer(half, target)
        probabilities = layer.log_prob(half)
    loss.backward()
    assert loss.dtype == probabilities.dtype == layer.weight.grad.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16
    twin = make_layer(objective=objective, dtype=torch.float32)
    wide = half.detach().float().requires_grad_()
    expected = twin(wide, target)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    torch.testing.assert_close(layer.weight.grad.to_dense(), twin.weight.grad.to_dense())
    torch.testing.assert_close(half.grad, wide.grad.bfloat16())


def test_parameters_of_bfloat16_give_losses_of_float32(make_layer, make_batch):
    layer = make_layer(dtype=torch.bfloat16)
    hidden, target = make_batch(6, dtype=torch.bfloat16)
    loss = layer(hidden, target)
    loss.backward()
    assert loss.dtype == torch.float32
    assert layer.weight.grad.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # From torch's own optimizer.
@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [(RowAdagrad, 0.1), (RowAdam, 0.1), (torch.optim.Adagrad, 0.1), (torch.optim.SparseAdam, 0.1),
     (torch.optim.SGD, 1.0)],
)  # fmt: skip
def test_training_comes_near_exact_softmax(optimizer, rate, make_layer):
    """The same batches, steps and optimizer, with all classes or ten drawn classes."""
    # SparseAdam does not accept the dense gradients of exact softmax.
    dense = torch.optim.Adam if optimizer is torch.optim.SparseAdam else optimizer
    generator = torch.Generator().manual_seed(5)
    centers = 2 * torch.randn((40, 6), generator=generator)

    def problem(n):
        target = torch.randint(40, (n,), generator=generator)
        return centers[target] + torch.randn((n, 6), generator=generator), target

    layers = [make_layer(dtype=torch.float32, n_negatives=10, objective=o, sparse=True) for o in
              ("sampled_softmax", "exact")]  # fmt: skip
    optimizers = [kind(layer.parameters(), lr=rate) for kind, layer in
                  zip((optimizer, dense), layers, strict=True)]  # fmt: skip
    for _ in range(400):
        hidden, target = problem(128)
        for layer, steps in zip(layers, optimizers, strict=True):
            steps.zero_grad()
            layer(hidden, target).backward()
            steps.step()
    hidden, target = problem(4000)
    found, exact = (float(layer.eval()(hidden, target).detach()) for layer in layers)
    assert exact < 0.25 * math.log(40)
    assert abs(found - exact) < 0.05


def test_start_bias_begins_with_the_frequencies(make_layer):
    target = torch.tensor([0] * 30 + [1] * 10)
    counts = torch.ones(40, dtype=torch.float64)
    counts[:2] = torch.tensor([30.0, 10.0])
    layer = make_layer(objective="nce")
    layer.start_bias(target)
    torch.testing.assert_close(
        layer.bias.detach(), (counts / counts.sum()).log(), atol=1e-6, rtol=0
    )
    other = make_layer(objective="negative_sampling")
    other.start_bias(target)
    assert bool((other.bias == 0).all())


def test_repr_names_the_objective_and_the_noise(make_layer):
    text = repr(make_layer(noise=TreeNoise(n_components=3), refit_every=10))
    assert "TreeNoise(n_components=3)" in text
    assert "SampledSoftmax()" in text
    assert "UniformNoise()" in repr(make_layer(noise=UniformNoise()))


@pytest.mark.parametrize("sparse", [True, False])
def test_blocks_of_rows_change_nothing(sparse, make_layer, make_batch, monkeypatch):
    hidden, target = make_batch(9)
    results = []
    for floats in (1 << 18, 100, 1):
        monkeypatch.setattr("extremax.nn.scores._BLOCK_FLOATS", floats)
        layer = make_layer(sparse=sparse)
        steps = RowAdam(layer.parameters(), lr=0.1)
        for _ in range(2):
            steps.zero_grad()
            hidden.grad = None
            layer(hidden, target).backward()
            steps.step()
        results.append((layer.weight.detach(), layer.bias.detach(), hidden.grad))
    for other in results[1:]:
        for ours, whole in zip(other, results[0], strict=True):
            torch.testing.assert_close(ours, whole, rtol=1e-12, atol=1e-12)
