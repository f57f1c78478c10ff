"""Figures of the finished model on rows that were held out: blended and calibrated, before its
experts learn these rows as well.

Blend and calibration were fitted to held-out rows, these among them. k fitted numbers flatter n
rows by about k/(2n) nat: with some twenty numbers and thousands of rows, next to nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from extremax.evaluation import evaluate
from extremax.heads.blocks import BYTES_PER_SCORE
from extremax.model import Model
from extremax.prediction.blend import is_product
from extremax.training.data import Examples
from extremax.training.loop import HELD_OUT_BYTES, evaluated_rows


def validate(
    model: Model, examples: Examples, train: np.ndarray, held_out: np.ndarray
) -> dict[str, Any] | None:
    """Accuracy and log-likelihood as `extremax.evaluation` has them, and the number of rows: as
    many as the evaluation after an epoch takes. None where no rows were held out."""
    if not len(held_out):
        return None
    most = evaluated_rows(model.n_classes, is_product(model.objective, model.noise))
    rows, truth = examples.grouped(examples.of_few_rows(held_out, most))
    # Counts of all examples would know the labels of these rows.
    counts = np.bincount(examples.labels[train], minlength=model.n_classes)
    blind = replace(model, labels=model.labels.with_counts(counts))
    budget = max(HELD_OUT_BYTES, BYTES_PER_SCORE * model.n_classes)
    result = evaluate(blind, rows, truth, budget)
    return {
        "rows": result.rows,
        "accuracy": result.accuracy,
        "log_likelihood": result.log_likelihood,
    }
