"""Feature sums by class at the optimum of exact softmax, away from it, and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.diagnostics import feature_sums
from extremax.errors import MemoryBudgetError
from extremax.objectives import fit_exact
from extremax.softmax import cross_entropy, softmax

N, K, C = 300, 3, 5


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from a linear softmax; every class occurs and no class is separable."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(N, K, generator=generator, dtype=torch.float64) + 0.5
    truth = torch.randn(K, C, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(softmax(features @ truth), 1, generator=generator).squeeze(1)
    assert len(labels.unique()) == C
    return features, labels


def classifier_with(
    data: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor, biases: torch.Tensor
) -> ExtremeClassifier:
    """An exact softmax classifier whose head has these weights and biases."""
    classifier = ExtremeClassifier("exact", epochs=1, random_state=0, n_jobs=1)
    classifier.fit(data[0].numpy(), data[1].numpy())
    head = classifier.model_.head
    head.weight.copy_(weights / head.scale)
    head.bias.copy_(biases)
    return classifier


def autograd(
    data: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor, biases: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the mean loss, in float64."""
    free = [part.detach().clone().requires_grad_() for part in (weights, biases)]
    loss = cross_entropy(data[0] @ free[0].T + free[1], data[1]) / N
    by_weights, by_biases = torch.autograd.grad(loss, free)
    return by_weights.numpy(), by_biases.numpy()


def test_sums_are_equal_at_the_optimum(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    fitted = fit_exact(*data, C, learning_rate=1.0, n_epochs=4000)
    assert max(np.abs(part).max() for part in autograd(data, *fitted)) < 1e-9
    sums = feature_sums(classifier_with(data, *fitted), data[0].numpy(), data[1].numpy())
    # The head has float32 weights.
    np.testing.assert_allclose(sums.expected, sums.observed, rtol=0, atol=1e-5 * N)
    np.testing.assert_allclose(sums.expected_counts, sums.observed_counts, rtol=0, atol=1e-5 * N)
    assert sums.largest < 1e-5
    by_hand = [data[0][data[1] == k].sum(0).numpy() for k in range(C)]
    np.testing.assert_allclose(sums.observed, by_hand, rtol=1e-5)
    assert sums.observed_counts.tolist() == data[1].bincount().tolist()
    assert sums.n_examples == N


def test_away_from_the_optimum_the_difference_is_the_gradient(
    data: tuple[torch.Tensor, torch.Tensor],
) -> None:
    fitted = fit_exact(*data, C, learning_rate=1.0, n_epochs=3)
    sums = feature_sums(classifier_with(data, *fitted), data[0].numpy(), data[1].numpy())
    by_weights, by_biases = autograd(data, *fitted)
    np.testing.assert_allclose(sums.gradient, by_weights, rtol=0, atol=1e-6)
    np.testing.assert_allclose(sums.bias_gradient, by_biases, rtol=0, atol=1e-6)
    largest = max(np.abs(by_weights).max(), np.abs(by_biases).max())
    assert sums.largest == pytest.approx(largest, abs=1e-6)
    assert sums.largest > 0.01


def test_a_penalty_leaves_a_difference_proportional_to_the_weights(
    data: tuple[torch.Tensor, torch.Tensor],
) -> None:
    weights, biases = fit_exact(*data, C, learning_rate=1.0, n_epochs=2000, l2=0.05)
    sums = feature_sums(classifier_with(data, weights, biases), data[0].numpy(), data[1].numpy())
    np.testing.assert_allclose(sums.gradient, -0.05 * weights.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(sums.bias_gradient, 0.0, rtol=0, atol=1e-5)


def test_training_brings_the_sums_together(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    X, y = (part.numpy() for part in data)

    def largest(epochs: int) -> float:
        classifier = ExtremeClassifier(
            "exact", epochs=epochs, validation_fraction=0.0, random_state=0, n_jobs=1
        )
        return feature_sums(classifier.fit(X, y), X, y).largest

    assert largest(60) < 0.2 * largest(1)


def test_sparse_rows_and_several_labels_in_small_blocks_match_brute_force() -> None:
    rng = np.random.default_rng(3)
    X = sparse.random_array((120, 40), density=0.2, rng=rng, dtype=np.float32, format="csr")
    y = [[f"c{i}" for i in rng.choice(9, rng.integers(1, 4), replace=False)] for _ in range(120)]
    classifier = ExtremeClassifier(epochs=1, bag_size=8, random_state=0, n_jobs=1).fit(X, y)
    # Room for the sums and the scores of four rows.
    classifier.memory_budget = 24 * 9 * 40 + 24 * 9 * 4
    sums = feature_sums(classifier, X, y)
    some = feature_sums(classifier, X, y, classes=["c7", "c2"])
    classifier.memory_budget = 2**29
    p = np.exp(classifier.predict_log_proba(X).astype(np.float64))
    names = list(classifier.classes_)
    one_hot = np.array([[name in labels for name in names] for labels in y], float)
    rows = X.toarray().astype(np.float64)
    np.testing.assert_allclose(sums.observed, one_hot.T @ rows, rtol=1e-5)
    np.testing.assert_allclose(
        sums.expected, (p * one_hot.sum(1, keepdims=True)).T @ rows, rtol=1e-4
    )
    assert sums.n_examples == one_hot.sum()
    assert sums.expected_counts.sum() == pytest.approx(sums.n_examples, rel=1e-5)
    chosen = [names.index("c7"), names.index("c2")]
    for one, other in ((some.observed, sums.observed), (some.expected, sums.expected)):
        np.testing.assert_allclose(one, other[chosen], rtol=1e-6)


def test_what_cannot_be_computed_is_refused(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    X, y = (part.numpy() for part in data)
    classifier = classifier_with(data, torch.zeros(C, K), torch.zeros(C))
    with pytest.raises(ValueError, match="label in row 2 that training never saw"):
        feature_sums(classifier, X[:3], [0, 1, 99])
    with pytest.raises(ValueError, match="classes has 99"):
        feature_sums(classifier, X, y, classes=[0, 99])
    with pytest.raises(ValueError, match="3 rows but y has 2"):
        feature_sums(classifier, X[:3], y[:2])
    classifier.memory_budget = 24 * C * K - 1
    with pytest.raises(MemoryBudgetError, match="5 classes × 3 features take 360 bytes"):
        feature_sums(classifier, X, y)
