"""Losses over every class: smoothing, z-loss and weights of classes, plain and by kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, linear, one_hot

from extremax.objectives import ExactSoftmax

C = 40


@pytest.fixture
def class_weight() -> torch.Tensor:
    return torch.rand(C, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_of_cross_entropy(
    reduction, smoothing, weighted, make_layer, make_batch, class_weight
):
    weight = class_weight if weighted else None
    hidden, target = make_batch(12)
    target[3] = -100
    layer = make_layer(
        objective="exact", reduction=reduction, label_smoothing=smoothing, class_weight=weight
    )
    scores = linear(hidden, layer.weight, layer.bias)
    expected = cross_entropy(scores, target, weight, reduction=reduction, label_smoothing=smoothing)
    found = layer(hidden, target)
    torch.testing.assert_close(found, expected)
    parameters = [hidden, layer.weight, layer.bias]
    mine, its = (torch.autograd.grad(loss.sum(), parameters) for loss in (found, expected))
    for ours, theirs in zip(mine, its, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_soft_targets_are_smoothed_and_weighted_as_in_cross_entropy(
    make_layer, make_batch, class_weight
):
    hidden, _ = make_batch(7)
    soft = torch.rand((7, C), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layer = make_layer(objective="exact", label_smoothing=0.1, class_weight=class_weight)
    scores = linear(hidden, layer.weight, layer.bias)
    expected = cross_entropy(scores, soft, class_weight, label_smoothing=0.1)
    torch.testing.assert_close(layer(hidden, soft), expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_z_loss_and_penalty_are_added(weighted, make_layer, make_batch, class_weight):
    hidden, target = make_batch(7)
    weight = class_weight if weighted else None
    objective = ExactSoftmax(regularization=0.02)
    settings = {"objective": objective, "reduction": "none", "class_weight": weight}
    layer = make_layer(z_loss=0.3, **settings)
    scores = linear(hidden, layer.weight, layer.bias)
    true = scores.gather(1, target[:, None])[:, 0]
    penalty = true.square() + scores.square().mean(1)
    added = 0.3 * scores.logsumexp(1).square() + 0.02 * penalty
    times = class_weight[target] if weighted else torch.ones(7, dtype=torch.float64)
    expected = times * (scores.logsumexp(1) - true + added)
    torch.testing.assert_close(layer(hidden, target), expected)
    torch.testing.assert_close(layer(hidden, one_hot(target, C).double()), expected)


@pytest.mark.parametrize("objective", ["sampled_softmax", "negative_sampling"])
def test_sampled_losses_are_weighted_by_the_class_of_the_target(
    objective, make_layer, make_batch, class_weight
):
    hidden, target = make_batch(12)
    target[5] = -100
    plain, weighted = (
        make_layer(objective=objective, reduction=reduction, class_weight=weight)
        for reduction, weight in (("none", None), ("mean", class_weight))
    )
    times = torch.where(target < 0, 0.0, class_weight[target.clamp(min=0)])
    expected = (times * plain(hidden, target)).sum() / times.sum()
    torch.testing.assert_close(weighted(hidden, target), expected)


def test_the_mean_over_ignored_rows_is_zero(make_layer, make_batch, class_weight):
    hidden, target = make_batch(4)
    layer = make_layer(objective="exact", class_weight=class_weight)
    assert layer(hidden, torch.full_like(target, -100)) == 0.0


def test_evaluation_is_neither_smoothed_nor_weighted(make_layer, make_batch, class_weight):
    hidden, target = make_batch(9)
    settings = {"label_smoothing": 0.3, "z_loss": 0.1, "class_weight": class_weight}
    layer = make_layer(objective="exact", **settings).eval()
    expected = cross_entropy(linear(hidden, layer.weight, layer.bias), target)
    torch.testing.assert_close(layer(hidden, target), expected)
    soft = one_hot(target, C).double()
    torch.testing.assert_close(layer(hidden, soft), expected)


def test_weights_of_classes_are_part_of_the_state(make_layer, class_weight):
    layer = make_layer(objective="exact", class_weight=class_weight)
    other = make_layer(objective="exact", class_weight=torch.ones(C, dtype=torch.float64))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.class_weight, class_weight)
    assert "class_weight" not in make_layer(objective="exact").state_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_smoothing": 1.5}, "label_smoothing must be a finite number >= 0 and <= 1"),
        ({"label_smoothing": float("nan")}, "label_smoothing must be a finite number"),
        ({"z_loss": -0.1}, "z_loss must be a finite number >= 0, got -0.1"),
        ({"class_weight": torch.ones(39)}, "class_weight has shape"),
        ({"class_weight": -torch.ones(C)}, "class_weight must hold weights >= 0"),
        ({"class_weight": torch.full((C,), torch.inf)}, "class_weight .*must be finite"),
    ],
)
def test_wrong_values_are_refused(settings, message, make_layer):
    with pytest.raises(ValueError, match=message):
        make_layer(objective="exact", **settings)


@pytest.mark.parametrize("name", ["label_smoothing", "z_loss"])
def test_what_needs_every_class_is_refused_for_samples(name, make_layer):
    with pytest.raises(ValueError, match=f"{name} needs the scores of every class"):
        make_layer(objective="sampled_softmax", **{name: 0.1})
