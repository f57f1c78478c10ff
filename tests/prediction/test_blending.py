"""The weights of head and tree: their gradient, their optimum and what few rows can say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax.bag_head import BagHead
from extremax.features.rows import SparseRows
from extremax.noise import sparse_tree_shape
from extremax.noise.sparse_tree import SparseTreeNoise
from extremax.objectives import SampledSoftmax
from extremax.prediction.blending import START, _likelihood, fit_blend, log_counts
from extremax.prediction.blocks import Scorer

N, CLASSES, WORDS = 3000, 20, 30
BUDGET = 1 << 20


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
    """ξ, log q of both levels and log n, (4, n, C), in float64."""
    levels = scorer.noise.weighted_log_probs(scorer.noise.context(features), np.eye(2))
    log_n = log_counts(counts).expand(levels.shape[1:])
    return torch.stack([scorer.head.scores_all(features), *levels, log_n]).double()


def test_gradient_and_hessian_are_those_of_autograd(scorer: Scorer) -> None:
    random = np.random.default_rng(2)
    features, labels = rows(2), random.integers(0, CLASSES, N)
    counts = random.integers(0, 50, CLASSES)
    at, start = np.array([0.4, 0.9, 0.3, -0.2]), np.array([0.5, 0.5, 0.5, 0.0])
    some = np.arange(0, N, 3)
    value, gradient, bend = _likelihood(
        scorer, features, labels, BUDGET, some, log_counts(counts), at, start
    )
    f, truth = known(scorer, features, counts)[:, some], torch.from_numpy(labels[some])

    def likelihood(w: torch.Tensor) -> torch.Tensor:
        log_p = torch.einsum("f,fnc->nc", w, f).log_softmax(1)
        return (
            log_p.gather(1, truth[:, None]).sum() - 5.0 * (w - torch.tensor(start)).square().sum()
        )

    w = torch.tensor(at, requires_grad=True)
    expected = likelihood(w)
    np.testing.assert_allclose(value, float(expected.detach()), rtol=1e-5)
    (slope,) = torch.autograd.grad(expected, w)
    np.testing.assert_allclose(gradient, slope.numpy(), rtol=1e-3, atol=1e-2)
    hessian = torch.autograd.functional.hessian(likelihood, torch.tensor(at))
    np.testing.assert_allclose(bend, -hessian.numpy(), rtol=1e-3, atol=1e-1)


def test_weights_that_made_the_labels_are_found(scorer: Scorer) -> None:
    random = np.random.default_rng(3)
    features, counts = rows(3), random.integers(1, 1000, CLASSES)
    truth = torch.tensor([0.8, 1.2, 0.6, -0.4], dtype=torch.float64)
    p = torch.einsum("f,fnc->nc", truth, known(scorer, features, counts)).softmax(1)
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0].numpy()
    found = fit_blend(scorer, features, labels, BUDGET, np.arange(N), counts)
    weights = np.array([1.0, *found.levels, found.prior]) / found.temperature
    np.testing.assert_allclose(weights, truth, atol=0.2)


def test_a_few_rows_move_little(scorer: Scorer) -> None:
    labels = np.random.default_rng(4).integers(0, CLASSES, N)
    counts = np.arange(CLASSES)
    found = fit_blend(scorer, rows(4), labels, BUDGET, np.arange(2), counts)
    weights = np.array([1.0, *found.levels, found.prior]) / found.temperature
    np.testing.assert_allclose(weights, [START, START, START, 0.0], atol=0.3)
