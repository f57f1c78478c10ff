"""Bamler & Mandt 2020, "Extreme classification via adversarial softmax approximation".

Figure 1 and table 1: log-likelihood and accuracy of the methods against seconds of training, the
learning rate and the penalty of each tuned on the paper's grid. Appendix A.2: full softmax against
uniform negative sampling on a small data set. And what removing the bias is worth: predictions with
and without log q, at temperature 1 and at the one that held-out rows suggest.

    python reproduce/adversarial_softmax.py --data DIR --output OUT --jobs 16
    python reproduce/adversarial_softmax.py --report OUT

DIR has yso-finna-en and diginetica in place of the paper's data; ``--sets Amazon-670K
Wikipedia-500K`` runs on the paper's own (`_adversarial_data` says in which files). All choices are
made on held-out training rows; only the models of final runs are evaluated on test rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from _adversarial_data import SMALL, prepare
from _adversarial_report import write_report
from _adversarial_run import METHODS, run
from _common import Cell, parser, run_cells

# The paper's grid. Its rates are per weight, for features of unit mean square.
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
SOFTMAX_RATES = (*RATES, 0.1, 0.3, 1.0, 3.0, 10.0)
PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
# Rates are compared at these two penalties, then penalties at the best rate.
FIRST_PENALTIES = (1e-5, 1e-3)

Run = Callable[[Iterable[Cell]], list[dict[str, Any]]]
Settings = dict[tuple[str, str], dict[str, float]]


def best_settings(records: Iterable[dict[str, Any]]) -> Settings:
    """Rate and penalty with the best held-out log-likelihood, by data set and method."""
    best: Settings = {}
    for record in sorted(records, key=lambda r: r["result"]["log_likelihood"]):
        cell = record["cell"]
        best[cell["data"], cell["method"]] = {key: cell[key] for key in ("rate", "penalty")}
    return best


def tune(run_all: Run, sets: list[str], limit: dict[str, Any], quick: bool) -> Settings:
    """Rates at two penalties first, then all penalties at the best rate."""
    pairs: list[Cell] = [{"phase": "tune", "data": data, "method": method, "seed": 0} | limit
                         for data in sets for method in METHODS]  # fmt: skip
    rates = RATES[-2:] if quick else RATES
    first = [pair | {"rate": rate, "penalty": penalty}
             for rate in rates for penalty in FIRST_PENALTIES for pair in pairs]  # fmt: skip
    records = run_all(first)
    best = best_settings(records)
    if not quick:
        records += run_all(
            pair | {"rate": best[pair["data"], pair["method"]]["rate"], "penalty": penalty}
            for penalty in PENALTIES
            for pair in pairs
        )
    return best_settings(records)


def tune_small(run_all: Run, name: str, limit: dict[str, Any], quick: bool) -> Settings:
    """The whole grid, with higher rates for softmax, as in appendix A.2."""
    grids = {"uniform": RATES, "softmax": SOFTMAX_RATES}
    return best_settings(
        run_all(
            {"phase": "tune", "data": name, "method": method, "seed": 0} | limit
            | {"rate": rate, "penalty": penalty}
            for method, rates in grids.items()
            for rate in (rates[2:4] if quick else rates)
            for penalty in (FIRST_PENALTIES if quick else PENALTIES)
        )
    )  # fmt: skip


def train(run_all: Run, settings: Settings, limit: dict[str, Any], seeds: int) -> None:
    """The final runs."""
    run_all(
        {"phase": "final", "data": data, "method": method, "seed": seed} | limit | setting
        for seed in range(seeds)
        for (data, method), setting in settings.items()
    )


def main() -> None:
    given = _arguments()
    if given.report:
        write_report(given.report / "results.jsonl", given.images, given.seeds)
        return
    small = "synthetic" if given.quick else SMALL
    names = [*given.sets, small] if "small" in given.phases else given.sets
    folders = {name: prepare(name, given.data, given.output) for name in names}
    run_all = partial(
        run_cells,
        partial(run, folders=folders, test_rows=given.test_rows),
        file=given.output / "results.jsonl",
        jobs=given.jobs,
        deadline=time.monotonic() + given.stop_after,
    )
    if "small" in given.phases:
        limit = {"epochs": 3 if given.quick else 100}
        train(run_all, tune_small(run_all, small, limit, given.quick), limit, given.seeds)
    if "tune" in given.phases or "final" in given.phases:
        settings = tune(run_all, given.sets, {"seconds": given.tuning_s}, given.quick)
        if "final" in given.phases:
            train(run_all, settings, {"seconds": given.budget_s}, given.seeds)


def _arguments() -> argparse.Namespace:
    made = parser((__doc__ or "").splitlines()[0])
    made.add_argument("--data", type=Path, help="folder that holds the data sets")
    made.add_argument("--sets", nargs="+", default=["yso-finna-en", "diginetica"])
    phases = ("prepare", "small", "tune", "final")
    made.add_argument("--phases", nargs="+", choices=phases, default=phases)
    made.add_argument("--tuning-s", type=float, default=8.0, help="seconds of a tuning run")
    made.add_argument("--budget-s", type=float, default=100.0, help="seconds of a final run")
    made.add_argument("--test-rows", type=int, default=5000, help="test rows to evaluate on")
    given = made.parse_args()
    if given.quick:
        given.sets, given.tuning_s, given.budget_s = ["synthetic"], 0.2, 0.5
    if not (given.report or given.output):
        made.error("--output or --report is missing")
    return given


if __name__ == "__main__":
    main()
