"""The weights of head and tree: their gradient, their optimum and what few rows can say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize

from extremax.bag_head import BagHead
from extremax.features.rows import SparseRows
from extremax.noise import sparse_tree_shape
from extremax.noise.sparse_tree import SparseTreeNoise
from extremax.objectives import SampledSoftmax
from extremax.prediction import blending
from extremax.prediction.blending import START, _classes, _likelihood, fit_blend, log_counts
from extremax.prediction.blocks import Scorer

N, CLASSES, WORDS = 3000, 60, 30


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> Scorer:
    """A tree of two levels and a head, both by chance."""
    monkeypatch.setattr(sparse_tree_shape, "_HALVINGS", 3)
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, N)
    noise = SparseTreeNoise(0.1).fit(rows(1).matrix, labels, CLASSES)
    assert noise.n_levels_ == 2
    head = BagHead(CLASSES, WORDS, 16, 1.0, 1.0, 0)
    head.weight.copy_(torch.from_numpy(random.normal(size=(CLASSES, 16))))
    return Scorer(head, noise, SampledSoftmax())


def rows(seed: int) -> SparseRows:
    found = sparse.random(N, WORDS, 0.2, "csr", np.float32, random_state=seed)
    return SparseRows.of(found)


def known(scorer: Scorer, features: SparseRows, counts: np.ndarray) -> torch.Tensor:
    """ξ, log q of both levels and log n, (n, C, 4), in float64."""
    context = scorer.noise.context(features)
    levels = [scorer.noise.weighted_log_probs(context, w) for w in np.eye(2)]
    log_n = log_counts(counts).expand(levels[0].shape)
    return torch.stack([scorer.head.scores_all(features), *levels, log_n], 2).double()


def test_gradient_and_hessian_are_those_of_autograd(scorer: Scorer) -> None:
    random = np.random.default_rng(2)
    features, labels = rows(2), random.integers(0, CLASSES, N)
    counts = random.integers(0, 50, CLASSES)
    at, start = np.array([0.4, 0.9, 0.3, -0.2]), np.array([0.5, 0.5, 0.5, 0.0])
    some = np.arange(0, N, 3)
    classes = _classes(scorer, features, labels, some, log_counts(counts))
    value, gradient, bend = _likelihood(classes, at, start)
    f, truth = known(scorer, features, counts)[some], torch.from_numpy(labels[some])

    def likelihood(w: torch.Tensor) -> torch.Tensor:
        pull = 5.0 * (w - torch.tensor(start)).square().sum()
        return (f @ w).log_softmax(1).gather(1, truth[:, None]).sum() - pull

    w = torch.tensor(at, requires_grad=True)
    expected = likelihood(w)
    np.testing.assert_allclose(value, float(expected.detach()), rtol=1e-5)
    (slope,) = torch.autograd.grad(expected, w)
    np.testing.assert_allclose(gradient, slope.numpy(), rtol=1e-4, atol=1e-2)
    hessian = torch.autograd.functional.hessian(likelihood, torch.tensor(at))
    np.testing.assert_allclose(bend, -hessian.numpy(), rtol=1e-4, atol=1e-2)


def test_some_classes_stand_for_the_others(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over the classes of a row are those over all, in the mean over many draws."""
    monkeypatch.setattr(blending, "_FOUND", 4)
    monkeypatch.setattr(blending, "_DRAWN", 6)
    features = rows(5)[np.zeros(N, np.int64)]
    labels = np.full(N, 7)
    counts = np.arange(CLASSES)
    classes = _classes(scorer, features, labels, np.arange(N), log_counts(counts))
    assert classes.known.shape == (N, 11, 4)
    every = known(scorer, features[:1], counts)[0]
    torch.testing.assert_close(classes.known[:, 0].double(), every[7].expand(N, -1))
    for w in torch.eye(4, dtype=torch.float64) / 2:
        sums = (classes.known.double() @ w + classes.log_times).exp().sum(1)
        error = float(sums.std()) / N**0.5
        assert abs(float(sums.mean() - (every @ w).exp().sum())) < 5 * error + 1e-6
    # No class counts twice: each row stands for all of them.
    torch.testing.assert_close(classes.log_times.exp().sum(1), torch.full((N,), float(CLASSES)))


@pytest.mark.parametrize("sampled", [False, True])
def test_weights_that_made_the_labels_are_found(
    scorer: Scorer, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampled:
        monkeypatch.setattr(blending, "_FOUND", 25)
        monkeypatch.setattr(blending, "_DRAWN", 30)
    random = np.random.default_rng(3)
    features, counts = rows(3), random.integers(1, 1000, CLASSES)
    truth = torch.tensor([0.8, 1.2, 0.6, -0.4], dtype=torch.float64)
    p = (known(scorer, features, counts) @ truth).softmax(1)
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0].numpy()
    found = fit_blend(scorer, features, labels, np.arange(N), counts)
    weights = np.array([1.0, *found.levels, found.prior]) / found.temperature
    np.testing.assert_allclose(weights, truth, atol=0.2)


@pytest.mark.parametrize(
    ("truth", "at", "bound"),
    [
        ([-0.3, 0.9, 0.5, 0.2], 0, 1e-3),
        ([0.5, 0.9, 0.5, -1.7], 3, -1.0),
        ([0.5, 0.9, 0.5, 1.7], 3, 1.0),
    ],
)
def test_an_expert_that_is_wrong_is_not_turned_round_nor_frequency_heard_too_loud(
    scorer: Scorer, truth: list[float], at: int, bound: float
) -> None:
    """The top within the bounds, as another optimiser finds it."""
    random = np.random.default_rng(6)
    features, counts = rows(6), random.integers(1, 1000, CLASSES)
    p = (known(scorer, features, counts) @ torch.tensor(truth, dtype=torch.float64)).softmax(1)
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(1))[:, 0].numpy()
    found = fit_blend(scorer, features, labels, np.arange(N), counts)
    weights = np.array([1.0, *found.levels, found.prior]) / found.temperature
    classes = _classes(scorer, features, labels, np.arange(N), log_counts(counts))
    start = np.array([START, START, START, 0.0])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, _ = _likelihood(classes, w, start)
        return -value, -gradient

    bounds = [(1e-3, None)] * 3 + [(-1.0, 1.0)]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    assert weights[at] == pytest.approx(bound)
    np.testing.assert_allclose(weights, best.x, atol=0.01)


def test_a_few_rows_move_little(scorer: Scorer) -> None:
    # Scores like those of a head that was hardly trained.
    scorer.head.weight.mul_(0.1)
    labels = np.random.default_rng(4).integers(0, CLASSES, N)
    counts = np.arange(CLASSES)
    found = fit_blend(scorer, rows(4), labels, np.arange(2), counts)
    weights = np.array([1.0, *found.levels, found.prior]) / found.temperature
    np.testing.assert_allclose(weights, [START, START, START, 0.0], atol=0.3)
