"""The front door: a scikit-learn classifier for very many classes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from extremax import evaluation, fitting
from extremax.checks import check_parameters, is_number
from extremax.data.sequences import Sequences
from extremax.devices import resolve
from extremax.errors import ArgumentError, MemoryBudgetError, ModelFileError
from extremax.evaluation import TOP, Evaluation, Outcomes, class_lists, is_correct
from extremax.features import Encoder
from extremax.fitting import Fitted
from extremax.heads.blocks import check_overflow, row_slices
from extremax.kernels.cpu import threads
from extremax.labels import Prior, label_array, label_matrix, object_array
from extremax.memory import memory_errors, release_large_arrays
from extremax.model import Model
from extremax.noise import Noise
from extremax.objectives import Objective
from extremax.prediction.explanation import Explanation, explain
from extremax.prediction.limits import at_least, best_of, by_marginals, renormalized, visible
from extremax.prediction.marginals import N_BEST
from extremax.rows import Rows
from extremax.storage.models import load_model, save_model
from extremax.storage.parameters import read_parameters, write_parameters
from extremax.training.confidence import FEWEST, confidence_of
from extremax.training.loop import Callback
from extremax.training.marginals import marginals_of
from extremax.training.progress import Progress

__all__ = ["Evaluation", "ExtremeClassifier", "TopK"]

# Parameters that prediction uses.
_PREDICTION = ("n_jobs", "memory_budget", "device")
# What a manifest tells about the training of its model.
_TRAINING = ("seed", "n_partial_fits", "history", "evaluations", "validation")


@dataclass(frozen=True)
class TopK:
    """The best classes of each row, best first: in the order of log p or, where rows have several
    labels, of marginals. Unpacks as ``labels, log_probs``.

    Where ``threshold``, ``among`` or ``exclude`` leave fewer than k classes, the places after them
    have log p = −∞, a marginal of 0 and any label; `lists` leaves them out.

    log_probs:       log p of each class. p sums to one over the classes: where rows have several
                     labels, it is the share of the label among those of the row.
    marginals:       probability that the label is relevant, one of those of the row. They sum to
                     the expected number of labels; where rows have one label, they are p.
    normalization:   "exact", or how the log-probabilities of a search were estimated.
    standard_error:  of the log-probabilities of each row: zeros if they are exact, NaN if a search
                     does not know.
    recall:          share of rows whose best class is the exact one, where asked for.
    """

    labels: np.ndarray
    log_probs: np.ndarray
    normalization: str
    standard_error: np.ndarray
    marginals: np.ndarray
    recall: float | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.labels, self.log_probs))

    def lists(self) -> list[np.ndarray]:
        """The labels of each row, best first, as many as there are."""
        used = ~np.isneginf(self.log_probs)
        return [labels[mask] for labels, mask in zip(self.labels, used, strict=True)]


class ExtremeClassifier(ClassifierMixin, BaseEstimator):
    """Softmax classification that samples a few classes per step instead of scoring all.

    Dense rows train a linear head: by exact softmax where that is fast, else by draws that a batch
    shares. Sparse rows and texts train a learned bag of features,
    blended with a tree of sparse models. `extremax.recipes` decides.

    Parameters
    ----------
    objective : str, Objective or None
        A name from ``extremax.objectives.OBJECTIVES``, with or without parameters as in
        ``"nce(regularization=0.01)"``, or an object. None is sampled softmax on sparse rows and
        sequences. On dense rows it is exact softmax if that is estimated to finish within
        ``max_seconds`` (by default one minute), else sampled softmax; if a noise or a number of
        draws is given, negative sampling, or sampled softmax where the noise follows the head.
        "auto" is the same with exact softmax even if they are given. With a noise that is even in
        ξ, such as "quadratic" or "quartic", the name
        "sampled_softmax" is "sampled_softmax(absolute=True)"; an object or ``absolute=False`` is
        taken as it is.
    noise : str, Noise or None
        A name from ``extremax.noise.NOISES``, with or without parameters as in
        ``"tree(n_components=64)"``, or an object such as ``TreeNoise(n_components=64)``. None or
        "auto" is on dense rows "frequency(power=0.5)" where a batch shares its draws, "tree" with
        an objective that adds log q to its scores, and "mixture(parts=(tree,
        frequency(power=0.5)))" otherwise; on sparse rows it is "sparse_tree".
    n_negatives : int or None
        Classes drawn per example and step, m. None on dense rows: sampled softmax draws 2,048
        classes by the root of their frequency for a whole batch, beside its true classes
        (`extremax.training.shared`); other objectives draw 5 for each row. None is 16 on sparse
        rows, and 1,024 on sequences, where a batch shares them if the noise is the same for every
        row.
    learning_rate : float or None
        Of Adagrad, for features of unit mean square and divided by √K, so that it need not change
        with the number or scale of the features. None is 0.5 on dense rows with exact softmax, or
        where a batch shares its draws, and 0.3 elsewhere.
    accumulator_start : float
        Adagrad's accumulators start here; near zero makes every first step ±learning_rate however
        small its gradient.
    accumulators : {"weight", "row"} or None
        "weight" keeps an accumulator of Adagrad for each weight, "row" one for the vector of each
        class (on sparse rows also of each feature): half of the memory, and faster steps. None is
        "row" on sparse rows and "weight" on dense ones. Heads that have no such vectors take no
        notice: exact softmax on sparse rows, and sequences.
    schedule : {"linear", "constant"}
        "linear" lets the learning rate fall to zero over the run.
    weight_decay : float
        λ of the penalty in  mean loss + (λ/2)‖W‖², for scores ξ = W x + b and the mean over the
        training examples, by weight. This is a Gaussian prior of variance 1/(λN) on each weight
        for N examples; scikit-learn's ``C`` is 1/(λN). Biases are not penalized. It differs from
        the ``regularization`` of an objective, a penalty on the logits of the classes drawn. The
        learned bag on sparse rows is not linear in x and supports 0 only.
    epochs, max_seconds : int or None, float or None
        The run ends when the first of the two is reached. None epochs is 10 on dense rows (6 where
        a batch shares its draws) and sequences, 5 on sparse rows. With ``max_seconds``
        (evaluations and callbacks not counted)
        the end depends on the speed of the machine; several models share them equally.
    batch_size : int or None
        None is a hundredth of the rows, within bounds.
    validation_fraction : float
        Share of the rows held out to watch the exact log-likelihood, 10,000 rows at most.
    patience : int or None
        Epochs without a better held-out log-likelihood before training stops; None is 2 or, where
        a batch shares its draws, never. The best head is kept; the one that training began with is
        a candidate too.
    class_weight : {"balanced"}, dict or None
        Weights of labels, by which those of their examples are multiplied; a label that a
        dictionary lacks counts 1. "balanced" gives every class the same weight in all: N/(C n) to
        each of its n examples, for N examples of C classes, counted by ``sample_weight``. Held-out
        rows are weighted too. To change class frequencies after training, see `with_prior`.
    calibrate : bool
        After training, fit a temperature on the held-out rows, see `extremax.training.temperature`,
        and where there are 500 of them how sure to be of each row, see
        `extremax.prediction.confidence`. They always have their say where the objective is left
        open, and on sparse rows and sequences, whose head is blended with other experts.
    start : {"class_means", "frequencies", "zeros"} or None
        The head before training, see `extremax.training.start`: at the class means; at zero weights
        and biases of log class frequencies, as far as the noise does not say them; or at zero. None
        is "class_means", or "frequencies" on sparse rows unless the objective is exact. The learned
        bag on sparse rows has no start at class means, and its feature vectors are always random.
    bag_size, feature_dropout : int, float
        On sparse rows: dimensions of the learned bag, and the share of feature values that a step
        drops.
    similar_rows : bool
        On sparse rows: blend in the votes of training rows that resemble a row, see
        `extremax.experts.SimilarRows`. The model then contains the training rows, 8 bytes per
        value; False leaves them out.
    n_models : int
        Models to train, which differ in their seeds; predictions are the mean of their
        probabilities, see `extremax.ensemble`. Time, and memory beside that of the rows, grow in
        proportion; encoder, labels and the rows of ``similar_rows`` are there once.
    encoder : Encoder or None
        What to do with sparse rows and texts, see `extremax.features.Encoder`.
    device : {"cpu", "cuda", "auto"}
        Where the head is trained and scored. "cuda" is a GPU, by the kernels of
        `extremax.kernels.gpu`: the linear head of dense rows, and the learned bag of sparse rows.
        "auto" is "cuda" where there is a GPU, the head has kernels for it, and the work is worth
        the way there. Everything else, searches among it, runs on the CPU. A model does not
        remember where it was trained; on a GPU, rounding and random numbers are others.
    memory_budget : int
        Approximate limit, in bytes, for exact prediction and for encoded rows kept in memory.
    n_jobs : int or None
        Threads; None is one per core. Results do not depend on it.
    random_state : int, numpy generator or None
        The seed of everything random.
    verbose : int
        0 is silent, 1 shows progress.

    Attributes
    ----------
    classes_ : ndarray
        The labels, by class number.
    model_ : extremax.model.Model
        Encoder, labels, head, noise, objective and blend; an `extremax.ensemble.Ensemble` where
        ``n_models`` is more than one.
    history_, evaluations_ : list of dict
        One record per epoch, with the number of the ``model`` if there are several; held-out
        figures at the start and, if ``evaluate_within_epochs`` is set, between the ends of epochs.
        They are of the head as it was then, before experts are blended and calibrated.
    validation_ : dict or None
        ``accuracy`` and ``log_likelihood`` of the finished model on ``rows`` of the rows that were
        held out, see `extremax.training.validation`: blended and calibrated, on rows that its blend
        was fitted to. None if no rows were held out, and once `partial_fit` or `recalibrate` has
        changed the model.
    n_features_in_, n_iter_ : int
        Features of the input, and epochs of training.
    feature_names_in_ : ndarray
        Names of the columns, if the rows of training had names that are strings. Rows with other
        names, or in another order, are refused.
    coef_, intercept_ : ndarray
        Of a linear model of dense rows: `decision_function` is ``X @ coef_.T + intercept_``. Made
        anew on each access; other models have none.

    Examples
    --------
    >>> from extremax import ExtremeClassifier
    >>> from extremax.data import clustered
    >>> X, y = clustered(2000, 50, 16, seed=0)
    >>> model = ExtremeClassifier(random_state=0).fit(X, y)
    >>> labels, log_probs = model.predict_topk(X[:3], 5)
    >>> labels.shape
    (3, 5)
    """

    #: Whether `evaluations_` gets held-out figures between the ends of epochs, for curves.
    evaluate_within_epochs = False

    def __init__(
        self,
        objective: str | Objective | None = None,
        noise: str | Noise | None = None,
        *,
        n_negatives: int | None = None,
        learning_rate: float | None = None,
        accumulator_start: float = 1.0,
        accumulators: str | None = None,
        schedule: str = "linear",
        weight_decay: float = 0.0,
        epochs: int | None = None,
        max_seconds: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.1,
        patience: int | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        calibrate: bool = False,
        start: str | None = None,
        bag_size: int = 128,
        feature_dropout: float = 0.1,
        similar_rows: bool = True,
        n_models: int = 1,
        encoder: Encoder | None = None,
        device: str = "cpu",
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
        self.accumulators = accumulators
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.epochs = epochs
        self.max_seconds = max_seconds
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.start = start
        self.bag_size = bag_size
        self.feature_dropout = feature_dropout
        self.similar_rows = similar_rows
        self.n_models = n_models
        self.encoder = encoder
        self.device = device
        self.memory_budget = memory_budget
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "_fitted" in vars(self)

    # What was learned -------------------------------------------------------------------------

    @property
    def model_(self) -> Model:
        return self._state.model

    @property
    def _state(self) -> Fitted:
        if "_fitted" not in vars(self):
            # As scikit-learn expects of an attribute that only a fitted estimator has.
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._fitted

    @property
    def classes_(self) -> np.ndarray:
        return self.model_.labels.values

    @property
    def n_features_in_(self) -> int:
        return self.model_.encoder.n_features_in_

    @property
    def history_(self) -> list[dict[str, Any]]:
        return self._state.history

    @property
    def evaluations_(self) -> list[dict[str, Any]]:
        return self._state.evaluations

    @property
    def validation_(self) -> dict[str, Any] | None:
        return self._state.validation

    @property
    def n_iter_(self) -> int:
        return len(self.history_)

    @property
    def coef_(self) -> np.ndarray:
        return self.model_.linear_form()[0]

    @property
    def intercept_(self) -> np.ndarray:
        return self.model_.linear_form()[1]

    # Training ---------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        label_texts: Mapping[Any, str] | None = None,
        checkpoint: str | Path | None = None,
        callback: Callback | None = None,
    ) -> ExtremeClassifier:
        """Train from scratch. If that fails or is refused, the model stays as it was.

        y:           labels of any hashable kind, one per row; or several per row, as lists of
                     labels or an indicator matrix.
        sample_weight:  one per row; or where rows have several labels, one per row and label, in
                     the same form as y: lists of weights, or a matrix.
        label_texts:  where X are texts, what labels are called, such as names of subjects: the text
                     of each is one more row with that label and a weight of one, which is never
                     held out. Labels without a row in X become classes, too.
        checkpoint:  a folder. Fitting the same data and parameters again resumes an interrupted
                     run from there, to the bit-identical end (without ``max_seconds``).
        callback:    called with the record of each epoch; returning True ends the training of this
                     model, the only one unless ``n_models`` says otherwise.
        """
        release_large_arrays()
        with self._training() as progress:
            self._check_names(X, reset=True)
            fitting.fit(
                self,
                X,
                y,
                sample_weight,
                checkpoint=checkpoint,
                callback=callback,
                evaluate_within_epochs=self.evaluate_within_epochs,
                on_start=self._adopt,
                label_texts=label_texts,
                progress=progress,
            )
        return self

    @contextmanager
    def _training(self) -> Iterator[Progress]:
        """Where training is done; if it fails or is refused, attributes stay as they were."""
        before = dict(vars(self))
        try:
            with self._threads(), Progress(self.verbose) as progress:
                yield progress
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _adopt(self, fitted: Fitted) -> None:
        self._fitted = fitted

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> ExtremeClassifier:
        """Make one pass over these rows at a constant learning rate; classes may be new.

        The first call fits encoder and noise to its rows; give it enough of them. Classes that
        appear later train as well as others, but a tree noise knows nothing of them. ``classes``
        may announce some before they appear; in ``classes_`` they follow those already there.
        """
        self._refuse_view("trained further")
        fitted = vars(self).get("_fitted")
        with self._training():
            self._check_names(X, reset=fitted is None)
            self._fitted = fitting.partial_fit(self, fitted, X, y, classes, sample_weight)
        return self

    # Prediction -------------------------------------------------------------------------------

    @contextmanager
    def _threads(self, *parameters: str) -> Iterator[None]:
        """Where all work is done, once these parameters, by default all, have been checked: they
        may have been set to anything since the last time."""
        check_parameters(self, parameters)
        with threads.limit(self.n_jobs), memory_errors():
            if parameters and "_fitted" in vars(self):
                for model in self.model_.members:
                    model.on(resolve(self.device))
            yield

    def _rows(self, X: Any) -> Rows:
        check_is_fitted(self)
        self._check_names(X)
        return self.model_.encoder.transform(X)

    def _check_names(self, X: Any, reset: bool = False) -> None:
        """Compare the names of columns, where X has any, with those of training, or keep them."""
        try:
            validate_data(self, X, skip_check_array=True, ensure_2d=False, reset=reset)
        except (TypeError, ValueError) as error:  # Names of mixed types, or other names.
            raise ArgumentError(str(error)) from error

    def predict(self, X: Any, threshold: float | None = None) -> Any:
        """The most probable class of each row, an array; see `predict_topk`.

        Where rows have several labels: an array of labels for each row, in a list. They are those
        whose marginal probability is at least ``threshold``, by default 0.5, best first; or the
        best one, if there are none.
        """
        check_is_fitted(self)
        if self.model_.marginals is None:
            if threshold is not None:
                raise ArgumentError(
                    "threshold is for models of several labels per row, and this one has one; "
                    "predict_topk takes a threshold for any model"
                )
            return self.predict_topk(X, 1).labels[:, 0]
        threshold = 0.5 if threshold is None else threshold
        if not (is_number(threshold) and 0.0 < threshold <= 1.0):
            raise ArgumentError(f"threshold must be above 0 and at most 1, got {threshold!r}")
        k = N_BEST
        while True:
            found = self.predict_topk(X, k)
            if k >= len(self.classes_) or not (found.marginals[:, -1] >= threshold).any():
                break
            k *= 2
        n_labels = np.maximum((found.marginals >= threshold).sum(1), 1)
        return [labels[:n] for labels, n in zip(found.labels, n_labels, strict=True)]

    def expected_labels(self, X: Any) -> np.ndarray:
        """Expected number of labels of each row, (n,): the sum of the marginal probabilities of all
        classes. One where rows have one label."""
        with self._threads(*_PREDICTION):
            rows, marginals = self._rows(X), self.model_.marginals
            if marginals is None:
                return np.ones(len(rows))
            best = self.model_.best(rows, N_BEST, self.memory_budget)
            log_f = self.model_.log_frequency[best.labels]
            return marginals.expected(best.log_probs, log_f).numpy()

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        search: str | None = None,
        width: int | None = None,
        recall: bool = False,
        among: Any = None,
        exclude: Any = None,
        renormalize: bool = False,
        threshold: float = 0.0,
    ) -> TopK:
        """The k most probable classes of each row, their log-probabilities and the probability of
        each to be a label of the row, see `TopK`. Where rows have several labels, these are the
        classes of the k largest marginals among the 20 or k largest shares.

        A beam may miss a class, and it estimates the normalizer: its log-probabilities differ a
        little from those of `predict_log_proba`, see ``standard_error``.

        search:       "exact" scores every class; "beam" only those that a search finds: through
                      clusters of the class vectors on dense rows, or through the noise tree where
                      log q is part of the logits. None is "beam" with noise "sparse_tree" and
                      "exact" otherwise.
        width:        clusters that are searched, by default 480, or branches of the tree that the
                      beam keeps per level, by default 64 with "tree" and 14 with "sparse_tree".
        recall:       also search exactly, and report how often the beam's best class is the best.
        among:        labels to choose from, which must be known. Always exact.
        exclude:      labels not to answer with; unknown ones are ignored.
        renormalize:  give probabilities that the label is one of ``among``, or none of ``exclude``.
                      With a beam, of the excluded labels it counts those that it finds. Where
                      rows have several labels, marginals stay as they are.
        threshold:    leave out classes whose marginal probability is smaller.
        """
        if search not in (None, "exact", "beam"):
            raise ArgumentError(f"search must be None, 'exact' or 'beam', got {search!r}")
        if not (is_number(threshold) and 0.0 <= threshold <= 1.0):
            raise ArgumentError(f"threshold must be a number from 0 to 1, got {threshold!r}")
        if among is not None and search == "beam":
            raise ArgumentError("among needs search='exact' or None: a beam may miss its labels")
        for name, value in (("k", k), ("width", 1 if width is None else width)):
            _checked(name, value)
        with self._threads(*_PREDICTION):
            rows, model = self._rows(X), self.model_
            share, normalization = (1.0 if recall else None), "exact"
            errors, log_mass = torch.zeros(len(rows)), torch.zeros(len(rows))
            chosen, hidden = self._numbers("among", among), self._numbers("exclude", exclude)
            # Where rows have several labels, the best by share are put in the order of marginals.
            n_best = k if model.marginals is None else max(k, N_BEST)
            k_found = n_best + len(hidden)
            if among is not None:
                chosen = np.setdiff1d(chosen, hidden)
                log_p = self._log_probs_of(rows, chosen)
                found = best_of(chosen, log_p, n_best)
                if renormalize:
                    log_mass = log_p.logsumexp(1)
            elif search == "exact" or (search is None and not model.prefers_search):
                found = model.topk(rows, k_found, self.memory_budget)
            else:
                found, errors = model.search(rows, k_found, width)
                normalization = model.normalization
                if recall:
                    best = model.topk(rows, 1, self.memory_budget).labels[:, 0]
                    share = float((best == found.labels[:, 0]).double().mean())
            ranking = found
            if among is None:
                is_hidden = torch.from_numpy(np.isin(found.labels.numpy(), hidden))
                if renormalize and len(hidden):
                    lost = found.log_probs.masked_fill(~is_hidden, -torch.inf)
                    if normalization == "exact":
                        lost = self._log_probs_of(rows, hidden)
                    left = -torch.expm1(lost.double().logsumexp(1).clamp(max=0.0))
                    log_mass = left.clamp(min=1e-30).log()
                ranking = visible(found, is_hidden, n_best)
            elif model.marginals is not None:
                found = model.best(rows, N_BEST, self.memory_budget)
            shares = renormalized(ranking, log_mass)
            used = shares if model.marginals is None else ranking
            marginals = model.marginal_probs(used, found.log_probs)
            if model.marginals is not None:
                shares, marginals = by_marginals(shares, marginals, k)
            kept = at_least(shares, marginals, threshold).log_probs
            marginals.masked_fill_(kept.isneginf(), 0.0)
        labels = self.classes_[shares.labels.numpy()]
        more = normalization, errors.numpy(), marginals.float().numpy(), share
        return TopK(labels, kept.numpy(), *more)

    def _log_probs_of(self, rows: Rows, classes: np.ndarray) -> torch.Tensor:
        """Exact log p of the same classes (j,) on every row, (n, j)."""
        wanted = np.broadcast_to(classes, (len(rows), len(classes)))
        return self.model_.log_probs(rows, wanted, self.memory_budget)

    def _numbers(self, name: str, labels: Any) -> np.ndarray:
        """Class numbers of the labels given for ``among`` or ``exclude``, each once."""
        if labels is None:
            return np.empty(0, np.int64)
        if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
            raise ArgumentError(f"{name} must be a list of labels, got {labels!r:.80}")
        given = label_array(list(labels))
        numbers = self.model_.labels.encode(given) if len(given) else np.empty(0, np.int64)
        if name == "among" and not (len(numbers) and (numbers >= 0).all()):
            unknown = given[numbers < 0].tolist()
            what = f"has {unknown[0]!r}, which training never saw" if len(given) else "is empty"
            raise ArgumentError(f"among {what}")
        return np.unique(numbers[numbers >= 0])

    def predict_log_proba(self, X: Any, labels: Any = None) -> np.ndarray:
        """log p of the given label of each row, (n,), or of several labels per row, (n, j); of
        every class if no labels are given.

        A label that training never saw has probability zero. The dense (n, C) answer is refused
        before it is computed if it does not fit ``memory_budget``.
        """
        with self._threads(*_PREDICTION):
            rows, model = self._rows(X), self.model_
            if labels is None:
                return self._of_every_class(rows, model.log_probs_all)
            wanted = label_matrix(labels)
            if len(wanted) != len(rows):
                raise ArgumentError(f"X has {len(rows)} rows but labels has {len(wanted)}")
            classes = model.labels.encode(wanted.reshape(-1)).reshape(len(rows), -1)
            log_p = model.log_probs(rows, classes, self.memory_budget)
        return log_p.numpy().reshape(wanted.shape)

    def _of_every_class(self, rows: Rows, of: Callable[[Rows], torch.Tensor]) -> np.ndarray:
        """What a method of the model gives for every class, (n, C), block by block."""
        n, n_classes = len(rows), self.model_.n_classes
        size = 4 * n * n_classes
        if size > self.memory_budget:
            raise MemoryBudgetError(
                f"{n:,} rows × {n_classes:,} classes are {size:,} bytes, over the memory budget "
                f"of {self.memory_budget:,}; use predict_topk, pass labels, or raise memory_budget"
            )
        out = torch.empty((n, n_classes))
        for block in row_slices(n, n_classes, self.memory_budget):
            out[block] = of(rows[block])
            check_overflow(out[block], block)
        return out.numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """p of every class, (n, C), which sums to one: where rows have several labels, it is their
        shares, and `TopK` has marginals. See `predict_log_proba` for the memory it may take.

        Every class is scored. On texts and sparse rows `predict_topk` searches and estimates the
        normalizer instead, so that its log-probabilities differ a little: by 0.05 on average on
        library titles."""
        log_proba = self.predict_log_proba(X)
        return np.exp(log_proba, out=log_proba)

    def decision_function(self, X: Any) -> np.ndarray:
        """The logits of every class, (n, C), which `predict_log_proba` normalizes; of two classes
        the logit of the second minus that of the first, (n,), as in scikit-learn.

        The model may have fitted how sure to be of a row (``calibrate``, and always on sparse
        rows), or have other class frequencies (`with_prior`): then they are log-probabilities,
        whose softmax is p as well. See `predict_log_proba` for the memory it may take.
        """
        with self._threads(*_PREDICTION):
            logits = self._of_every_class(self._rows(X), self.model_.decisions)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def explain(self, x: Any, label: Any = None) -> Explanation:
        """What each word, value or item of one input adds to log p of a label, by default of the
        most probable one. `extremax.report.draw_explanation` makes a picture of it.

        Costs as many exact predictions as the input has parts.
        """
        check_is_fitted(self)
        kind = self.model_.encoder.input_kind
        if kind == "text" and not isinstance(x, str):
            raise ArgumentError(f"x must be a text, one string, got {x!r:.80}")
        if hasattr(x, "columns"):
            self._check_names(x)
            x = np.asarray(x)
        # Names of columns have been compared, or one input has none.
        nameless = copy.copy(self)
        nameless.__dict__.pop("feature_names_in_", None)
        if label is None:
            one = Sequences.of([x]) if kind == "sequences" else [x]
            # A sparse row has two dimensions already.
            label = nameless.predict_topk(x if getattr(x, "ndim", 1) == 2 else one, 1).labels[0, 0]
        elif self.model_.labels.encode(label_array([label]))[0] < 0:
            raise ArgumentError(f"label {label!r:.80} is none that training saw")

        def log_probs(inputs: Any) -> np.ndarray:
            n = inputs.shape[0] if hasattr(inputs, "shape") else len(inputs)
            return nameless.predict_log_proba(inputs, object_array([label] * n))

        return explain(x, label, kind, log_probs)

    def with_prior(self, prior: Any = None, *, tau: float | None = None) -> ExtremeClassifier:
        """The same model where classes have other frequencies than in training: a view, whose
        probabilities are p'(y|x) ∝ p(y|x) π'_y/π_y, π the shares of classes among the training
        examples (`extremax.labels.Prior`).

        prior:  π', numbers in proportion to how often each class occurs where the model is used:
                a mapping with every label, or an array in the order of ``classes_``. A class with 0
                is never answered. Labels that training never saw are ignored.
        tau:    instead, π' ∝ π^(1 − tau): 1 makes all classes equally frequent, 0 changes nothing
                (logit adjustment, Menon et al. 2021).

        Everything that predicts or evaluates takes the new frequencies. A beam searches twice, for
        p and for p', and estimates the normalizer; ``standard_error`` is NaN. The view shares its
        tensors with this model: it can neither be trained further nor saved.
        """
        check_is_fitted(self)
        shifted = replace(self.model_, prior=Prior.of(self.model_.labels, prior, tau))
        view = copy.copy(self)
        view._fitted = replace(self._state, model=shifted)
        return view

    def _refuse_view(self, what: str) -> None:
        if "_fitted" in vars(self) and self.model_.prior is not None:
            raise ArgumentError(
                f"a view made by with_prior cannot be {what}; that takes the model it was made from"
            )

    def recalibrate(self, X: Any, y: Any) -> ExtremeClassifier:
        """Fit how sure to be on labeled rows that training has not seen, at least 500, as `fit`
        does on the rows it holds out: for rows where the model is used that differ from those it
        was trained on. Classes keep their order (`extremax.prediction.confidence`). Where rows have
        several labels, it fits the marginal probabilities."""
        self._refuse_view("recalibrated")
        with self._threads(*_PREDICTION):
            rows, model, budget = self._rows(X), self.model_, self.memory_budget
            truth = class_lists(model, y, len(rows))
            labeled = np.flatnonzero(truth.counts > 0)
            if len(labeled) < FEWEST:
                raise ArgumentError(
                    f"recalibrate needs at least {FEWEST} labeled rows, got {len(labeled)}"
                )
            rows, truth = rows[labeled], truth[labeled]
            if model.marginals is not None:
                sizes = float(truth.counts.mean()), model.labels.n_rows
                model.marginals = marginals_of(model, rows, truth, *sizes, budget)
            elif truth.counts.max() > 1:
                raise ArgumentError("y must have one label per row, as in training")
            else:
                model.confidence = confidence_of(model, rows, truth.values, budget)
            self._state.validation = None
        return self

    # Evaluation -------------------------------------------------------------------------------

    def evaluate(self, X: Any, y: Any, *, k: int = TOP) -> Evaluation:
        """Exact figures on labeled rows, for one label per row or several.

        k:  ranks that are counted: figures such as recall are at 1 to k, at least to 5.
        """
        result = self.outcomes(X, y, k=max(_checked("k", k), TOP))
        return evaluation.summarize(self.model_, result, k)

    def outcomes(self, X: Any, y: Any, *, k: int = TOP) -> Outcomes:
        """The k most probable classes of each labeled row and log p of its labels, exactly, by
        class number; `extremax.evaluation.export_outcomes` writes them to a file."""
        with self._threads(*_PREDICTION):
            rows = self._rows(X)
            truth = class_lists(self.model_, y, len(rows))
            k = _checked("k", k)
            return evaluation.outcomes(self.model_, rows, truth, self.memory_budget, k)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows whose predicted class is the label or, with several labels per row, one of
        them (precision at 1).

        Predictions are those of `predict_topk`, which may search; `evaluate` scores every class.
        Rows without a label count for nothing.
        """
        predicted = self.predict_topk(X, 1).labels[:, 0]
        truth = class_lists(self.model_, y, len(predicted))
        correct = is_correct(self.model_.labels.encode(predicted), truth)
        labeled = truth.counts > 0
        weights = None if sample_weight is None else np.asarray(sample_weight)[labeled]
        return float(np.average(correct[labeled], weights=weights))

    def log_likelihood(self, X: Any, y: Any) -> float:
        """Mean exact log p(label | row) over labels that training saw, see `evaluate`."""
        return self.evaluate(X, y).log_likelihood

    # Saving -----------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder of safetensors behind a JSON manifest, with all that training
        needs. An older model there is replaced in one step."""
        check_is_fitted(self)
        self._refuse_view("saved")
        # They may have been set to anything since the fit.
        check_parameters(self)
        training = {key: getattr(self._state, key) for key in _TRAINING}
        if self.validation_ is None:
            del training["validation"]
        settings = {"parameters": write_parameters(self.get_params(deep=False)), **training}
        if "feature_names_in_" in vars(self):
            settings["feature_names"] = self.feature_names_in_.tolist()
        self._read(settings, folder)
        save_model(self.model_, folder, settings)

    @classmethod
    def load(cls, folder: str | Path) -> ExtremeClassifier:
        """A model from its folder; a damaged or foreign one is refused with the reason."""
        model, settings = load_model(folder)
        classifier = cls._read(settings, folder)
        training = {key: settings[key] for key in _TRAINING if key in settings}
        classifier._fitted = Fitted(model, **training)
        if "feature_names" in settings:
            names, n_features = settings["feature_names"], model.encoder.n_features_in_
            if len(names) != (1 if model.encoder.input_kind == "text" else n_features):
                raise ModelFileError(f"{folder} has {len(names)} names for {n_features} features")
            classifier.feature_names_in_ = np.array(names, object)
        return classifier

    @classmethod
    def _read(cls, settings: dict[str, Any], folder: str | Path) -> ExtremeClassifier:
        """An unfitted classifier with the parameters of a manifest, checked."""
        try:
            parameters = read_parameters(settings, folder)
            classifier = cls(**parameters)
            if len(parameters) < len(classifier.get_params(deep=False)):
                raise ArgumentError("some are missing")
            check_parameters(classifier)
        except (ArgumentError, TypeError) as error:
            raise ModelFileError(f"the parameters of {folder} are not valid: {error}") from error
        return classifier


def _checked(name: str, value: Any) -> int:
    """A number of classes or branches."""
    if not (is_number(value, integer=True) and value >= 1):
        raise ArgumentError(f"{name} must be an integer >= 1, got {value!r}")
    return int(value)
