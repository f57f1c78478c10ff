"""Observed and expected feature sums by class: what maximum entropy says about convergence.

Softmax is the distribution of largest entropy among those with

    Σ_i x_i [y_i = k] = Σ_i x_i p(k|x_i)    for every class k

(Berger et al. 1996). Expected minus observed sums are the gradient of Σ_i −log p(y_i|x_i) on the
weights w_k (Tian 2016, eq. 13), so the two are equal exactly at the optimum of softmax regression.
Wherever they differ, training has not converged or something else holds the weights back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from extremax.errors import ArgumentError, MemoryBudgetError
from extremax.evaluation import class_lists
from extremax.heads.blocks import check_overflow, row_slices
from extremax.kernels.cpu import threads
from extremax.labels import label_array
from extremax.model import Model

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier

# Bytes per class and feature: the two sums and those of one block, in float64.
_BYTES_PER_SUM = 24


@dataclass(frozen=True)
class FeatureSums:
    """Results of `feature_sums`, for the classes that were asked for.

    observed:         Σ_i x_i [y_i = k], (classes, features).
    expected:         Σ_i x_i p(k|x_i), same shape.
    observed_counts:  Σ_i [y_i = k], (classes,): the sums of a feature that is always one.
    expected_counts:  Σ_i p(k|x_i), same shape.
    n_examples:       number of labels; a row with several labels counts once for each.
    """

    observed: np.ndarray
    expected: np.ndarray
    observed_counts: np.ndarray
    expected_counts: np.ndarray
    n_examples: int

    @property
    def gradient(self) -> np.ndarray:
        """Gradient of the mean of −log p(y|x) on the weights, (expected − observed)/n."""
        return (self.expected - self.observed) / self.n_examples

    @property
    def bias_gradient(self) -> np.ndarray:
        """The same on the biases."""
        return (self.expected_counts - self.observed_counts) / self.n_examples

    @property
    def largest(self) -> float:
        """Largest absolute value of both gradients; 0 at the optimum."""
        gradients = self.gradient, self.bias_gradient
        return max(float(np.abs(part).max(initial=0.0)) for part in gradients)


def feature_sums(classifier: ExtremeClassifier, X: Any, y: Any, classes: Any = None) -> FeatureSums:
    """Compare feature sums by class, as observed and as the model expects them.

    The two are equal at the optimum of exact softmax with a linear head and no penalty, on the rows
    that it was trained on (``validation_fraction=0`` trains on all). With
    ``weight_decay=λ``, or ``l2=λ`` of `extremax.objectives.fit_exact`, ``gradient`` is −λW instead.
    Features are those that the classifier's encoder passes to the head.

    classes:  labels to compute the sums of; None is all, (C, features) numbers, which must fit
              ``memory_budget``.
    """
    model, budget = classifier.model_, classifier.memory_budget
    with threads.limit(classifier.n_jobs):
        rows = model.encoder.transform(X)
        truth = class_lists(model, y, len(rows))
        if not len(truth.values):
            raise ArgumentError("y must have at least one label")
        if truth.values.min() < 0:
            row = int(truth.rows[truth.values < 0][0])
            raise ArgumentError(f"y has a label in row {row} that training never saw; remove it")
        numbers = _class_numbers(model, classes)
        size = _BYTES_PER_SUM * len(numbers) * rows.n_features
        if size > budget:
            raise MemoryBudgetError(
                f"the sums of {len(numbers):,} classes × {rows.n_features:,} features take "
                f"{size:,} bytes, over the memory budget of {budget:,}; pass fewer classes or "
                "raise memory_budget"
            )
        observed = np.zeros((len(numbers), rows.n_features))
        expected, expected_counts = np.zeros_like(observed), np.zeros(len(numbers))
        pairs = np.ones(len(truth.values)), truth.values, truth.indptr
        one_hot = sparse.csr_matrix(pairs, (len(rows), model.n_classes))
        # Besides its scores, a block needs the probabilities of the classes in float64.
        for block in row_slices(len(rows), model.n_classes, budget - size, more=8):
            part = rows[block]
            log_p = model.log_probs_all(part)
            check_overflow(log_p, block)
            p = log_p[:, numbers].double().exp_().numpy()
            p *= truth.counts[block, None]
            x = part.sparse().matrix
            observed += (one_hot[block][:, numbers].T @ x).toarray()
            expected += (x.T @ p).T
            expected_counts += p.sum(0)
    counts = np.bincount(truth.values, minlength=model.n_classes)[numbers]
    return FeatureSums(observed, expected, counts, expected_counts, len(truth.values))


def _class_numbers(model: Model, classes: Any) -> np.ndarray:
    """Class numbers of labels; of all classes for None."""
    if classes is None:
        return np.arange(model.n_classes)
    numbers = model.labels.encode(label_array(classes))
    if (numbers < 0).any():
        unknown = label_array(classes)[numbers < 0][0]
        raise ArgumentError(f"classes has {unknown}, which the classifier does not know")
    return numbers
