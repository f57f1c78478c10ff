"""What a fit begins with: parameters, encoded data, and the parts chosen for them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.base import clone

from extremax.devices import resolve
from extremax.errors import ArgumentError
from extremax.experts import Expert
from extremax.features import Encoder
from extremax.features.text import texts_of
from extremax.heads import DEVICE_HEADS, HeadOptions
from extremax.labels import ClassLabels, LabelIndex
from extremax.memory import trim_heap
from extremax.model import Model
from extremax.noise import Noise, with_seed
from extremax.objectives import Objective
from extremax.prediction.blend import Blend, is_product
from extremax.prediction.marginals import Marginals
from extremax.recipes import WORTH_A_GPU, Choice, choose
from extremax.rows import Rows, Sizes
from extremax.training.class_weight import weigh_classes
from extremax.training.data import Examples
from extremax.training.holdout import holdout
from extremax.training.label_texts import LabelTexts
from extremax.training.state import Settings

# Parameters that change no trained number.
_INDIFFERENT = {"n_jobs", "verbose", "random_state", "memory_budget"}


class Parameters(Protocol):
    """The constructor arguments of `extremax.ExtremeClassifier`, which documents them."""

    objective: str | Objective | None
    noise: str | Noise | None
    n_negatives: int | None
    learning_rate: float | None
    accumulator_start: float
    accumulators: str | None
    schedule: str
    weight_decay: float
    epochs: int | None
    max_seconds: float | None
    batch_size: int | None
    validation_fraction: float
    patience: int | None
    class_weight: Any
    calibrate: bool
    start: str | None
    bag_size: int
    feature_dropout: float
    similar_rows: bool
    n_models: int
    encoder: Encoder | None
    device: str
    memory_budget: int
    n_jobs: int | None
    random_state: Any
    verbose: int

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...


def choose_for(
    parameters: Parameters, rows: type[Rows], sizes: Sizes, partly: bool = False
) -> Choice:
    """The recipe for these parameters and this kind and size of rows.

    partly:  whether more examples may follow.
    """
    p = parameters
    of_steps = p.epochs, p.max_seconds, p.start, p.learning_rate, p.batch_size, p.patience
    usual = HeadOptions()
    of_bag = p.bag_size == usual.bag_size and p.feature_dropout == usual.dropout
    is_plain = all(value is None for value in of_steps) and not p.weight_decay and of_bag
    return choose(
        rows, sizes, p.objective, p.noise, p.epochs, seconds_per_model(p), p.start,
        p.weight_decay, p.n_negatives, not partly, is_plain and p.n_models == 1 and not partly,
    )  # fmt: skip


def sizes_of(examples: Examples, n_classes: int) -> Sizes:
    """Sizes of a problem that is encoded."""
    rows = examples.rows
    return Sizes(len(examples), rows.n_features, n_classes, rows.nonzeros)


def device_for(parameters: Parameters, choice: Choice, sizes: Sizes) -> torch.device | None:
    """The GPU to train on, None for the CPU."""
    if parameters.device == "cuda" and choice.head not in DEVICE_HEADS:
        raise ArgumentError(
            f"device='cuda' cannot train {choice.head.__name__}, the head of "
            f"{type(choice.objective).__name__} on these rows; use device='cpu' or 'auto'"
        )
    worth_it = choice.head in DEVICE_HEADS and choice.operations(sizes) >= WORTH_A_GPU
    return resolve(parameters.device, worth_it)


def seconds_per_model(parameters: Parameters) -> float | None:
    """What ``max_seconds`` leaves to each of several models."""
    limit = parameters.max_seconds
    return limit if limit is None or parameters.n_models == 1 else limit / parameters.n_models


def settings_for(parameters: Parameters, choice: Choice, n_rows: int) -> Settings:
    """How to train, with the recipe's defaults for parameters left as None."""
    p, shared = parameters, choice.shared
    return Settings(
        n_negatives=int(p.n_negatives or choice.n_negatives),
        shares_draws=shared is not None,
        counts_truths=shared is not None and shared.counts_truths,
        learning_rate=float(p.learning_rate or choice.learning_rate),
        schedule=p.schedule,
        epochs=int(p.epochs or choice.epochs),
        batch_size=int(p.batch_size or choice.batch_size(n_rows)),
        max_seconds=seconds_per_model(p),
        patience=int(p.patience or choice.patience),
        weight_decay=float(p.weight_decay),
        tempers=calibrates(p, choice),
    )


def calibrates(parameters: Parameters, choice: Choice) -> bool:
    """Whether held-out rows have a say in the logits."""
    is_blended = is_product(choice.objective, choice.noise) or bool(choice.recipe.experts)
    return parameters.calibrate or choice.is_open or is_blended


