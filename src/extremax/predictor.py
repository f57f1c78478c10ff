"""What a fitted model answers: classes, probabilities, figures on labelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from extremax.checks import check_labels
from extremax.errors import MemoryBudgetError
from extremax.features import Encoder
from extremax.features.rows import Rows
from extremax.kernels.cpu import threads
from extremax.labels import LabelIndex, label_matrix
from extremax.noise import Noise, SparseTreeNoise
from extremax.objectives import Objective
from extremax.prediction import Scorer, beam, blocks, likelihood, tree_search
from extremax.prediction.blending import log_counts
from extremax.prediction.blocks import Blend, Head


@dataclass(frozen=True)
class TopK:
    """The best classes of each row, best first. Unpacks as ``labels, log_probs``.

    normalisation: "exact", or how the log-probabilities of a beam search were estimated.
    recall:        share of rows whose best class is the exact one, where asked for.
    """

    labels: np.ndarray
    log_probs: np.ndarray
    normalisation: str
    recall: float | None = None

    def __iter__(self) -> Any:
        return iter((self.labels, self.log_probs))


@dataclass(frozen=True)
class Evaluation:
    """Exact figures on labelled rows. Rows of classes never seen in training count as wrong and
    are left out of the log-likelihood, which would be minus infinity."""

    rows: int
    unseen: int
    accuracy: float
    log_likelihood: float


class Predictor:
    """The half of `extremax.ExtremeClassifier` that needs no training."""

    head_: Head
    noise_: Noise
    objective_: Objective
    encoder_: Encoder
    index_: LabelIndex
    memory_budget: int
    n_jobs: int | None
    #: What logits are divided by: fitted with ``calibrate`` or with the weights below, else 1.
    temperature_: float = 1.0
    #: What logits have of the noise besides, see `extremax.prediction.blending`: weights of the
    #: levels of its tree, or none, and of log n.
    level_weights_: tuple[float, ...] = ()
    prior_weight_: float = 0.0
    class_counts_: np.ndarray

    @property
    def classes_(self) -> np.ndarray:
        return self.index_.classes

    @property
    def _scorer(self) -> Scorer:
        blend = None
        if self.level_weights_:
            prior = self.prior_weight_ * log_counts(self.class_counts_)
            blend = Blend(np.array(self.level_weights_), prior)
        return Scorer(self.head_, self.noise_, self.objective_, self.temperature_, blend)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, see `predict_topk`."""
        return self.predict_topk(X, 1).labels[:, 0]

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        search: str | None = None,
        width: int | None = None,
        recall: bool = False,
    ) -> TopK:
        """The k most probable classes of each row and their log-probabilities.

        search:  "exact" scores every class; "beam" only those that a beam search through the
                 noise tree finds, in time logarithmic in their number. None is exact on dense
                 rows, the beam on sparse ones where there is a tree.
        width:   subtrees that the beam keeps: by default 64 of 16 to 32 classes each, on sparse
                 rows 20 nodes a level.
        recall:  also search exactly and report how often the beam's best class is the best.
        """
        check_is_fitted(self, "head_")
        if search not in (None, "exact", "beam"):
            raise ValueError(f"search must be None, 'exact' or 'beam', got {search!r}")
        finder = tree_search if isinstance(self.noise_, SparseTreeNoise) else beam
        if search is None:
            search = "beam" if finder is tree_search else "exact"
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        with threads.limit(self.n_jobs):
            features = self.encoder_.transform(X)
            share = None
            if search == "exact":
                found = blocks.topk(self._scorer, features, k, self.memory_budget)
                normalisation, share = "exact", 1.0 if recall else None
            else:
                found = finder.topk(self._scorer, features, k, width or finder.WIDTH)
                normalisation = finder.NORMALISATION
                if recall:
                    best = blocks.topk(self._scorer, features, 1, self.memory_budget).labels
                    share = float((best[:, 0] == found.labels[:, 0]).double().mean())
        labels = self.classes_[found.labels.numpy()]
        return TopK(labels, found.log_probs.numpy(), normalisation, share)

    def predict_log_proba(self, X: Any, labels: Any = None) -> np.ndarray:
        """log p of the given label of each row, (n,), or of several labels a row, (n, j); of
        every class without labels.

        A label the model has not seen has probability zero. The dense (n, C) answer is refused
        before it is computed if it does not fit ``memory_budget``.
        """
        check_is_fitted(self, "head_")
        with threads.limit(self.n_jobs):
            features = self.encoder_.transform(X)
            if labels is None:
                return self._dense_log_proba(features)
            wanted = label_matrix(labels)
            if len(wanted) != len(features):
                raise ValueError(f"X has {len(features)} rows but labels has {len(wanted)}")
            index = self.index_.encode(wanted.reshape(-1)).reshape(len(features), -1)
            out = blocks.log_probs(self._scorer, features, index, self.memory_budget)
        return out.numpy().reshape(wanted.shape)

    def _dense_log_proba(self, features: Rows) -> np.ndarray:
        n, n_classes = len(features), len(self.index_)
        size = 4 * n * n_classes
        if size > self.memory_budget:
            raise MemoryBudgetError(
                f"{n:,} rows × {n_classes:,} classes are {size:,} bytes, over the memory budget "
                f"of {self.memory_budget:,}; use predict_topk, pass labels, or raise memory_budget"
            )
        return blocks.log_probs_all(self._scorer, features, self.memory_budget).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """p of every class, (n, C); see `predict_log_proba` for the memory it may take."""
        log_proba = self.predict_log_proba(X)
        return np.exp(log_proba, out=log_proba)

    def log_likelihood(self, X: Any, y: Any) -> float:
        """Mean exact log-likelihood; rows of unseen classes are left out, see `evaluate`."""
        return self.evaluate(X, y).log_likelihood

    def evaluate(self, X: Any, y: Any) -> Evaluation:
        """Exact accuracy and log-likelihood, with the number of rows of unseen classes."""
        check_is_fitted(self, "head_")
        with threads.limit(self.n_jobs):
            features = self.encoder_.transform(X)
            labels = self.index_.encode(check_labels(y, len(features)))
            result = likelihood(self._scorer, features, labels, self.memory_budget)
        seen = labels >= 0
        return Evaluation(
            rows=len(labels),
            unseen=int((~seen).sum()),
            accuracy=float(result.correct.double().mean()),
            log_likelihood=(
                float(result.log_prob.double()[torch.from_numpy(seen)].mean())
                if seen.any()
                else float("-inf")
            ),
        )
