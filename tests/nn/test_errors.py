"""What cannot be meant is refused with the name of the argument."""

from __future__ import annotations

import pytest
import torch

from extremax.nn import ExtremeSoftmax
from extremax.noise import BigramNoise, FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise

CONSTRUCTION = {
    "n_samples must be less than n_classes": {"n_samples": 40},
    "n_samples must be an integer >= 1, got 0": {"n_samples": 0},
    "reduction must be": {"reduction": "average"},
    "objective must be one of": {"objective": "hinge"},
    "objective AugmentReduce keeps numbers": {"objective": "augment_reduce"},
    "noise must be one of": {"noise": "zipf"},
    "shared=True needs a noise that is the same for every example": {
        "noise": "softmax",
        "shared": True,
    },
    "refit_every is for noise with a tree": {"noise": "frequency", "refit_every": 5},
    "refit_every must be an integer": {"noise": "tree", "refit_every": 0},
    "noise TreeNoise is refitted, and the logits of NegativeSampling are ξ": {
        "noise": "tree",
        "refit_every": 5,
        "objective": "negative_sampling",
    },
    "noise MixtureNoise is refitted": {
        "noise": MixtureNoise(),
        "refit_every": 5,
        "objective": "negative_sampling",
    },
    "noise QuadraticNoise follows the weight, and the logits": {
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
    settings = {"n_samples": 7} | CONSTRUCTION[message]
    with pytest.raises(ValueError, match=message):
        ExtremeSoftmax(6, 40, **settings)


def test_noise_of_another_number_of_classes():
    labels = torch.arange(9).numpy()
    with pytest.raises(ValueError, match="noise was fitted to 9 classes, n_classes is 40"):
        ExtremeSoftmax(6, 40, noise=UniformNoise().fit(labels[:, None], labels, 9), n_samples=3)


def test_weights_from_outside():
    with pytest.raises(TypeError, match=r"weight must be an nn.Parameter, got Tensor"):
        ExtremeSoftmax(6, 40, n_samples=3, weight=torch.zeros(40, 6))
    with pytest.raises(ValueError, match=r"weight must have shape \(40, 6\)"):
        ExtremeSoftmax(6, 40, n_samples=3, weight=torch.nn.Parameter(torch.zeros(6, 40)))


def test_hidden(made, batch):
    layer = made()
    hidden, target = batch(5)
    with pytest.raises(ValueError, match=r"hidden must have shape \(..., 6\)"):
        layer(hidden[:, :5], target)
    with pytest.raises(TypeError, match=r"hidden is torch.float32 but the weight torch.float64"):
        layer(hidden.float(), target)
    with pytest.raises(TypeError, match=r"hidden must be floating point, got torch.int64"):
        layer(hidden.long(), target)
    with pytest.raises(TypeError, match="hidden must be a tensor, got ndarray"):
        layer(hidden.detach().numpy(), target)
    for bad in (float("nan"), float("inf")):
        broken = hidden.detach().clone()
        broken[3, 2] = bad
        with pytest.raises(ValueError, match="hidden has NaN or infinity in row 3 of 5"):
            layer(broken, target)
        with pytest.raises(ValueError, match="hidden has NaN or infinity in row 3 of 5"):
            layer.predict(broken)
        # Where the target is ignored nobody looks.
        hole = target.clone()
        hole[3] = -100
        assert bool(layer(broken, hole).isfinite())
    assert bool(layer(1e300 * hidden[:0], target[:0]) == 0)


def test_target(made, batch):
    layer = made()
    hidden, target = batch(5)
    for bad in (40, -1):
        with pytest.raises(ValueError, match=f"target has class {bad}, not in 0..39"):
            layer(hidden, torch.where(target == target[2], bad, target))
    with pytest.raises(ValueError, match=r"target must have the leading shape of hidden, \(5,\)"):
        layer(hidden, target[:4])
    with pytest.raises(TypeError, match=r"soft targets, of shape .* need objective='exact'"):
        layer(hidden, torch.rand(5, 40))
    exact = made(objective="exact")
    with pytest.raises(ValueError, match=r"target of floating point must have shape \(5, 40\)"):
        exact(hidden, torch.rand(5, 39))
    with pytest.raises(ValueError, match="weights >= 0"):
        exact(hidden, torch.rand(5, 40) - 1)


def test_questions(made, batch):
    layer = made()
    hidden, target = batch(5)
    with pytest.raises(ValueError, match="k must be at most n_classes"):
        layer.topk(hidden, 41)
    with pytest.raises(ValueError, match=r"classes must have shape \(5,\)"):
        layer.log_prob(hidden, target[:4])
    with pytest.raises(ValueError, match="classes has class 40"):
        layer.log_prob(hidden, target.clamp(min=40))


def test_noise_that_is_not_fitted(made, batch):
    hidden, target = batch(5)
    for noise in (FrequencyNoise(), TreeNoise(), BigramNoise(), "mixture"):
        with pytest.raises(ValueError, match="is not fitted: call fit_noise"):
            made(noise=noise)(hidden, target)
    layer = made(objective="negative_sampling", noise="frequency")
    with pytest.raises(ValueError, match="is not fitted: call fit_noise"):
        layer.predict(hidden)
    with pytest.raises(ValueError, match="features are needed to fit tree noise"):
        made(noise="tree").fit_noise(None, target)
    with pytest.raises(ValueError, match="features have 4 rows but target 5"):
        made(noise="tree").fit_noise(hidden[:4], target)
    with pytest.raises(ValueError, match="target has class 41"):
        layer.fit_noise(None, target + 41 - target)
    with pytest.raises(ValueError, match="shared=True needs a noise"):
        made(noise=BigramNoise(), shared=True).fit_noise(hidden, target)
    layer.fit_noise(None, target)
    layer(hidden, target).backward()