def head_options(
    parameters: Parameters, choice: Choice, rows_scale: float, seed: int
) -> HeadOptions:
    """What a new head needs to know, with the recipe's default for accumulators left as None."""
    p = parameters
    form = p.accumulators or choice.recipe.accumulators
    start, dropout = float(p.accumulator_start), float(p.feature_dropout)
    return HeadOptions(start, rows_scale, int(p.bag_size), dropout, seed, form)


@dataclass
class Prepared:
    """Encoded data, and the unfitted parts chosen for it.

    n_named:  how many of the examples, the last ones, are texts of labels.
    """

    encoder: Encoder
    labels: ClassLabels
    examples: Examples
    choice: Choice
    n_named: int = 0

    @classmethod
    def of(
        cls,
        parameters: Parameters,
        X: Any,
        y: Any,
        sample_weight: Any,
        classes: Any,
        seed: int,
        label_texts: Any = None,
        partly: bool = False,
    ) -> Prepared:
        """partly:  whether more examples may follow."""
        named = LabelTexts.of(label_texts, X)
        X = X if named is None else [*texts_of(X), *named.texts]
        encoder = clone(parameters.encoder) if parameters.encoder is not None else Encoder()
        # Wrong names are refused before any work is done.
        choose_for(parameters, encoder.rows_class(X), Sizes(1, 1, 1, 1.0))
        rows = encoder.fit_transform(X, seed=seed, budget=parameters.memory_budget)
        pair = Examples.pair if named is None else named.pair
        examples = pair(rows, y, sample_weight)
        weigh_classes(examples, parameters.class_weight, partly)
        index = encoder.items_ or LabelIndex.of(examples.labels)
        labels = ClassLabels(index, examples.owner is not None)
        labels.extend(examples.labels, classes)
        sizes = sizes_of(examples, len(labels))
        choice = choose_for(parameters, type(rows), sizes, partly)
        examples.labels = labels.encode(examples.labels)
        labels.count(examples.labels, len(rows))
        return cls(encoder, labels, examples, choice, 0 if named is None else len(named.texts))

    @property
    def sizes(self) -> Sizes:
        return sizes_of(self.examples, len(self.labels))

    def holdout(self, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(training examples, held-out examples); texts of labels always train."""
        examples = self.examples
        given, named = np.split(examples.weighted, [len(examples.weighted) - self.n_named])
        owner = examples.rows.groups if examples.owner is None else examples.owner
        train, held_out = holdout(examples.labels, fraction, seed, given, owner)
        return np.concatenate([train, named]), held_out

    def noise_of(self, number: int, seed: int) -> Noise:
        """The unfitted noise of a member."""
        return with_seed(self.choice.noise, seed) if number else self.choice.noise

    def model(
        self,
        parameters: Parameters,
        noise: Noise,
        train: np.ndarray,
        scale: float,
        seed: int,
        experts: tuple[Expert, ...] | None = None,
    ) -> Model:
        """A model with a new head, once its noise has been fitted.

        experts:  those of another model with the same examples; None learns them.
        """
        objective = self.choice.objective
        examples, options = self.examples, head_options(parameters, self.choice, scale, seed)
        # Only now: fitting the noise needs memory of its own.
        trim_heap()
        head = self.choice.head.create(
            examples.rows, examples.labels, train, len(self.labels), options
        )
        if experts is None:
            kinds = self.choice.experts(self.sizes, parameters.similar_rows)
            experts = tuple(kind() for kind in kinds)
            for expert in experts:
                expert.learn(examples.rows[train], examples.labels[train], len(self.labels))
        blend = Blend.start(objective, noise, len(experts))
        marginals = None
        if examples.owner is not None:
            n_rows = len(np.unique(examples.owner)) - self.n_named
            marginals = Marginals.start((len(examples) - self.n_named) / n_rows)
        return Model(
            self.encoder, self.labels, head, noise, objective, blend, experts, marginals=marginals
        )


def fingerprint(parameters: Parameters, data: Prepared, scale: float, seed: int) -> dict[str, Any]:
    """What makes two runs the same: size, scale and a few rows of the data, all labels and weights,
    every parameter."""
    rows, labels, weights = data.examples.rows, data.examples.labels, data.examples.weights
    columns = f"{rows.n_features} columns"
    # Weights of classes are in those of the examples.
    left_out = _INDIFFERENT | {"class_weight"}
    left_out |= {"n_models"} if parameters.n_models == 1 else set()
    chosen = {k: v for k, v in parameters.get_params(deep=False).items() if k not in left_out}
    return {
        "seed": seed,
        "rows": len(rows),
        "features": f"{columns}, {zlib.crc32(rows.fingerprint()):x}, {scale!r}",
        "labels": f"{len(data.labels)} classes, {zlib.crc32(labels.tobytes()):x}",
        "sample_weight": "" if weights is None else f"{zlib.crc32(weights.tobytes()):x}",
        **{k: repr(v) for k, v in chosen.items()},
    }
