"""Invalid arguments raise errors that name the argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from extremax.nn import ExtremeSoftmax
from extremax.noise import BigramNoise, FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise

CONSTRUCTION = {
    "n_negatives must be less than n_classes": {"n_negatives": 40},
    "n_negatives must be an integer >= 1, got 0": {"n_negatives": 0},
    "reduction must be": {"reduction": "average"},
    "objective must be one of": {"objective": "hinge"},
    "AugmentReduce keeps parameters per training example: pass n_examples": {
        "objective": "augment_reduce"
    },
    "noise must be one of": {"noise": "pink"},
    "shared=True needs a noise that is the same for every example": {
        "noise": "softmax",
        "shared": True,
    },
    "refit_every needs a noise with a tree": {
        "noise": "frequency",
        "refit_every": 5,
    },
    "refit_every must be an integer": {"noise": "tree", "refit_every": 0},
    "TreeNoise changes as the head trains, and the logits of NegativeSampling": {
        "noise": "tree",
        "refit_every": 5,
        "objective": "negative_sampling",
    },
    "MixtureNoise changes as the head trains": {
        "noise": MixtureNoise(),
        "refit_every": 5,
        "objective": "negative_sampling",
    },
    "QuadraticNoise changes as the head trains, and the logits": {
        "noise": "quadratic",
        "objective": "negative_sampling",
    },
    "TreeNoise is not; use shared=False": {
        "noise": TreeNoise(),
        "refit_every": 5,
        "shared": True,
    },
}


@pytest.mark.parametrize("message", CONSTRUCTION)
def test_construction(message):
    settings = {"n_negatives": 7} | CONSTRUCTION[message]
    with pytest.raises(ValueError, match=message):
        ExtremeSoftmax(6, 40, **settings)


def test_noise_of_another_number_of_classes():
    labels = torch.arange(9).numpy()
    with pytest.raises(ValueError, match="noise was fitted to 9 classes, but n_classes is 40"):
        ExtremeSoftmax(6, 40, noise=UniformNoise().fit(labels[:, None], labels, 9), n_negatives=3)


def test_weights_from_outside():
    with pytest.raises(TypeError, match=r"weight must be an nn.Parameter, got Tensor"):
        ExtremeSoftmax(6, 40, n_negatives=3, weight=torch.zeros(40, 6))
    with pytest.raises(ValueError, match=r"weight has shape .*, expected \(40, 6\)"):
        ExtremeSoftmax(6, 40, n_negatives=3, weight=torch.nn.Parameter(torch.zeros(6, 40)))


def test_hidden(make_layer, make_batch):
    layer = make_layer()
    hidden, target = make_batch(5)
    with pytest.raises(ValueError, match=r"hidden must have shape \(..., 6\)"):
        layer(hidden[:, :5], target)
    with pytest.raises(TypeError, match=r"hidden is torch.float32 but the weight is torch.float64"):
        layer(hidden.float(), target)
    with pytest.raises(TypeError, match=r"hidden must be floating point, got torch.int64"):
        layer(hidden.long(), target)
    with pytest.raises(TypeError, match="hidden must be a torch tensor, got ndarray"):
        layer(hidden.detach().numpy(), target)
    for bad in (float("nan"), float("inf")):
        broken = hidden.detach().clone()
        broken[3, 2] = bad
        with pytest.raises(ValueError, match=r"hidden .* must be finite, got .* at \[3, 2\]"):
            layer(broken, target)
        with pytest.raises(ValueError, match=r"hidden .* must be finite, got .* at \[3, 2\]"):
            layer.predict(broken)
        # Rows with an ignored target are not checked.
        hole = target.clone()
        hole[3] = -100
        assert bool(layer(broken, hole).isfinite())
    assert bool(layer(1e300 * hidden[:0], target[:0]) == 0)


def test_target(make_layer, make_batch):
    layer = make_layer()
    hidden, target = make_batch(5)
    for bad in (40, -1):
        with pytest.raises(ValueError, match=f"target has class {bad}, not in 0..39"):
            layer(hidden, torch.where(target == target[2], bad, target))
    with pytest.raises(
        ValueError, match=r"target has shape .*, expected \(5,\), the shape of hidden"
    ):
        layer(hidden, target[:4])
    with pytest.raises(TypeError, match=r"soft targets, of shape .* need objective='exact'"):
        layer(hidden, torch.rand(5, 40))
    exact = make_layer(objective="exact")
    with pytest.raises(
        ValueError, match=r"a floating-point target has shape .*, expected \(5, 40\)"
    ):
        exact(hidden, torch.rand(5, 39))
    with pytest.raises(ValueError, match="weights >= 0"):
        exact(hidden, torch.rand(5, 40) - 1)


def test_types_and_devices(make_layer, make_batch):
    layer = make_layer()
    hidden, target = make_batch(5)
    for bad in ([1, 2, 3, 4, 5], None, target.numpy()):
        kind = type(bad).__name__
        with pytest.raises(TypeError, match=f"target must be a torch tensor, got {kind}"):
            layer(hidden, bad)
        with pytest.raises(TypeError, match=f"target must be a torch tensor, got {kind}"):
            layer.start_bias(bad)
        with pytest.raises(TypeError, match=f"target must be a torch tensor, got {kind}"):
            layer.fit_noise(hidden, bad)
        if bad is not None:
            with pytest.raises(TypeError, match=f"classes must be a torch tensor, got {kind}"):
                layer.log_prob(hidden, bad)
            with pytest.raises(TypeError, match=f"context must be a torch tensor, got {kind}"):
                layer(hidden, target, bad)
            with pytest.raises(TypeError, match=f"features must be a torch tensor, got {kind}"):
                layer.fit_noise(bad, target)
    for wrong in (target.float(), target > 3):
        with pytest.raises(TypeError, match=f"target must be integers, got {wrong.dtype}"):
            layer(hidden, wrong)
        with pytest.raises(TypeError, match=f"target must be integers, got {wrong.dtype}"):
            layer.start_bias(wrong)
        with pytest.raises(TypeError, match=f"target must be integers, got {wrong.dtype}"):
            layer.fit_noise(hidden, wrong)
        with pytest.raises(TypeError, match=f"classes must be integers, got {wrong.dtype}"):
            layer.log_prob(hidden, wrong)
    elsewhere = target.to("meta")
    with pytest.raises(ValueError, match="target is on meta but hidden is on cpu"):
        layer(hidden, elsewhere)
    with pytest.raises(ValueError, match="context is on meta but hidden is on cpu"):
        layer(hidden, target, elsewhere)
    with pytest.raises(ValueError, match="classes is on meta but hidden is on cpu"):
        layer.log_prob(hidden, elsewhere)
    with pytest.raises(ValueError, match="hidden is on meta but the weight is on cpu"):
        layer(hidden.to("meta"), target)


def test_context_and_features_that_are_not_finite(make_layer, make_batch):
    hidden, target = make_batch(5)
    layer = make_layer(noise="tree")
    broken = hidden.detach().clone()
    broken[3, 2] = float("nan")
    with pytest.raises(ValueError, match=r"features .* must be finite, got .* at \[3, 2\]"):
        layer.fit_noise(broken, target)
    layer.fit_noise(hidden, target)
    with pytest.raises(ValueError, match=r"context .* must be finite, got .* at \[3, 2\]"):
        layer(hidden, target, broken)
    with pytest.raises(ValueError, match=r"context .* must be finite, got .* at \[3, 2\]"):
        layer.predict(hidden, broken)
    hole = target.clone()
    hole[3] = -100
    assert bool(layer(hidden, hole, broken).isfinite())


def test_noise_of_another_width(make_layer, make_batch):
    hidden, target = make_batch(5)
    for noise in (BigramNoise(), TreeNoise(1), MixtureNoise(("bigram", "frequency"))):
        layer = make_layer(noise=noise)
        layer.fit_noise(target[:, None], target)
        with pytest.raises(
            ValueError, match="noise was fitted to 1 column, hidden has 6: pass context="
        ):
            layer(hidden, target)
        layer(hidden, target, target).backward()
        other = make_layer(noise=noise)
        other.load_state_dict(layer.state_dict())
        with pytest.raises(ValueError, match="noise was fitted to 1 column, hidden has 6"):
            other(hidden, target)
    adds = make_layer(objective="negative_sampling", noise=TreeNoise(2))
    adds.fit_noise(hidden[:, :3], target)
    with pytest.raises(ValueError, match="noise was fitted to 3 columns, hidden has 6"):
        adds.predict(hidden)
    with pytest.raises(ValueError, match="noise was fitted to 3 columns, context has 2"):
        adds.predict(hidden, hidden[:, :2])
    # A fitted tree knows the number of its columns.
    tree = TreeNoise(2).fit(np.eye(40, 3), np.arange(40), 40)
    with pytest.raises(ValueError, match="noise was fitted to 3 columns, hidden has 6"):
        make_layer(noise=tree)(hidden, target)
    # Noises that do not read rows accept any width.
    plain = make_layer(noise="frequency")
    plain.fit_noise(target[:, None], target)
    plain(hidden, target)
    # Kernels read what the weight reads, whatever they were fitted to.
    kernel = make_layer(noise="quadratic", dtype=torch.float32)
    kernel.fit_noise(hidden[:, :3], target)
    kernel(hidden.float(), target)
    with pytest.raises(ValueError, match="noise was fitted to 6 columns, context has 3"):
        kernel(hidden.float(), target, hidden[:, :3].float())


def test_noise_refitted_after_the_first_step_of_negative_sampling(make_layer, make_batch):
    hidden, target = make_batch(5)
    layer = make_layer(objective="negative_sampling", noise="frequency")
    layer.fit_noise(None, target)
    layer.fit_noise(None, target)
    layer.eval()(hidden, target)
    layer.fit_noise(None, target)
    layer.train()(hidden, target)
    with pytest.raises(ValueError, match="fit_noise must precede the first training step of N"):
        layer.fit_noise(None, target)
    again = make_layer(objective="negative_sampling", noise="frequency")
    again.load_state_dict(layer.state_dict())
    with pytest.raises(ValueError, match="steps so far: 1"):
        again.fit_noise(None, target)
    # Logits without log q allow q to change.
    other = make_layer(noise="frequency")
    other.fit_noise(None, target)
    other(hidden, target)
    other.fit_noise(None, target)


def test_arguments_of_topk_and_log_prob(make_layer, make_batch):
    layer = make_layer()
    hidden, target = make_batch(5)
    with pytest.raises(ValueError, match="k must be at most n_classes"):
        layer.topk(hidden, 41)
    with pytest.raises(ValueError, match=r"classes must have shape \(5,\)"):
        layer.log_prob(hidden, target[:4])
    with pytest.raises(ValueError, match="classes has class 40"):
        layer.log_prob(hidden, target.clamp(min=40))


def test_noise_that_is_not_fitted(make_layer, make_batch):
    hidden, target = make_batch(5)
    for noise in (FrequencyNoise(), TreeNoise(), BigramNoise(), "mixture"):
        with pytest.raises(ValueError, match="is not fitted: call fit_noise"):
            make_layer(noise=noise)(hidden, target)
    layer = make_layer(objective="negative_sampling", noise="frequency")
    with pytest.raises(ValueError, match="is not fitted: call fit_noise"):
        layer.predict(hidden)
    with pytest.raises(ValueError, match="features must be given to fit TreeNoise, got None"):
        make_layer(noise="tree").fit_noise(None, target)
    with pytest.raises(ValueError, match="features must be given to fit MixtureNoise, got None"):
        make_layer(noise=MixtureNoise(("bigram", "frequency"))).fit_noise(None, target)
    with pytest.raises(ValueError, match="features have 4 rows but target has 5"):
        make_layer(noise="tree").fit_noise(hidden[:4], target)
    with pytest.raises(ValueError, match="target has class 41"):
        layer.fit_noise(None, target + 41 - target)
    with pytest.raises(ValueError, match="shared=True needs a noise"):
        make_layer(noise=BigramNoise(), shared=True).fit_noise(hidden, target)
    layer.fit_noise(None, target)
    layer(hidden, target).backward()
