"""One run of a comparison: train a cell for so many seconds, look at what came of it."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax.comparison import machine, measures
from extremax.comparison.cells import Cell, make
from extremax.comparison.problem import Problem
from extremax.comparison.tuning import Setting
from extremax.errors import DivergedError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.comparison.runner import Options
    from extremax.noise import Noise

# Time ends a run, nothing else: the learning rate falls over the seconds.
_NO_END = 1_000_000
_WARM_UP_ROWS = 512


def classifier(
    cell: Cell,
    setting: Setting,
    seconds: float | None,
    options: Options,
    noise: Noise | None = None,
) -> ExtremeClassifier:
    from extremax import ExtremeClassifier

    objective, own = make(cell, setting.regularization, options.tree_components)
    return ExtremeClassifier(
        objective=objective,
        noise=own if noise is None else noise,
        n_negatives=cell.n_negatives,
        learning_rate=setting.learning_rate,
        epochs=_NO_END if seconds else 1,
        patience=_NO_END,
        max_seconds=seconds,
        validation_fraction=options.validation_fraction,
        n_jobs=options.threads,
        random_state=options.seed,
    )


def warm_up(cell: Cell, setting: Setting, options: Options, problem: Problem) -> None:
    """Train on a few rows, so that compiling the kernels is not counted as training.

    A ValueError of a cell that cannot work on such rows comes out here.
    """
    # Spread over all: files are often sorted by class.
    n = len(problem.labels)
    rows = np.linspace(0, n - 1, min(n, _WARM_UP_ROWS)).astype(np.int64)
    model = classifier(cell, setting, None, options).set_params(validation_fraction=0.0)
    model.fit(problem.features[rows], problem.labels[rows])
    model.predict_topk(problem.features[:4], 1)


def fitted(cell: Cell, options: Options, problem: Problem, rows: np.ndarray) -> Noise:
    """The noise of a cell whose `fit` has been done: it only restores what it found.

    Short runs of the same noise differ in nothing that its fit depends on.
    """
    from extremax.kernels.cpu import threads

    noise = make(cell, tree_components=options.tree_components)[1]
    with threads.limit(options.threads):
        noise.fit(problem.features, problem.labels, problem.n_classes, rows)
    state = noise.state()

    def restore(self: Noise, *_: Any) -> Noise:
        # A copy: what follows a head or makes room for classes may write into it.
        self.load_state({name: tensor.clone() for name, tensor in state.items()})
        return self

    kind = type(noise)
    made = type(kind.__name__, (kind,), {"fit": restore, "__module__": kind.__module__})
    return made(**noise.get_params(deep=False))


def train(
    cell: Cell,
    setting: Setting,
    seconds: float,
    options: Options,
    problem: Problem,
    noise: Noise | None = None,
    looks_between: bool = False,
) -> tuple[ExtremeClassifier | None, dict[str, Any]]:
    """The model and the record of its run; no model where training diverged."""
    model = classifier(cell, setting, seconds, options, noise)
    model.looks_between = looks_between
    record: dict[str, Any] = {
        "cell": cell.slug,
        "learning_rate": setting.learning_rate,
        "regularization": setting.regularization,
        "asked_seconds": seconds,
    }
    start = time.perf_counter()
    try:
        model.fit(problem.features, problem.labels)
    except DivergedError as error:
        return None, record | {"diverged": str(error), "log_likelihood": None}
    history = model.history_
    best = max(history, key=lambda r: r["log_likelihood"])
    return model, record | {
        "log_likelihood": best["log_likelihood"],
        "accuracy": best["accuracy"],
        "seconds": history[-1]["seconds"],
        "wall_seconds": time.perf_counter() - start,
        "epochs": len(history),
        # A loss of exactly nothing is one that was never computed.
        "trained": any(r["surrogate_loss"] for r in history),
        "examples_per_s": measures.throughput(history, len(problem.labels) - options.n_held_out),
        "curve": measures.thinned(sorted(history + model.looks_, key=itemgetter("seconds"))),
    }


def final(cell: Cell, setting: Setting, options: Options, problem: Problem) -> dict[str, Any]:
    """The run with the whole budget, the fit of the noise counted, and its test figures."""
    machine.forget_peak()
    model, record = train(cell, setting, options.budget, options, problem, looks_between=True)
    record["peak_memory"] = machine.peak_memory()
    if model is not None:
        # Tuning goes by what a setting learns; the model may be the one it began with.
        kept = max(model.looks_[:1] + model.history_, key=itemgetter("log_likelihood"))
        record |= {key: kept[key] for key in ("log_likelihood", "accuracy")}
        record["probabilities"] = model.objective_.probabilities
        record["test"], record["calibration"] = measures.figures(model, problem)
        record["bias"] = measures.bias(model, problem)
    return record
