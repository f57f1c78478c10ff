"""The results of a comparison as rows, for the CSV files and the page."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.data.writers import replacing

if TYPE_CHECKING:
    from extremax.comparison import Comparison


def final_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per cell, best log-likelihood first."""
    rows = []
    for cell, name in result.names.items():
        record = result.final[cell]
        test, calibration = record["test"], record["calibration"]
        n_scores = cell.n_negatives + 1 if cell.noise else result.problem["classes"]
        rows.append(
            {
                "cell": name,
                "objective": cell.objective,
                "noise": cell.noise or "",
                "n_negatives": cell.n_negatives if cell.noise else "",
                "accuracy": test["accuracy"],
                "accuracy_error": test["accuracy_error"],
                "top5_accuracy": test["top5_accuracy"],
                "log_likelihood": test["log_likelihood"],
                "log_likelihood_error": test["log_likelihood_error"],
                "calibration_error": calibration["error"],
                "calibration_error_by_chance": calibration["by_chance"],
                "learning_rate": record["learning_rate"],
                "regularization": record["regularization"],
                "examples_per_s": record["examples_per_s"],
                "scores_per_example": n_scores,
                "peak_memory": record["peak_memory"],
                "seconds": record["seconds"],
                "wall_seconds": record["wall_seconds"],
                "epochs": record["epochs"],
                "trained": record["trained"],
                "probabilities": record["probabilities"],
            }
        )
    return sorted(rows, key=_rank)


def _rank(row: dict[str, Any]) -> float:
    likelihood = row["log_likelihood"]
    return float("inf") if likelihood is None else -float(likelihood)


def curve_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per evaluation on validation rows, with the seconds of training."""
    return [
        {"cell": name} | point
        for cell, name in result.names.items()
        for point in result.final[cell]["curve"]
    ]


def tuning_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per tuning run; ``chosen`` marks runs of the setting that was selected."""
    rows = []
    for cell, name in result.names.items():
        selected = result.final[cell]
        for record in result.tuning[cell]:
            keys = ("learning_rate", "regularization")
            rows.append(
                {
                    "cell": name,
                    "round": record["round"],
                    "seconds": record["asked_seconds"],
                    "learning_rate": record["learning_rate"],
                    "regularization": record["regularization"],
                    "log_likelihood": record["log_likelihood"],
                    "accuracy": record.get("accuracy"),
                    "chosen": all(record[key] == selected[key] for key in keys),
                    "diverged": "diverged" in record,
                }
            )
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows to a CSV file, with their keys as the header."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
