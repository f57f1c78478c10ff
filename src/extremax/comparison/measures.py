"""Measurements of a run: test metrics, calibration, throughput, bias of the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from extremax.classifier import ExtremeClassifier
from extremax.comparison.problem import Problem
from extremax.diagnostics import estimated_bias, reliability
from extremax.evaluation import outcomes, summarize
from extremax.kernels.cpu import threads
from extremax.labels import one_label_per_row
from extremax.rows import as_rows

# Points of a learning curve: more would not be visible.
_POINTS = 120
# The bias of the gradient is measured on some rows, for several numbers of draws.
_BIAS_ROWS, _BIAS_DRAWS = 64, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def figures(
    classifier: ExtremeClassifier, problem: Problem
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return exact test metrics with their standard errors, and the calibration.

    Rows of unseen classes count as wrong and are left out of the log-likelihood.
    """
    model, truth = classifier.model_, one_label_per_row(problem.test_labels)
    with threads.limit(classifier.n_jobs):
        result = outcomes(model, as_rows(problem.test), truth, classifier.memory_budget)
    evaluation, n_rows = summarize(model, result), len(truth)
    accuracy, log_prob = evaluation.accuracy, result.log_prob[truth.values >= 0]
    test = {
        "accuracy": accuracy,
        "accuracy_error": math.sqrt(accuracy * (1.0 - accuracy) / n_rows),
        "top5_accuracy": evaluation.top5_accuracy,
        "log_likelihood": evaluation.log_likelihood,
        "log_likelihood_error": float(log_prob.std() / math.sqrt(len(log_prob))),
    }
    n_bins = min(15, max(1, n_rows // 40))
    calibration = reliability(result.confidence, result.correct, n_bins)
    return test, {
        "error": calibration.error,
        "by_chance": calibration.by_chance,
        "confidence": calibration.confidence.tolist(),
        "accuracy": calibration.accuracy.tolist(),
    }


def throughput(history: Sequence[dict[str, Any]]) -> float | None:
    """Return examples per second of training.

    The first epoch, whose seconds include fitting the noise, counts only if there is no other.
    """
    first, last = history[0], history[-1]
    examples, seconds = last["examples"], last["seconds"]
    if len(history) > 1:
        examples, seconds = examples - first["examples"], seconds - first["seconds"]
    return examples / seconds if seconds > 0 and examples else None


def thinned(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of a curve, which are at most about 120 of the records.

    They are spread evenly over the logarithm of time and include the best and the last record.
    """
    kept = list(range(len(records)))
    if len(records) > _POINTS:
        times = np.log([max(record["seconds"], 1e-6) for record in records])
        spread = np.searchsorted(times, np.linspace(times[0], times[-1], _POINTS))
        best = max(kept, key=lambda i: records[i]["log_likelihood"])
        kept = sorted({*spread.clip(max=len(records) - 1).tolist(), best, len(records) - 1})
    keys = ("seconds", "log_likelihood", "accuracy")
    return [{key: records[i][key] for key in keys} for i in kept]


def bias(classifier: ExtremeClassifier, problem: Problem) -> dict[str, Any] | None:
    """Return the bias of the gradient against the number of draws, if the objective has one."""
    model = classifier.model_
    draws = [m for m in _BIAS_DRAWS if m < problem.n_classes]
    if not model.objective.corrects_draws or not draws:
        return None
    # Test rows, like validation rows, have not influenced the model.
    numbers = np.flatnonzero(problem.test_labels >= 0)[:_BIAS_ROWS]
    rows, labels = as_rows(problem.test[numbers]), problem.test_labels[numbers]
    trained, budget = model.as_trained(), classifier.memory_budget
    with threads.limit(classifier.n_jobs):
        curve = estimated_bias(trained, rows, labels, model.noise, draws, budget)
    return {"m": draws, "relative": [float(value) for value in curve.relative]}
