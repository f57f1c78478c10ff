"""One training run of `adversarial_softmax.py`, by the protocol of the paper."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _adversarial_data import problem_of
from _common import Cell
from sklearn.base import clone

from extremax import ExtremeClassifier
from extremax.comparison import Cell as ComparedCell
from extremax.comparison import Options, Problem
from extremax.comparison.measures import thinned
from extremax.comparison.runs import fitted
from extremax.errors import DivergedError
from extremax.evaluation import outcomes
from extremax.labels import one_label_per_row
from extremax.model import Model
from extremax.noise import Noise
from extremax.objectives import make_objective
from extremax.prediction import Blend
from extremax.rows import as_rows
from extremax.training.calibration import fit_temperature
from extremax.training.holdout import holdout

# Section 5: 16 dimensions. Its penalty was found by cross-validation, as the default finds one: the
# paper's 0.1 overfits classes of few rows. The sharpness is that of the fit.
TREE = "tree(n_components=16, sharpness=1.0)"


class Method(NamedTuple):
    """An objective, a noise, and where the head starts."""

    objective: str
    noise: str
    start: str = "zeros"


METHODS = {
    "adversarial": Method("negative_sampling", TREE),
    "uniform": Method("negative_sampling", "uniform"),
    "frequency": Method("negative_sampling", "frequency"),
    "nce": Method("nce", TREE),
    # The scores of NCE are normalized log-probabilities, which zeros are far from.
    "nce_frequencies": Method("nce", TREE, "frequencies"),
    "augment_reduce": Method("augment_reduce", "uniform"),
    "one_vs_each": Method("one_vs_each", "uniform"),
    "softmax": Method("exact", "uniform"),
}
NEGATIVES = 10
# Where the paper's code starts the accumulators of Adagrad.
ACCUMULATOR = 1e-8
UNLIMITED = 1_000_000
# Held-out rows: few enough to score them after each epoch, and a tenth of the rows at most.
HELD_OUT = 2000
# Those that a temperature is fitted to.
CALIBRATION_ROWS = 500


def validation_fraction(n_rows: int) -> float:
    return min(0.1, HELD_OUT / n_rows)


def classifier(cell: Cell, n_rows: int, n_features: int) -> ExtremeClassifier:
    """The classifier of a run, which ends after seconds or, on the small data, by patience."""
    objective, noise, start = METHODS[cell["method"]]
    limited = "epochs" in cell
    return ExtremeClassifier(
        objective=make_objective(objective).set_params(regularization=cell["penalty"]),
        noise=noise,
        n_negatives=NEGATIVES,
        # The classifier divides its rate by the square root of the number of features.
        learning_rate=cell["rate"] * math.sqrt(n_features),
        accumulator_start=ACCUMULATOR,
        schedule="constant",
        epochs=cell["epochs"] if limited else UNLIMITED,
        patience=10 if limited else UNLIMITED,
        max_seconds=cell.get("seconds"),
        batch_size=100 if limited else 1000,
        validation_fraction=validation_fraction(n_rows),
        start=start,
        n_jobs=1,
        random_state=cell["seed"],
    )


def run(cell: Cell, folders: dict[str, Path], test_rows: int) -> dict[str, Any]:
    """Train, and in a final run evaluate on test rows. Called in a process of its own."""
    problem = _problem(folders[cell["data"]], test_rows)
    model = classifier(cell, *problem.features.shape)
    _warm_up(model, problem)
    if cell["phase"] == "tune" and "seconds" in cell and model.noise == TREE:
        # Short runs are for training alone; final ones pay for the tree.
        model.noise = _fitted_tree(folders[cell["data"]], test_rows, cell["seed"])
    model.evaluate_within_epochs = cell["phase"] == "final"
    try:
        model.fit(problem.features, problem.labels)
    except DivergedError as error:
        return {"diverged": str(error), "log_likelihood": -math.inf}
    best = max(model.history_, key=itemgetter("log_likelihood"))
    result = {key: best[key] for key in ("log_likelihood", "accuracy")}
    result |= {"epochs": len(model.history_), "examples": model.history_[-1]["examples"]}
    if cell["phase"] == "final":
        records = sorted(model.history_ + model.evaluations_, key=itemgetter("seconds"))
        result["curve"] = thinned(records)
        start = [record for record in model.evaluations_ if record.get("epoch") == 0]
        kept = max(start + model.history_, key=itemgetter("log_likelihood"))
        result["start_kept"] = kept["epoch"] == 0
        result["predictions"] = predictions(model, problem)
        result["sizes"] = problem.about()
    return result


# A process runs many cells of few data sets.
_problem = lru_cache(maxsize=2)(problem_of)


@lru_cache(maxsize=2)
def _fitted_tree(folder: Path, test_rows: int, seed: int) -> Noise:
    """The tree of a data set, whose `fit` only restores what was found."""
    problem = _problem(folder, test_rows)
    rows = holdout(problem.labels, validation_fraction(len(problem.labels)), seed)[0]
    return fitted(ComparedCell("nce", TREE, NEGATIVES), Options(threads=1), problem, rows)


def _warm_up(model: ExtremeClassifier, problem: Problem) -> None:
    """Compile the kernels before training is timed, on rows of all parts of a sorted file."""
    some = np.linspace(0, len(problem.labels) - 1, 500).astype(np.int64)
    short = clone(model).set_params(epochs=1, max_seconds=None, validation_fraction=0.0)
    rows = problem.features[some]
    # Kernels are compiled once more for arrays that cannot be written, as memory maps are.
    rows.flags.writeable = False
    short.fit(rows, problem.labels[some])


def predictions(trained: ExtremeClassifier, problem: Problem) -> dict[str, dict[str, float]]:
    """Test figures of the model as it is and, where it adds log q to the scores, without log q."""
    model, budget = trained.model_, trained.memory_budget
    blends = {"as_is": model.blend}
    if model.objective.adds_log_q and trained.noise != "uniform":
        blends["without_log_q"] = Blend()
    held_out = holdout(problem.labels, trained.validation_fraction, trained.random_state)[1]
    rows = as_rows(problem.features)
    found = {}
    for name, blend in blends.items():
        plain = replace(model, blend=blend)
        temperature = fit_temperature(
            plain, rows, problem.labels, budget, held_out[:CALIBRATION_ROWS]
        )
        refitted = replace(model, blend=replace(blend, temperature=temperature))
        found[name] = _figures(plain, problem, budget) | {
            "temperature": temperature,
            "refitted_log_likelihood": _figures(refitted, problem, budget)["log_likelihood"],
        }
    return found


def _figures(model: Model, problem: Problem, budget: int) -> dict[str, float]:
    truth = one_label_per_row(problem.test_labels)
    result = outcomes(model, as_rows(problem.test), truth, budget)
    return {"accuracy": result.accuracy, "log_likelihood": result.log_likelihood}
