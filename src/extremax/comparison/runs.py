"""One run of a comparison: train a cell for some seconds and measure the result."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import Any

import numpy as np

from extremax.classifier import ExtremeClassifier
from extremax.comparison import machine, measures
from extremax.comparison.cells import Cell, make
from extremax.comparison.problem import Problem
from extremax.comparison.tuning import Options, Setting
from extremax.errors import DivergedError
from extremax.kernels.cpu import threads
from extremax.noise import Noise

# Only time ends a run; the learning rate falls over its seconds.
_UNLIMITED = 1_000_000
_WARM_UP_ROWS = 512


def classifier(
    cell: Cell,
    setting: Setting,
    seconds: float | None,
    options: Options,
    noise: Noise | None = None,
) -> ExtremeClassifier:
    """Create the classifier of a run.

    seconds:  training time; None trains for one epoch.
    noise:    overrides the noise of the cell.
    """
    objective, default_noise = make(cell, setting.regularization, options.tree_components)
    return ExtremeClassifier(
        objective=objective,
        noise=default_noise if noise is None else noise,
        n_negatives=cell.n_negatives,
        learning_rate=setting.learning_rate,
        weight_decay=setting.weight_decay,
        epochs=_UNLIMITED if seconds else 1,
        patience=_UNLIMITED,
        max_seconds=seconds,
        start=options.start,
        validation_fraction=options.validation_fraction,
        n_jobs=options.threads,
        random_state=options.seed,
    )


def warm_up(cell: Cell, setting: Setting, options: Options, problem: Problem) -> None:
    """Train on a few rows, so that compiling kernels does not count as training time.

    Raises ValueError if the cell cannot be trained on such rows.
    """
    # Spread over all rows, because files are often sorted by class.
    n_rows = len(problem.labels)
    numbers = np.linspace(0, n_rows - 1, min(n_rows, _WARM_UP_ROWS)).astype(np.int64)
    model = classifier(cell, setting, None, options).set_params(validation_fraction=0.0)
    model.fit(problem.features[numbers], problem.labels[numbers])
    model.predict_topk(problem.features[:4], 1)


def fitted(cell: Cell, options: Options, problem: Problem, train_rows: np.ndarray) -> Noise:
    """Fit the noise of a cell once; `fit` of the result only restores what was found.

    The fit does not depend on the settings that tuning varies.
    """
    noise = make(cell, tree_components=options.tree_components)[1]
    with threads.limit(options.threads):
        noise.fit(problem.features, problem.labels, problem.n_classes, train_rows)
    state = noise.state()

    def restore(self: Noise, *_: Any) -> Noise:
        # A copy, because a noise may change its state during training.
        self.load_state({name: tensor.clone() for name, tensor in state.items()})
        return self

    kind = type(noise)
    restoring = type(kind.__name__, (kind,), {"fit": restore, "__module__": kind.__module__})
    return restoring(**noise.get_params(deep=False))


def train(
    cell: Cell,
    setting: Setting,
    seconds: float,
    options: Options,
    problem: Problem,
    noise: Noise | None = None,
    evaluate_within_epochs: bool = False,
) -> tuple[ExtremeClassifier | None, dict[str, Any]]:
    """Return the trained classifier, or None if training diverged, and the record of the run."""
    model = classifier(cell, setting, seconds, options, noise)
    model.evaluate_within_epochs = evaluate_within_epochs
    record: dict[str, Any] = {
        "cell": cell.slug,
        **setting._asdict(),
        "asked_seconds": seconds,
    }
    start = time.perf_counter()
    try:
        model.fit(problem.features, problem.labels)
    except DivergedError as error:
        return None, record | {"diverged": str(error), "log_likelihood": None}
    history = model.history_
    best = max(history, key=itemgetter("log_likelihood"))
    return model, record | {
        "log_likelihood": best["log_likelihood"],
        "accuracy": best["accuracy"],
        "seconds": history[-1]["seconds"],
        "wall_seconds": time.perf_counter() - start,
        "epochs": len(history),
        "examples_per_s": measures.throughput(history),
        "curve": measures.thinned(sorted(history + model.evaluations_, key=itemgetter("seconds"))),
    }


def final(cell: Cell, setting: Setting, options: Options, problem: Problem) -> dict[str, Any]:
    """Train for the whole budget, which includes fitting the noise, and measure the result.

    ``start_kept`` in the record says that no epoch was better on validation rows than the head
    before the first step: the results are those of the start and say nothing about the cell.
    """
    machine.forget_peak()
    model, record = train(
        cell, setting, options.budget, options, problem, evaluate_within_epochs=True
    )
    record["peak_memory"] = machine.peak_memory()
    if model is not None:
        # Tuning compares trained heads; the head that is kept may be the initial one.
        start = [point for point in model.evaluations_ if point.get("epoch") == 0]
        kept = max(start + model.history_, key=itemgetter("log_likelihood"))
        record |= {key: kept[key] for key in ("log_likelihood", "accuracy")}
        record["start_kept"] = kept["epoch"] == 0
        record["probabilities"] = model.model_.objective.probabilities
        record["test"], record["calibration"] = measures.figures(model, problem)
        record["bias"] = measures.bias(model, problem)
    return record
