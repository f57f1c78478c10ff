"""The front door: a scikit-learn classifier for very many classes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from extremax.errors import MemoryBudgetError, ModelFileError
from extremax.features import Encoder
from extremax.features.pca import row_blocks
from extremax.head import LinearHead
from extremax.kernels.cpu import threads
from extremax.labels import LabelIndex, joined, label_array, label_matrix
from extremax.model_files import pack_labels, read_model, unpack_labels, write_model
from extremax.noise import NOISES, Noise
from extremax.objectives import OBJECTIVES, Objective
from extremax.prediction import Scorer, beam, blocks, likelihood
from extremax.random import Stream, seed_from
from extremax.training.checkpoint import Checkpoint, saved_seed
from extremax.training.holdout import holdout
from extremax.training.loop import Clock, Examples, Settings, State, Trainer
from extremax.training.progress import Progress
from extremax.training.start import start_at_class_means

Callback = Callable[[dict[str, Any]], bool | None]

_PARTIAL_FIT = 4


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


class ExtremeClassifier(ClassifierMixin, BaseEstimator):
    """Linear softmax classification by sampling a few classes a step instead of all.

    objective, noise:     a name from ``OBJECTIVES`` / ``NOISES`` or an object, such as
                          ``TreeNoise(n_components=64)``.
    n_negatives:          classes drawn for each example and step (m).
    learning_rate:        of Adagrad, for features of unit mean square and divided by √K, so that
                          it need not change with the number or scale of features.
    accumulator_start:    Adagrad's accumulators start here; near zero makes every first step
                          ±learning_rate however small its gradient.
    schedule:             "linear" to zero over the run, or "constant".
    epochs, max_seconds:  the run ends with the first of the two reached. With ``max_seconds``
                          (held-out looks and callbacks not counted) the end depends on the
                          machine's speed.
    batch_size:           None chooses: large steps for large data, so that threads have work.
    validation_fraction:  rows held out to watch the exact log-likelihood.
    patience:             epochs without a better held-out log-likelihood before stopping; the
                          best head is kept.
    encoder:              what to do with sparse rows and texts, see `extremax.features.Encoder`.
    memory_budget:        bytes that prediction and dense requests may take.
    n_jobs:               threads; None is every core. Results do not depend on it.
    """

    def __init__(
        self,
        objective: str | Objective = "negative_sampling",
        noise: str | Noise = "tree",
        *,
        n_negatives: int = 5,
        learning_rate: float = 0.3,
        accumulator_start: float = 1.0,
        schedule: str = "linear",
        epochs: int = 10,
        max_seconds: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.1,
        patience: int = 2,
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
        self._check_parameters()
        with threads.limit(self.n_jobs):
            seed = saved_seed(checkpoint) if self.random_state is None else None
            seed = seed_from(self.random_state) if seed is None else seed
            progress = Progress(self.verbose)
            features, labels, weights = self._start(X, y, sample_weight, None, seed)
            head = self._new_head(features)
            rows, held_out = holdout(labels, self.validation_fraction, seed, _weighted(weights))
            fingerprint = self._fingerprint(features, labels, weights, head.scale)
            file = Checkpoint(checkpoint, fingerprint)
            saved = file.load()
            state = State() if saved is None else State(**saved[1])
            if saved is None:
                clock = Clock(0.0)
                progress.note(f"fitting {type(self.noise_).__name__} to {len(rows):,} examples")
                self.noise_.fit(features, labels, len(self.index_), rows)
            else:
                self.noise_.load_state(_under("noise", saved[0]))
                head.load_state(_under("head", saved[0]))
                progress.note(f"going on from {file.path}, epoch {state.epoch + 1}")
            self.head_ = head
            examples = Examples(features, labels, weights, self.noise_.context(features))
            if saved is None:
                start_at_class_means(self._scorer, examples, rows, held_out, self.n_negatives, seed)
                state.seconds = clock.seconds
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
            )
            self.history_ = trainer.run(rows, held_out).history
        self.n_iter_ = len(self.history_)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> ExtremeClassifier:
        """One pass over these rows at a constant learning rate; classes may be new.

        The first call fits encoder and noise to its rows; give it enough of them. Classes that
        come later train as well as others, but a tree noise knows nothing of them. ``classes``
        may name some before they come; those follow the ones that are there in ``classes_``.
        """
        self._check_parameters()
        with threads.limit(self.n_jobs):
            fresh = not hasattr(self, "head_")
            if fresh:
                seed = seed_from(self.random_state)
                features, labels, weights = self._start(X, y, sample_weight, classes, seed)
                # A tree would give classes without a row next to no chance: they come beside it.
                self.noise_.fit(features, labels, int(labels.max()) + 1, _weighted(weights))
                self.noise_.extend(len(self.index_))
                self.head_ = self._new_head(features)
            else:
                features, labels, weights = self._continue(X, y, sample_weight, classes)
            examples = Examples(features, labels, weights, self.noise_.context(features))
            if fresh:
                rows = _weighted(weights)
                rows = np.arange(len(labels)) if rows is None else rows
                start_at_class_means(
                    self._scorer, examples, rows, rows[:0], self.n_negatives, self.seed_
                )
            trainer = Trainer(
                scorer=self._scorer,
                examples=examples,
                settings=self._settings(len(labels)),
                seed=self.seed_,
                progress=Progress(0),
                checkpoint=Checkpoint(None, {}),
            )
            size = trainer.settings.batch_size
            purpose = (self.seed_, _PARTIAL_FIT, self.n_partial_fits_)
            order = np.random.default_rng(purpose).permutation(len(labels))
            for start in range(0, len(order), size):
                batch = order[start : start + size]
                trainer.train_batch(batch, Stream.of(*purpose, rows=batch), self.learning_rate)
            self.n_partial_fits_ += 1
        return self

    def _start(
        self, X: Any, y: Any, sample_weight: Any, classes: Any, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Encode the data and make fresh, unfitted parts."""
        noise = _made(self.noise, NOISES, Noise)
        objective = _made(self.objective, OBJECTIVES, Objective)
        encoder = clone(self.encoder) if self.encoder is not None else Encoder()
        features = encoder.fit_transform(X, seed=seed, budget=self.memory_budget)
        labels = self._training_labels(y, len(features))
        weights = self._weights(sample_weight, len(features))
        index = LabelIndex.of(labels)
        if classes is not None:
            index.extend(label_array(classes))
        # Until the new head is there, this is no model: no part of an earlier fit may stay.
        self.__dict__.pop("head_", None)
        self.index_ = index
        self.encoder_, self.noise_, self.objective_ = encoder, noise, objective
        self.n_features_in_ = encoder.n_features_in_
        self.seed_, self.n_partial_fits_ = seed, 0
        return features, self.index_.encode(labels), weights

    def _new_head(self, features: np.ndarray) -> LinearHead:
        scale = _unit_scale(features)
        return LinearHead(len(self.index_), features.shape[1], self.accumulator_start, scale)

    def _continue(
        self, X: Any, y: Any, sample_weight: Any, classes: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Encode more data for a model that is there; makes room for new classes."""
        features = self.encoder_.transform(X)
        labels = self._training_labels(y, len(features))
        weights = self._weights(sample_weight, len(features))
        if self.index_.extend(labels if classes is None else joined(labels, label_array(classes))):
            self.head_.grow(len(self.index_))
            self.noise_.extend(len(self.index_))
        return features, self.index_.encode(labels), weights

    @staticmethod
    def _labels(y: Any, n_rows: int) -> np.ndarray:
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        labels = label_array(y)
        if len(labels) != n_rows:
            raise ValueError(f"X has {n_rows} rows but y has {len(labels)} labels")
        return labels

    @classmethod
    def _training_labels(cls, y: Any, n_rows: int) -> np.ndarray:
        labels = cls._labels(y, n_rows)
        if labels.dtype.kind == "f":
            from sklearn.utils.multiclass import check_classification_targets

            check_classification_targets(labels)
        return labels

    @staticmethod
    def _weights(sample_weight: Any, n_rows: int) -> np.ndarray | None:
        if sample_weight is None:
            return None
        weights = np.asarray(sample_weight, dtype=np.float32)
        if weights.shape != (n_rows,):
            raise ValueError(f"sample_weight must have shape ({n_rows},), got {weights.shape}")
        if not np.all(np.isfinite(weights)) or np.any(weights < 0) or not weights.sum() > 0:
            raise ValueError("sample_weight must be finite, not negative and not all zero")
        return weights

    def _check_parameters(self) -> None:
        for name, least in (("n_negatives", 1), ("epochs", 1), ("patience", 1)):
            value = getattr(self, name)
            if not (isinstance(value, (int, np.integer)) and value >= least):
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
        for name in ("learning_rate", "accumulator_start"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)!r}")
        if self.schedule not in ("linear", "constant"):
            raise ValueError(f"schedule must be 'linear' or 'constant', got {self.schedule!r}")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be in [0, 1), got {self.validation_fraction!r}"
            )
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds must be None or > 0, got {self.max_seconds!r}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be None or >= 1, got {self.batch_size!r}")

    def _settings(self, n_rows: int) -> Settings:
        return Settings(
            n_negatives=self.n_negatives,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            epochs=self.epochs,
            batch_size=self.batch_size or default_batch_size(n_rows),
            max_seconds=self.max_seconds,
            patience=self.patience,
        )

    def _fingerprint(
        self, features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, scale: float
    ) -> dict[str, Any]:
        """What makes two runs the same: size, scale and a few rows of the data, all labels and
        weights, every parameter."""
        few = np.ascontiguousarray(features[:: max(1, len(features) // 16)], dtype=np.float32)
        skip = {"n_jobs", "verbose", "random_state", "memory_budget"}
        parameters = {k: v for k, v in self.get_params(deep=False).items() if k not in skip}
        return {
            "seed": self.seed_,
            "rows": len(features),
            "features": f"{features.shape[1]} columns, {zlib.crc32(few.tobytes()):x}, {scale!r}",
            "labels": f"{len(self.index_)} classes, {zlib.crc32(labels.tobytes()):x}",
            "sample_weight": "" if weights is None else f"{zlib.crc32(weights.tobytes()):x}",
            **{k: repr(v) for k, v in parameters.items()},
        }

    # Prediction -------------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        return self.index_.classes

    @property
    def _scorer(self) -> Scorer:
        return Scorer(self.head_, self.noise_, self.objective_)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, exactly."""
        return self.predict_topk(X, 1).labels[:, 0]

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        search: str = "exact",
        width: int = 64,
        recall: bool = False,
    ) -> TopK:
        """The k most probable classes of each row and their log-probabilities.

        search:  "exact" scores every class; "beam" only the ``width`` that a beam search through
                 the noise tree finds, in time logarithmic in their number.
        recall:  also search exactly and report how often the beam's best class is the best.
        """
        check_is_fitted(self, "head_")
        if search not in ("exact", "beam"):
            raise ValueError(f"search must be 'exact' or 'beam', got {search!r}")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        with threads.limit(self.n_jobs):
            features = self.encoder_.transform(X)
            share = None
            if search == "exact":
                found = blocks.topk(self._scorer, features, k, self.memory_budget)
                normalisation, share = "exact", 1.0 if recall else None
            else:
                found = beam.topk(self._scorer, features, k, width)
                normalisation = beam.NORMALISATION
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

    def _dense_log_proba(self, features: np.ndarray) -> np.ndarray:
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
            labels = self.index_.encode(self._labels(y, len(features)))
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

    # Files ------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder of safetensors and JSON. Adagrad's state goes along, so
        that `partial_fit` can go on after `load`."""
        check_is_fitted(self, "head_")
        dtype, tensors = pack_labels(self.classes_)
        for part in ("head", "noise", "encoder"):
            state = getattr(self, f"{part}_").state()
            tensors |= {f"{part}.{k}": v for k, v in state.items()}
        settings = {
            "objective": _described(self.objective_, OBJECTIVES),
            "noise": _described(self.noise_, NOISES),
            "encoder": _described(self.encoder_, {"": Encoder}),
            "parameters": {k: getattr(self, k) for k in _SAVED_PARAMETERS},
            "seed": self.seed_,
            "n_partial_fits": self.n_partial_fits_,
            "scale": self.head_.scale,
            "n_features": self.n_features_in_,
            "n_classes": len(self.index_),
            "label_dtype": dtype,
            "input": self.encoder_.kind_,
            "probabilities": self.objective_.probabilities,
            "history": getattr(self, "history_", []),
        }
        write_model(folder, settings, tensors)

    @classmethod
    def load(cls, folder: str | Path) -> ExtremeClassifier:
        settings, tensors = read_model(folder)
        try:
            objective = _undescribed(settings["objective"], OBJECTIVES)
            noise = _undescribed(settings["noise"], NOISES)
            encoder = Encoder(**settings["encoder"]["parameters"])
            model = cls(objective=objective, noise=noise, encoder=encoder, **settings["parameters"])
            model.objective_, model.noise_, model.encoder_ = objective, noise, encoder
            model.noise_.load_state(_under("noise", tensors))
            model.encoder_.load_state(_under("encoder", tensors))
            model.index_ = LabelIndex(unpack_labels(settings["label_dtype"], tensors))
            width = tensors["head.weight"].shape[1]
            model.head_ = LinearHead(
                len(model.index_), width, model.accumulator_start, settings["scale"]
            )
            model.head_.load_state(_under("head", tensors))
            model.n_features_in_ = settings["n_features"]
            model.seed_, model.n_partial_fits_ = settings["seed"], settings["n_partial_fits"]
            model.history_ = settings["history"]
        except (AttributeError, LookupError, TypeError, RuntimeError, ValueError) as error:
            raise ModelFileError(
                f"{folder} is not a model this version can read: {type(error).__name__} {error}"
            ) from error
        return model


_SAVED_PARAMETERS = (
    "n_negatives", "learning_rate", "accumulator_start", "schedule", "epochs", "max_seconds",
    "batch_size", "validation_fraction", "patience", "memory_budget", "n_jobs", "verbose",
)  # fmt: skip


def default_batch_size(n_rows: int) -> int:
    """A hundredth of an epoch, between 32 and 4096: larger steps are no faster."""
    return int(np.clip(n_rows // 100, 32, 4096))


def _unit_scale(features: np.ndarray) -> float:
    """1 / root mean square of the features."""
    total = 0.0
    for _, block in row_blocks(features):
        # In float64: the squares of large float32 numbers are infinite, of small ones zero.
        total += float(np.square(block, dtype=np.float64).sum())
    return float((features.size / total) ** 0.5) if total > 0 else 1.0


def _made(given: Any, table: dict[str, type], kind: type) -> Any:
    """An unfitted object from a name or from an object of that kind."""
    if isinstance(given, kind):
        return clone(given)
    if given in table:
        return table[given]()
    names = ", ".join(repr(n) for n in table)
    raise ValueError(f"{kind.__name__.lower()} must be one of {names} or an object, got {given!r}")


def _weighted(weights: np.ndarray | None) -> np.ndarray | None:
    """Rows that count; None for all."""
    return None if weights is None else np.flatnonzero(weights > 0)


def _described(part: Any, table: dict[str, type]) -> dict[str, Any]:
    if type(part) not in table.values():
        raise ModelFileError(
            f"{type(part).__name__} is not in the table of this package, so that no one could "
            "load the model; add it there first"
        )
    return {"class": type(part).__name__, "parameters": part.get_params(deep=False)}


def _undescribed(description: dict[str, Any], table: dict[str, type]) -> Any:
    by_class = {c.__name__: c for c in table.values()}
    if description["class"] not in by_class:
        raise ValueError(f"{description['class']} is not known to it, only {', '.join(by_class)}")
    return by_class[description["class"]](**description["parameters"])


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k[len(prefix) + 1 :]: v for k, v in tensors.items() if k.startswith(prefix + ".")}
