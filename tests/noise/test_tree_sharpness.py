"""The sharpness of a tree: every walk goes by σ(s·a)."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy import stats
from sklearn.base import clone

from extremax import ExtremeClassifier
from extremax.noise import FrequencyNoise, MixtureNoise, Noise, TreeNoise, UniformNoise
from extremax.random import Stream
from tests import reference

Make = Callable[..., TreeNoise]
close = {"rtol": 1e-5, "atol": 2e-5}


def contexts(n: int, k: int = 5) -> torch.Tensor:
    return torch.randn((n, k), generator=torch.Generator().manual_seed(11))


def truth_of(tree: TreeNoise, sharpness: float, z: torch.Tensor) -> torch.Tensor:
    return reference.tree_log_prob_all(tree.nodes_.double() * sharpness, tree.order_, z.double())


@pytest.mark.parametrize("n_classes", [1, 2, 3, 100])
@pytest.mark.parametrize("sharpness", [1.0, 0.3, 0.01])
def test_log_q_is_that_of_scaled_nodes(random_tree: Make, n_classes: int, sharpness: float) -> None:
    tree, z = random_tree(n_classes, size=2.0, sharpness=sharpness), contexts(9)
    truth = truth_of(tree, sharpness, z)
    torch.testing.assert_close(tree.log_prob_all(z).double(), truth, **close)
    every = torch.arange(n_classes).expand(9, -1)
    torch.testing.assert_close(tree.log_prob(z, every).double(), truth, **close)
    draw = tree.sample(z, 20, Stream.of(1, rows=np.arange(9)))
    torch.testing.assert_close(draw.log_q.double(), truth.gather(1, draw.labels), **close)


def test_draws_are_as_soft_as_they_say(random_tree: Make) -> None:
    tree, z = random_tree(30, size=1.5, sharpness=0.3), contexts(1)
    expected = 40_000 * truth_of(tree, 0.3, z)[0].exp().numpy()
    same = z.expand(10_000, -1).contiguous()
    labels = tree.sample(same, 4, Stream.of(2, rows=np.arange(10_000))).labels
    observed = np.bincount(labels.ravel(), minlength=30)
    assert expected.min() > 10
    assert stats.chisquare(observed, expected * 40_000 / expected.sum()).pvalue > 1e-4
    # So many draws tell a softer tree from the sharp one.
    sharp = 40_000 * truth_of(tree, 1.0, z)[0].exp().numpy()
    assert stats.chisquare(observed, sharp * 40_000 / sharp.sum()).pvalue < 1e-9


def test_tempering_starts_from_the_fit_every_time(random_tree: Make) -> None:
    tree, z = random_tree(64), contexts(5)
    nodes, fresh = tree.nodes_.clone(), tree.log_prob_all(z)
    for sharpness in (0.3, 0.15, 0.7):
        tree.temper(sharpness)
        assert tree.sharpness_ == sharpness
        torch.testing.assert_close(
            tree.log_prob_all(z).double(), truth_of(tree, sharpness, z), **close
        )
    assert torch.equal(tree.nodes_, nodes)
    tree.temper(1.0)
    assert torch.equal(tree.log_prob_all(z), fresh)


def test_a_softer_tree_is_nearer_to_uniform(random_tree: Make) -> None:
    tree, z = random_tree(64), contexts(20)
    entropies = []
    for sharpness in (1.0, 0.5, 0.15, 1e-6):
        tree.temper(sharpness)
        log_q = tree.log_prob_all(z).double()
        entropies.append(float(-(log_q.exp() * log_q).sum(1).mean()))
    assert entropies == sorted(entropies)
    assert entropies[-1] == pytest.approx(np.log(64), abs=1e-4)


def test_a_fit_is_sharp_until_training_chooses(problem: tuple[np.ndarray, np.ndarray]) -> None:
    auto, soft = TreeNoise(8).fit(*problem, 100), TreeNoise(8, sharpness=0.4).fit(*problem, 100)
    assert auto.sharpness_ == 1.0
    assert soft.sharpness_ == 0.4
    assert torch.equal(auto.nodes_, soft.nodes_)
    assert soft.sharpnesses() == ()
    offered = auto.sharpnesses()
    assert len(set(offered)) == len(offered) > 1
    assert all(0 < s <= 1 for s in offered)
    auto.temper(0.4)
    z = auto.context(problem[0][:50])
    assert torch.equal(auto.log_prob_all(z), soft.log_prob_all(z))
    # A fit of its own begins anew.
    assert clone(auto).fit(*problem, 100).sharpness_ == 1.0
    assert auto.fit(*problem, 100).sharpness_ == 1.0


@pytest.mark.parametrize("sharpness", ["auto", 0.4])
def test_files_keep_the_sharpness(
    problem: tuple[np.ndarray, np.ndarray], sharpness: float | str
) -> None:
    tree = TreeNoise(8, sharpness=sharpness).fit(*problem, 100)
    tree.temper(0.35)
    restored = TreeNoise(**json.loads(json.dumps(tree.settings())))
    restored.load_state(load(save(tree.state())))
    assert restored.sharpness == sharpness
    assert restored.sharpness_ == 0.35
    z = tree.context(problem[0][:50])
    assert torch.equal(restored.log_prob_all(z), tree.log_prob_all(z))


@pytest.mark.parametrize("noise", [UniformNoise(), FrequencyNoise()])
def test_other_noises_have_no_sharpness(noise: UniformNoise | FrequencyNoise) -> None:
    noise.fit(np.empty((3, 0), np.float32), np.array([0, 1, 1]), 2)
    assert noise.sharpnesses() == ()
    with pytest.raises(ValueError, match=f"{type(noise).__name__} has no sharpness"):
        noise.temper(0.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, 1.5, float("nan"), "x", None])
def test_a_sharpness_out_of_range_is_refused(random_tree: Make, bad: object) -> None:
    with pytest.raises(ValueError, match="sharpness must be in"):
        random_tree(8).temper(bad)


@pytest.mark.parametrize(
    ("objective", "noise", "chosen"),
    [
        ("sampled_softmax", MixtureNoise(("tree", "frequency")), 1.0),
        ("nce", MixtureNoise(("tree", "frequency")), 1.0),
        ("sampled_softmax", TreeNoise(4), 0.35),
        ("sampled_softmax", TreeNoise(4, sharpness=0.6), 0.6),
    ],
)
def test_beside_a_safe_part_a_tree_stays_sharp_where_logits_do_not_add_its_log_q(
    problem: tuple[np.ndarray, np.ndarray], objective: str, noise: Noise, chosen: float
) -> None:
    model = ExtremeClassifier(objective, noise, epochs=1, random_state=0).fit(*problem)
    fitted = model.model_.noise
    tree = fitted.parts_[0] if isinstance(fitted, MixtureNoise) else fitted
    assert tree.sharpness_ == chosen
