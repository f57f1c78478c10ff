"""Predictions in the format of evaluators of calibration at k.

The four arrays are those that `evaluate_new.py` of github.com/xmc-aalto/xmc-topk-calibration reads
(Ullah et al., "How well calibrated are extreme multi-label classifiers?", 2024).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from extremax.disk import replacing
from extremax.errors import ArgumentError
from extremax.evaluation.evaluator import Outcomes
from extremax.evaluation.ranking import hits


def export_outcomes(path: str | Path, blocks: Iterable[Outcomes]) -> None:
    """Write the best classes of every row, and the truth, as an ``.npz`` that `numpy.load` reads
    without pickle. An older file is replaced only after all is written.

        scores          (n, k) probabilities that the class is a label of the row
        true_positives  (n, k) whether the class is a label of the row
        prediction_ids  (n, k) class numbers, which are positions in ``classes_``
        labels          (pairs, 2) row and class number of each label, −1 for a label that training
                        never saw

    blocks:  outcomes of consecutive rows, see `ExtremeClassifier.outcomes`.
    """
    given = list(blocks)
    if not given:
        raise ArgumentError("there are no outcomes to export")
    starts = np.cumsum([0, *(len(block.truth) for block in given)])
    ranked = [block.ranking.labels.numpy() for block in given]
    parts = {
        "scores": [block.marginals for block in given],
        "true_positives": [hits(r, block.truth) for r, block in zip(ranked, given, strict=True)],
        "prediction_ids": ranked,
        "labels": [
            np.stack([block.truth.rows + start, block.truth.values], axis=1)
            for block, start in zip(given, starts[:-1], strict=True)
        ],
    }
    arrays: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    # Resolve links, so that the file they point to is replaced rather than the link.
    with replacing(Path(path).resolve()) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
