"""What is measured of a run: test figures, throughput, calibration, the bias of its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax.comparison.problem import Problem

if TYPE_CHECKING:
    from extremax import ExtremeClassifier

# Points of a curve that are kept: more cannot be seen.
_POINTS = 120
# Where the bias of a gradient is measured: some rows, some numbers of draws.
_BIAS_ROWS, _BIAS_DRAWS = 64, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def figures(model: ExtremeClassifier, problem: Problem) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exact test figures with their standard errors, and how honest the confidence is.

    Rows of unseen classes count as wrong and are left out of the log-likelihood.
    """
    from extremax.diagnostics.calibration import reliability

    truth = problem.test_labels
    known = truth >= 0
    best, log_probs = model.predict_topk(problem.test, 5)
    correct = best[:, 0] == truth
    share = float(correct.mean())
    found: dict[str, Any] = {
        "accuracy": share,
        "accuracy_error": math.sqrt(share * (1.0 - share) / len(truth)),
        "top5_accuracy": float((best == truth[:, None]).any(1).mean()),
        "log_likelihood": None,
        "log_likelihood_error": None,
    }
    if known.any():
        each = model.predict_log_proba(problem.test[known], truth[known]).astype(np.float64)
        found["log_likelihood"] = float(each.mean())
        found["log_likelihood_error"] = float(each.std() / math.sqrt(len(each)))
    bins = min(15, max(1, len(truth) // 40))
    honest = reliability(np.exp(log_probs[:, 0], dtype=np.float64), correct, bins)
    return found, {
        "error": honest.error,
        "by_chance": honest.by_chance,
        "confidence": honest.confidence.tolist(),
        "accuracy": honest.accuracy.tolist(),
    }


def throughput(history: Sequence[dict[str, Any]], n_rows: int) -> float | None:
    """Examples a second of training, the noise's fit and the start left out where possible."""
    if "examples" in history[-1]:
        first = history[0]
        if len(history) > 1:
            seen = history[-1]["examples"] - first["examples"]
            took = history[-1]["seconds"] - first["seconds"]
        else:
            seen, took = first["examples"], first["seconds"]
        return seen / took if took > 0 and seen else None
    # The last epoch may have been cut short by the clock.
    whole = history[:-1]
    if len(whole) > 1:
        return (len(whole) - 1) * n_rows / (whole[-1]["seconds"] - whole[0]["seconds"])
    return n_rows / whole[0]["seconds"] if whole else None


def thinned(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of a curve: all of them, or some evenly spread over the logarithm of time, the
    best and the last among them."""
    kept = list(range(len(history)))
    if len(history) > _POINTS:
        times = np.log([max(record["seconds"], 1e-6) for record in history])
        wanted = np.searchsorted(times, np.linspace(times[0], times[-1], _POINTS))
        best = max(kept, key=lambda i: history[i]["log_likelihood"])
        kept = sorted({*wanted.clip(max=len(history) - 1).tolist(), best, len(history) - 1})
    keys = ("seconds", "log_likelihood", "accuracy")
    return [{key: history[i][key] for key in keys} for i in kept]


def bias(model: ExtremeClassifier, problem: Problem) -> dict[str, Any] | None:
    """How biased sampled softmax under this model's noise is, against the number of draws."""
    from extremax.diagnostics.bias import estimated_bias
    from extremax.kernels.cpu import threads
    from extremax.objectives import SampledSoftmax

    if not isinstance(model.objective_, SampledSoftmax):
        return None
    # Validation rows would do as well; these have not shaped the model.
    rows = np.flatnonzero(problem.test_labels >= 0)[:_BIAS_ROWS]
    draws = [m for m in _BIAS_DRAWS if m < problem.n_classes]
    if not len(rows) or not draws:
        return None
    with threads.limit(model.n_jobs):
        found = estimated_bias(
            model._scorer, problem.test[rows], problem.test_labels[rows], model.noise_, draws
        )
    return {"m": draws, "relative": [float(value) for value in found.relative]}
