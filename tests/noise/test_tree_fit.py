"""Fitted trees: what they know of unseen rows, and that they are the same every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from extremax.errors import DivergedError
from extremax.kernels.cpu.threads import limit
from extremax.noise import FrequencyNoise, Noise, TreeNoise, UniformNoise, tree_fit

Problem = tuple[np.ndarray, np.ndarray]
N_CLASSES, N_TRAIN = 100, 4000


def fit(noise: Noise, problem: Problem) -> Noise:
    features, labels = problem
    return noise.fit(features[:N_TRAIN], labels[:N_TRAIN], N_CLASSES)


def held_out(noise: Noise, problem: Problem) -> float:
    """Mean log q of the true class of rows the fit has not seen."""
    features, labels = problem[0][N_TRAIN:], torch.from_numpy(problem[1][N_TRAIN:])
    return float(noise.log_prob(noise.context(features), labels[:, None]).double().mean())


def test_a_tree_knows_more_than_uniform_and_prior(problem: Problem) -> None:
    uniform, prior = UniformNoise(), FrequencyNoise()
    rivals = [held_out(fit(rival, problem), problem) for rival in (uniform, prior)]
    for lambda_ in ("auto", 4.0):
        tree = fit(TreeNoise(n_components=8, lambda_=lambda_), problem)
        # The clusters alone tell one of four or five: more than a nat.
        assert held_out(tree, problem) > max(rivals) + 1.0


def test_a_tree_over_noise_falls_back_on_the_prior(problem: Problem) -> None:
    features = np.random.default_rng(0).standard_normal(problem[0].shape, dtype=np.float32)
    unrelated = features, problem[1]
    tree = fit(TreeNoise(n_components=8), unrelated)
    prior = fit(FrequencyNoise(), unrelated)
    assert held_out(tree, unrelated) > held_out(prior, unrelated) - 0.1


@pytest.mark.parametrize("noise", [0.3, 1.5])
def test_auto_is_about_the_best_of_a_grid(problem: Problem, noise: float) -> None:
    features, labels = problem
    blur = np.random.default_rng(1).standard_normal(features.shape, dtype=np.float32)
    blurred = features + np.float32(noise) * blur, labels
    grid = (0.01, 1.0, 16.0, 256.0, 4096.0)
    values = [held_out(fit(TreeNoise(8, lambda_=g), blurred), blurred) for g in grid]
    auto = held_out(fit(TreeNoise(8), blurred), blurred)
    assert max(values) - min(values) > 0.1  # Or there was nothing to choose.
    assert auto >= min(values) + 0.1
    assert auto >= max(values) - 0.05


def test_classes_without_examples_stay_possible(problem: Problem) -> None:
    features, labels = problem
    labels = 2 * labels  # Every odd class is empty, and so are 50 more at the end.
    tree = TreeNoise(8).fit(features, labels, 250)
    log_q = tree.log_prob_all(tree.context(features[:200])).double()
    assert log_q.isfinite().all()
    torch.testing.assert_close(
        log_q.exp().sum(1), torch.ones(200, dtype=torch.float64), rtol=0, atol=5e-5
    )
    assert log_q.exp()[:, 1::2].sum(1).mean() < 0.2


@pytest.mark.parametrize("n_classes", [1, 2, 3, 5])
def test_few_classes(problem: Problem, n_classes: int) -> None:
    features, labels = problem[0][:300], problem[1][:300] % n_classes
    tree = TreeNoise(4).fit(features, labels, n_classes)
    log_q = tree.log_prob_all(tree.context(features)).double()
    torch.testing.assert_close(
        log_q.exp().sum(1), torch.ones(300, dtype=torch.float64), rtol=0, atol=5e-5
    )
    assert torch.equal(tree.order_.sort().values, torch.arange(n_classes))


def test_one_example(problem: Problem) -> None:
    tree = TreeNoise(4).fit(problem[0][:1], np.array([2]), 5)
    log_q = tree.log_prob_all(tree.context(problem[0][:1])).double()
    assert log_q.exp().sum() == pytest.approx(1.0, abs=1e-5)
    assert log_q.argmax() == 2


@pytest.mark.parametrize("n_classes", [8, 50])
@pytest.mark.parametrize("n", [40, 4000])
def test_small_penalties_leave_a_finite_tree_that_fits_no_worse(n: int, n_classes: int) -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(n_classes, size=n)
    one_hot = np.eye(n_classes, dtype=np.float32)[kind]
    duplicates = rng.standard_normal((5, 6), dtype=np.float32)[kind % 5]
    labels = (kind + rng.integers(2, size=n)) % n_classes
    for features in (one_hot, duplicates):
        likelihoods = []
        for lambda_ in (1e-2, 1e-4, 1e-6, 1e-12):
            tree = TreeNoise(lambda_=lambda_).fit(features, labels, n_classes)
            assert tree.nodes_.isfinite().all()
            log_q = tree.log_prob(tree.context(features), torch.from_numpy(labels)[:, None])
            likelihoods.append(float(log_q.double().mean()))
        # A weaker penalty fits the same rows no worse, but for the greedy splits.
        assert min(likelihoods) > likelihoods[0] - 0.05


def test_a_tree_that_is_not_finite_is_refused(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(kernel: object, n: int, chunk: int, *arguments: np.ndarray) -> None:
        nodes = arguments[-1]
        nodes[3] = np.nan

    monkeypatch.setattr(tree_fit, "parallel", spoil)
    with pytest.raises(DivergedError, match=r"1 of the 100 nodes .* under lambda_=4\.0"):
        fit(TreeNoise(8, lambda_=4.0), problem)


def test_bits_do_not_depend_on_threads_or_chance(problem: Problem) -> None:
    trees = []
    for n_threads in (1, 2, 2, 3):
        with limit(n_threads):
            trees.append(fit(TreeNoise(9), problem))
    for other in trees[1:]:
        for name, tensor in trees[0].state().items():
            assert torch.equal(tensor, other.state()[name]), name


def test_rows_left_out_do_not_reach_the_tree(problem: Problem) -> None:
    features, labels = problem
    rows = np.random.default_rng(0).permutation(len(labels))[:N_TRAIN]
    others = np.setdiff1d(np.arange(len(labels)), rows)
    scrambled = labels.copy()
    scrambled[others] = 7
    trees = [TreeNoise(8).fit(features, y, N_CLASSES, rows=rows) for y in (labels, scrambled)]
    for name, tensor in trees[0].state().items():
        assert torch.equal(tensor, trees[1].state()[name]), name


def test_each_level_reports_the_penalty_it_was_fitted_under(problem: Problem) -> None:
    assert fit(TreeNoise(8, lambda_=4.0), problem).penalties_ == [4.0] * 7
    assert len(fit(TreeNoise(8), problem).penalties_) == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_components", 0),
        ("n_components", "a"),
        ("n_components", 2.5),
        ("lambda_", 0.0),
        ("lambda_", -1.0),
        ("lambda_", float("nan")),
        ("lambda_", "best"),
        ("lambda_", None),
        ("lambda_bias", 0.0),
        ("lambda_bias", float("nan")),
        ("lambda_bias", "a"),
        ("rounds", -1),
        ("rounds", "a"),
        ("sharpness", 0),
        ("sharpness", 0.0),
        ("sharpness", -0.5),
        ("sharpness", 1.5),
        ("sharpness", float("nan")),
        ("sharpness", "x"),
        ("sharpness", None),
    ],
)
def test_bad_parameters_are_refused_by_name(problem: Problem, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        fit(TreeNoise(**{name: value}), problem)
