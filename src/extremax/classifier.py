"""The front door: a scikit-learn classifier for very many classes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import Tags

from extremax import saving
from extremax.bag_head import BagHead
from extremax.checks import check_parameters
from extremax.choice import DENSE, SPARSE, choose_noise, choose_objective
from extremax.features import Encoder
from extremax.features.rows import Rows, SparseRows
from extremax.head import LinearHead
from extremax.kernels.cpu import threads
from extremax.labels import LabelIndex, joined, label_array
from extremax.memory import return_large_arrays, return_the_rest
from extremax.noise import Noise
from extremax.objectives import Objective
from extremax.parts import make_noise, make_objective
from extremax.prediction.blending import START, blends, fit_blend
from extremax.prediction.blocks import Head
from extremax.prediction.calibration import fit_temperature
from extremax.predictor import Evaluation, Predictor, TopK
from extremax.random import Stream, seed_from
from extremax.saving import under
from extremax.sparse_head import SparseHead
from extremax.training.checkpoint import Checkpoint, saved_seed
from extremax.training.data import Data, paired, unit_scale
from extremax.training.holdout import holdout
from extremax.training.loop import Clock, Examples, Settings, State, Trainer
from extremax.training.progress import Progress
from extremax.training.start import (
    start_at_class_means,
    start_at_frequencies,
    start_at_sparse_means,
)

Callback = Callable[[dict[str, Any]], bool | None]

__all__ = ["Evaluation", "ExtremeClassifier", "TopK"]

_PARTIAL_FIT = 4
# Held-out scores, or rows at least, that a temperature is fitted to: some seconds of work.
_CALIBRATION_SCORES, _CALIBRATION_ROWS = 10_000_000, 500


class ExtremeClassifier(ClassifierMixin, Predictor, BaseEstimator):
    """Linear softmax classification by sampling a few classes a step instead of all.

    Dense rows train a linear head; sparse rows and texts a learned bag of features beside a tree
    of sparse models, see `extremax.bag_head` and `extremax.noise.sparse_tree`.

    objective, noise:     a name from ``OBJECTIVES`` / ``NOISES`` or an object, such as
                          ``TreeNoise(n_components=64)``, or "auto", see `extremax.choice`.
    n_negatives:          classes drawn for each example and step (m). Where objective, this or
                          epochs is None, `extremax.choice` has one for dense and for sparse rows.
    learning_rate:        of Adagrad, for features of unit mean square and divided by √K, so that
                          it need not change with the number or scale of features.
    accumulator_start:    Adagrad's accumulators start here; near zero makes every first step
                          ±learning_rate however small its gradient.
    schedule:             "linear" to zero over the run, or "constant".
    epochs, max_seconds:  the run ends with the first of the two reached. With ``max_seconds``
                          (held-out looks and callbacks not counted) the end depends on the
                          machine's speed.
    batch_size:           None chooses: a hundredth of the rows, within bounds.
    validation_fraction:  rows held out to watch the exact log-likelihood, 10,000 at most.
    patience:             epochs without a better held-out log-likelihood before stopping; the
                          best head is kept, the one training began with among them.
    calibrate:            after training, fit one temperature by which logits are divided to the
                          held-out rows, see `extremax.prediction.calibration`. A tree of sparse
                          models always gets its weight beside the head from them.
    bag_size:             dimensions of the learned bag, on sparse rows.
    feature_dropout:      share of the features that a step does not see, on sparse rows.
    encoder:              what to do with sparse rows and texts, see `extremax.features.Encoder`.
    memory_budget:        bytes that prediction and dense requests may take.
    n_jobs:               threads; None is every core. Results do not depend on it.
    """

    #: Whether `looks_`, held-out figures at the start, gets more between the ends of epochs.
    looks_between = False

    def __init__(
        self,
        objective: str | Objective | None = None,
        noise: str | Noise = "tree",
        *,
        n_negatives: int | None = None,
        learning_rate: float = 0.3,
        accumulator_start: float = 1.0,
        schedule: str = "linear",
        epochs: int | None = None,
        max_seconds: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.1,
        patience: int = 2,
        calibrate: bool = False,
        bag_size: int = 128,
        feature_dropout: float = 0.1,
        encoder: Encoder | None = None,
        memory_budget: int = 2**29,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.objective = objective
        self.noise = noise
        self.n_negatives = n_negatives
        self.learning_rate = learning_rate
        self.accumulator_start = accumulator_start
        self.schedule = schedule
        self.epochs = epochs
        self.max_seconds = max_seconds
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.calibrate = calibrate
        self.bag_size = bag_size
        self.feature_dropout = feature_dropout
        self.encoder = encoder
        self.memory_budget = memory_budget
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        return tags

    # Training ---------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        checkpoint: str | Path | None = None,
        callback: Callback | None = None,
    ) -> ExtremeClassifier:
        """Train from scratch.

        checkpoint:  a folder. An interrupted fit of the same data and parameters goes on from
                     there, to the bit-identical end (without ``max_seconds``).
        callback:    called with the record of each epoch; returning True ends the run.
        """
        check_parameters(self)
        return_large_arrays()
        with threads.limit(self.n_jobs):
            seed = saved_seed(checkpoint) if self.random_state is None else None
            seed = seed_from(self.random_state) if seed is None else seed
            progress = Progress(self.verbose)
            data = self._start(X, y, sample_weight, None, seed)
            features, labels, weights, owner = data
            scale = unit_scale(features)
            rows, held_out = holdout(labels, self.validation_fraction, seed, data.counted, owner)
            fingerprint = self._fingerprint(features, labels, weights, scale)
            file = Checkpoint(checkpoint, fingerprint)
            saved = file.load()
            state = State() if saved is None else State(**saved[1])
            if saved is None:
                clock = Clock(0.0)
                if self.objective_.samples:
                    progress.note(f"fitting {type(self.noise_).__name__} to {len(rows):,} examples")
                self.noise_.fit(features, labels, len(self.index_), rows)
            else:
                self.noise_.load_state(under("noise", saved[0]))
            self._listen()
            # Only now: fitting the noise has needs of its own.
            return_the_rest()
            head = self._new_head(features, labels, rows, scale)
            if saved is not None:
                head.load_state(under("head", saved[0]))
                progress.note(f"going on from {file.path}, epoch {state.epoch + 1}")
            self.head_ = head
            examples = self._examples(features, labels, weights)
            if saved is None:
                self._start_head(examples, rows, held_out)
                state.seconds = clock.seconds
            self.noise_.attach(head)
            local = None if saved is None else saved[0].get("local")
            del saved
            trainer = Trainer(
                scorer=self._scorer,
                examples=examples,
                settings=self._settings(len(rows)),
                seed=seed,
                progress=progress,
                checkpoint=file,
                callback=callback,
                state=state,
                local=local,
                looks_between=self.looks_between,
            )
            trained = trainer.run(rows, held_out)
            self.history_, self.looks_ = trained.history, trained.looks
            self._calibrate(examples, rows, held_out)
        self.n_iter_ = len(self.history_)
        return self

    def _calibrate(self, examples: Examples, rows: np.ndarray, held_out: np.ndarray) -> None:
        """Temperature, and the weights of a noise that is worth listening to."""
        if not len(held_out):
            return
        given = self._scorer, examples.features, examples.labels
        if self._blends:
            # Held-out rows must not count: they would tell which class is theirs.
            counts = np.bincount(examples.labels[rows], minlength=len(self.index_))
            found = fit_blend(*given, held_out, counts)
            self.temperature_, self.level_weights_, self.prior_weight_ = found
        elif self.calibrate:
            some = held_out[: max(_CALIBRATION_ROWS, _CALIBRATION_SCORES // len(self.index_))]
            self.temperature_ = fit_temperature(*given, self.memory_budget, some)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> ExtremeClassifier:
        """One pass over these rows at a constant learning rate; classes may be new.

        The first call fits encoder and noise to its rows; give it enough of them. Classes that
        come later train as well as others, but a tree noise knows nothing of them. ``classes``
        may name some before they come; those follow the ones that are there in ``classes_``.
        """
        check_parameters(self)
        with threads.limit(self.n_jobs):
            fresh = not hasattr(self, "head_")
            if fresh:
                seed = seed_from(self.random_state)
                data = self._start(X, y, sample_weight, classes, seed)
                features, labels, weights, _ = data
                rows = data.counted
                # A tree would give classes without a row next to no chance: they come beside it.
                self.noise_.fit(features, labels, int(labels.max()) + 1, rows)
                self.noise_.extend(len(self.index_))
                self._listen()
                self.head_ = self._new_head(features, labels, rows, unit_scale(features))
            else:
                features, labels, weights, _ = self._continue(X, y, sample_weight, classes)
            examples = self._examples(features, labels, weights)
            if fresh:
                self._start_head(examples, rows, rows[:0])
            self.noise_.attach(self.head_)
            trainer = Trainer(
                scorer=self._scorer,
                examples=examples,
                settings=self._settings(len(labels)),
                seed=self.seed_,
                progress=Progress(0),
                checkpoint=Checkpoint(None, {}),
                state=State(epoch=self.n_partial_fits_),
            )
            purpose = (self.seed_, _PARTIAL_FIT, self.n_partial_fits_)
            order = np.random.default_rng(purpose).permutation(len(labels))
            n_steps = -(-len(order) // trainer.settings.batch_size)
            rates = np.full(n_steps, self.learning_rate)
            trainer.train(order, Stream.of(*purpose, rows=order).key, rates)
            self.n_partial_fits_ += 1
        return self

    def _start(self, X: Any, y: Any, sample_weight: Any, classes: Any, seed: int) -> Data:
        """Encode the data and make fresh, unfitted parts."""
        encoder = clone(self.encoder) if self.encoder is not None else Encoder()
        # Wrong names are refused before any work is done.
        self._parts(1, 1, 1, encoder.leaves_sparse(X))
        features = encoder.fit_transform(X, seed=seed, budget=self.memory_budget)
        data = paired(features, y, sample_weight)
        index = LabelIndex.of(data.labels)
        if classes is not None:
            index.extend(label_array(classes))
        objective, noise = self._parts(
            len(data.labels), features.shape[1], len(index), isinstance(features, SparseRows)
        )
        # Until the new head is there, this is no model: no part of an earlier fit may stay.
        self.__dict__.pop("head_", None)
        self.index_ = index
        self.encoder_, self.noise_, self.objective_ = encoder, noise, objective
        self.n_features_in_ = encoder.n_features_in_
        self.seed_, self.n_partial_fits_ = seed, 0
        self.temperature_, self.level_weights_, self.prior_weight_ = 1.0, (), 0.0
        self.several_, self.n_rows_ = data.owner is not None, 0
        self.class_counts_ = np.zeros(0, np.int64)
        return self._counted(data, len(features))

    def _counted(self, data: Data, n_rows: int) -> Data:
        """The same with labels as numbers of classes; their rows are counted."""
        labels = self.index_.encode(data.labels)
        counts = np.bincount(labels, minlength=len(self.index_))
        counts[: len(self.class_counts_)] += self.class_counts_
        self.class_counts_ = counts
        self.n_rows_ += n_rows
        return data._replace(labels=labels)

    def _parts(
        self, n_rows: int, n_features: int, n_classes: int, sparse: bool
    ) -> tuple[Objective, Noise]:
        """Unfitted objective and noise for data of this size."""
        self.defaults_ = SPARSE if sparse else DENSE
        objective, noise = self.objective, self.noise
        if objective is None or (objective == "auto" and sparse):
            objective = self.defaults_.objective
        elif objective == "auto":
            objective = choose_objective(
                n_rows, n_classes, n_features, epochs=self._epochs, max_seconds=self.max_seconds
            )
        objective = make_objective(objective)
        if noise == "auto":
            noise = "tree" if sparse else choose_noise(objective.adds_log_q)
        return objective, make_noise(noise, objective, sparse)

    @property
    def _blends(self) -> bool:
        """Whether the noise is heard beside the head, see `extremax.prediction.blending`."""
        return blends(self.noise_, self.objective_)

    def _listen(self) -> None:
        """Half of head and noise each, until held-out rows say better."""
        if self._blends:
            self.temperature_ = 1.0 / START
            self.level_weights_ = (1.0,) * self.noise_.n_levels_

    @property
    def _epochs(self) -> int:
        return self.defaults_.epochs if self.epochs is None else self.epochs

    @property
    def _n_negatives(self) -> int:
        return self.defaults_.n_negatives if self.n_negatives is None else self.n_negatives

    def _examples(self, features: Rows, labels: np.ndarray, weights: np.ndarray | None) -> Examples:
        """Ready for training, with the noise's view of the rows where it is worth keeping."""
        keeps = self.objective_.samples and self.noise_.keeps_context
        context = self.noise_.context(features) if keeps else None
        return Examples(features, labels, weights, context)

    def _new_head(self, features: Rows, labels: np.ndarray, rows: np.ndarray, scale: float) -> Head:
        n_classes, n_features = len(self.index_), features.shape[1]
        start = self.accumulator_start
        if not isinstance(features, SparseRows):
            return LinearHead(n_classes, n_features, start, scale)
        if not self.objective_.samples:
            return SparseHead.of(features, labels, rows, n_classes, start, scale)
        return BagHead(n_classes, n_features, self.bag_size, start, scale, self.seed_)

    def _start_head(self, examples: Examples, rows: np.ndarray, held_out: np.ndarray) -> None:
        if isinstance(self.head_, LinearHead):
            start_at_class_means(
                self._scorer, examples, rows, held_out, self._n_negatives, self.seed_
            )
        elif isinstance(self.head_, SparseHead):
            start_at_sparse_means(self._scorer, examples, rows, held_out)
        else:
            start_at_frequencies(self._scorer, examples.labels[rows])

    def _continue(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Data:
        """Encode more data for a model that is there; makes room for new classes."""
        features = self.encoder_.transform(X)
        data = paired(features, y, sample_weight)
        labels = data.labels
        if self.index_.extend(labels if classes is None else joined(labels, label_array(classes))):
            self.head_.grow(len(self.index_))
            self.noise_.extend(len(self.index_))
        return self._counted(data, len(features))

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder of safetensors and JSON, with all that training needs."""
        saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> ExtremeClassifier:
        """A model from its folder; a damaged or foreign one is refused with the reason."""
        return saving.load(cls, folder)

    def _settings(self, n_rows: int) -> Settings:
        return Settings(
            n_negatives=self._n_negatives,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            epochs=self._epochs,
            batch_size=self.batch_size
            or default_batch_size(n_rows, self.objective_, self.encoder_.sparse_),
            max_seconds=self.max_seconds,
            patience=self.patience,
            dropout=self.feature_dropout if isinstance(self.head_, BagHead) else 0.0,
        )

    def _fingerprint(
        self,
        features: Rows,
        labels: np.ndarray,
        weights: np.ndarray | None,
        scale: float,
    ) -> dict[str, Any]:
        """What makes two runs the same: size, scale and a few rows of the data, all labels and
        weights, every parameter."""
        few = features[:: max(1, len(features) // 16)]
        if isinstance(few, SparseRows):
            few = np.concatenate([few.indptr, few.indices, few.values])
        some = np.ascontiguousarray(few, dtype=np.float32)
        skip = {"n_jobs", "verbose", "random_state", "memory_budget"}
        parameters = {k: v for k, v in self.get_params(deep=False).items() if k not in skip}
        return {
            "seed": self.seed_,
            "rows": len(features),
            "features": f"{features.shape[1]} columns, {zlib.crc32(some.tobytes()):x}, {scale!r}",
            "labels": f"{len(self.index_)} classes, {zlib.crc32(labels.tobytes()):x}",
            "sample_weight": "" if weights is None else f"{zlib.crc32(weights.tobytes()):x}",
            **{k: repr(v) for k, v in parameters.items()},
        }


def default_batch_size(n_rows: int, objective: Objective, sparse: bool = False) -> int:
    """A hundredth of an epoch, between 32 and a step that is large enough.

    Where many steps run in one kernel, small ones find their rows in the cache; elsewhere a step
    must be worth the way through Python, or all of the head's rows. On sparse rows there are few
    epochs, which need the more steps.
    """
    most = 1024 if sparse else 4096 if objective.logistic(1) is None else 512
    return int(np.clip(n_rows // 100, 32, most))
