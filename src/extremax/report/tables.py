"""The results of a comparison as rows, for the CSV files and the page."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.comparison import Comparison


_TUNED = ("learning_rate", "regularization", "weight_decay")


def final_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per cell, best log-likelihood first.

    Cells whose start was kept come last: their results are not due to their objective and noise.
    """
    rows = []
    for cell, name in result.names.items():
        record = result.final[cell]
        calibration = record["calibration"]
        n_scores = cell.n_negatives + 1 if cell.noise else result.problem["classes"]
        rows.append(
            {
                "cell": name,
                "objective": cell.objective,
                "noise": cell.noise or "",
                "n_negatives": cell.n_negatives if cell.noise else "",
                **record["test"],
                "calibration_error": calibration["error"],
                "calibration_error_by_chance": calibration["by_chance"],
                **_selected(record, *_TUNED, "examples_per_s"),
                "scores_per_example": n_scores,
                **_selected(record, "peak_memory", "seconds", "wall_seconds", "epochs"),
                **_selected(record, "start_kept", "probabilities"),
            }
        )
    return sorted(rows, key=lambda row: (row["start_kept"], -row["log_likelihood"]))


def curve_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per evaluation on validation rows, with the seconds of training."""
    return [
        {"cell": name} | point | _selected(result.final[cell], "start_kept")
        for cell, name in result.names.items()
        for point in result.final[cell]["curve"]
    ]


def tuning_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per tuning run; ``chosen`` marks runs of the setting that was selected."""
    return [
        {
            "cell": name,
            "round": record["round"],
            "seconds": record["asked_seconds"],
            **_selected(record, *_TUNED, "log_likelihood"),
            "accuracy": record.get("accuracy"),
            "chosen": all(record[key] == result.final[cell][key] for key in _TUNED),
            "diverged": "diverged" in record,
        }
        for cell, name in result.names.items()
        for record in result.tuning[cell]
    ]


def _selected(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: record[key] for key in keys}


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Return rows as the text of a CSV file, with their keys as the header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
