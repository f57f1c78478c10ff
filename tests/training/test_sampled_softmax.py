"""Training with sampled softmax: where its draws come from, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from torch import Tensor

from extremax import ExtremeClassifier
from extremax.objectives import Pairs, SampledSoftmax
from extremax.training.steps import Batch, Steps


@pytest.mark.parametrize("n_negatives", [1, 5])
def test_softmax_noise_finds_the_share_of_a_frequent_class(n_negatives: int) -> None:
    # One feature that says nothing; class 0 has 3,610 of 4,000 rows.
    y = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [3610, 130, 130, 130]))
    X = np.zeros((4000, 1), np.float32)
    model = ExtremeClassifier(
        "sampled_softmax", "softmax", n_negatives=n_negatives, epochs=20, learning_rate=1.0,
        start="zeros", validation_fraction=0.0, random_state=0,
    ).fit(X, y)  # fmt: skip
    # If draws of the true class were dropped, class 0 would get 0.74 with one draw and 0.84 with
    # five: p_k ∝ p_D(k)(1 − p_k^m).
    found = model.predict_proba(X[:1])[0]
    np.testing.assert_allclose(found, [0.9025, 0.0325, 0.0325, 0.0325], rtol=0, atol=5e-3)


@pytest.mark.parametrize("noise", ["sparse_tree", "frequency"])
def test_no_step_draws_the_true_class(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Draws of the sparse tree are kept from the first epoch to the second.
    y = np.arange(600) % 5
    X = sparse.csr_matrix((np.ones(600, np.float32), (np.arange(600), y)), shape=(600, 5))
    draw, hits = Steps._draw, []

    def watched(steps: Steps, batch: Batch) -> tuple[Tensor, Tensor]:
        classes, log_q = draw(steps, batch)
        hits.append(bool((classes[:, 1:] == batch.truth).any()))
        return classes, log_q

    monkeypatch.setattr(Steps, "_draw", watched)
    ExtremeClassifier("sampled_softmax", noise, epochs=2, random_state=0).fit(X, y)
    assert hits
    assert not any(hits)


def test_log_q_of_the_true_class_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The gradient does not depend on it, and a tree would be walked once more for each row.
    gradient, known = SampledSoftmax.loss_and_gradient, []

    def watched(objective: SampledSoftmax, pairs: Pairs) -> tuple[Tensor, Tensor]:
        known.append(not bool(pairs.log_q[:, 0].isnan().all()))
        return gradient(objective, pairs)

    monkeypatch.setattr(SampledSoftmax, "loss_and_gradient", watched)
    X, y = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32), np.arange(300) % 7
    model = ExtremeClassifier("sampled_softmax", "tree", epochs=2, random_state=0).fit(X, y)
    assert known
    assert not any(known)
    assert np.isfinite(model.predict_log_proba(X)).all()
