"""Run every benchmark of this folder and write the table in the docs.

Each script runs in its own process; its last line, a JSON object, is stored in bench-out/.
``--only`` runs some scripts and reads the stored results of the others. ``--data`` is passed to
the scripts that take it.
"""

from __future__ import annotations

import argparse
import json
import operator
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STORED = HERE.parent / "bench-out"
PAGE = HERE.parent / "docs" / "benchmarks.md"
START, END = "<!-- table: written by benchmarks/run_all.py -->", "<!-- end of table -->"

# Keys of each script that the table shows, and the limit that each must reach. For a script that
# is not listed here, the table shows every number.
SHOWN: dict[str, dict[str, str]] = {
    "dense_step": {
        "speedup": "≥ 9",
        "roofline_share": "≥ 0.45",
        "row_over_element": "≥ 1.4",
        "examples_per_s": "",
    },
    # The smallest gain over the data sets.
    "noise_matters": {
        "accuracy_gain": "> 1.05",
        "loglik_gain": "> 0",
    },
    "tree_fit": {
        "fit_over_ten_epochs": "≤ 2.5",
        "growth": "≤ 3",
        "draws_per_s": "",
        "held_out_log_likelihood": "",
        "uniform_log_likelihood": "",
    },
    "prediction": {
        "speedup": "≥ 20",
        "recall_at_1": "≥ 0.98",
        "width": "",
        "log_prob_mean_abs_difference": "",
    },
    "training_memory": {
        "peak_over_parts": "< 1.3",
        "row_peak_share": "≤ 0.82",
        "row_head_share": "≤ 0.52",
        "torch_peak_over_parts": "",
    },
    "bias_against_m": {
        "quadratic_saves": "≥ 10",
        "uniform": "",
        "frequency": "",
        "quadratic": "",
        "quartic": "",
        "tree": "",
        "mixture": "",
    },
    "sampler_growth": {
        "worst_growth": "≤ 8",
    },
    "compare_cells": {
        "cells": "",
        "failed": "≤ 0",
        "below_prior": "≤ 0",
    },
    "nn_step": {
        "speedup_1e4": "> 1",
        "speedup_1e5": "≥ 20",
        "speedup_1e6": "> 1",
        "over_adaptive_1e5": "> 1",
    },
    "closing_the_gap": {
        "accuracy_ratio": "≥ 0.97",
        "loglik_gap": "≤ 0.12",
        "cost_share": "≤ 0.02",
    },
    "text_peers": {
        "acc1": "≥ 0.208",
        "loglik": "≥ -5.35",
        "p1": "≥ 0.368",
        "fit_over_pecos": "≤ 1.3",
        "docs_per_s_over_pecos": "≥ 1.5",
        "peak_gb": "≤ 2.5",
    },
    # The curves are on a separate page.
    "learning_curves": {
        "cells": "",
    },
    "sessions": {
        "recall_at_20": "≥ 0.545",
        "mrr_at_20": "≥ 0.19",
        "item_knn.recall_at_20": "",
        "item_knn_self.recall_at_20": "",
        "popularity.recall_at_20": "",
    },
    "honest": {
        "beam_error_sparse": "≤ 0.05",
        "beam_error_dense": "≤ 0.05",
        "ece_titles": "≤ 0.01",
        "ece_sessions": "≤ 0.01",
        "marginal_ece": "≤ 0.01",
        "marginal_ece_chance": "",
    },
    "dense_default": {
        "accuracy_share": "≥ 0.97",
        "loglik_gap": "≤ 0.05",
        "time_share": "≤ 0.25",
    },
    "first_fit": {
        "first_fit_dense": "≤ 12",
        "first_fit_dense_large": "≤ 20",
        "first_fit_text": "≤ 15",
        "first_fit_text_large": "≤ 15",
        "first_predict": "≤ 5",
        "import_s": "",
    },
    "small_data": {
        "wins": "≥ 8",
        "worst_accuracy_gap": "≤ 0.02",
    },
    # The worst of all figures of both data sets.
    "new_classes": {
        "old_share": "≥ 0.9",
        "new_share": "≥ 0.9",
    },
    "papers": {
        "softmax_noise_bias": "≤ 1e-6",
        "share_error": "≤ 0.005",
        "recovered": "≤ 5e-4",
        "recovered_peaked": "",
        "bias_removal_gain": "> 0.1",
        "even_kernel_gain": "< 1",
        "nan_trees": "≤ 0",
    },
    # On 16 cores; "never" on fewer. The ratio of copies bounds that of the dense fit.
    "cores": {
        "text_fit_s_2": "",
        "text_fit_s_16": "≤ 11.5",
        "dense_fit_1_to_16": "",
        "copy_1_to_16": "",
        "predict_2_to_16": "≥ 5",
    },
    "class_growth": {
        "fit_growth": "≤ 3",
        "predict_growth": "≤ 3",
    },
}
# Keys that describe the run rather than its results.
ABOUT = {"benchmark", "quick", "data", "sizes", "versions", "machine", "command"}


def scripts() -> list[Path]:
    return sorted(p for p in HERE.glob("*.py") if p.stem != "run_all" and p.stem[0] != "_")


def run(script: Path, quick: bool, data: str | None) -> dict[str, Any] | None:
    """Run a script, pass its output through, and return its JSON line; None if it failed."""
    command = [sys.executable, str(script)] + ["--quick"] * quick
    if data and '"--data"' in script.read_text():
        command += ["--data", data]
    print(f"$ {shlex.join(command)}", flush=True)
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    try:
        result = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    if process.returncode:
        return None
    STORED.mkdir(exist_ok=True)
    (STORED / f"{script.stem}.json").write_text(json.dumps(result) + "\n")
    return result


def stored(script: Path) -> dict[str, Any] | None:
    path = STORED / f"{script.stem}.json"
    return json.loads(path.read_text()) if path.exists() else None


def numbers(result: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a result by key; numbers of a nested object have the key ``object.key``."""
    by_key: dict[str, float] = {}
    for key, value in result.items():
        if isinstance(value, dict) and (prefix or key not in ABOUT):
            by_key |= numbers(value, "" if key == "figures" else f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            by_key[prefix + key] = value
    return by_key


def reached(value: float, must: str) -> bool:
    sign, limit = must.split()
    compare = {"≥": operator.ge, "≤": operator.le, "<": operator.lt, ">": operator.gt}
    return compare[sign](value, float(limit))


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def rows_of(script: Path, result: dict[str, Any] | None) -> list[str]:
    name = script.stem
    if result is None:
        return [f"| {name} | | no result | | | `python benchmarks/{name}.py` |"]
    values = numbers(result)
    wanted = SHOWN.get(name) or dict.fromkeys(values, "")
    rows = []
    for key, must in wanted.items():
        if key in values:
            met = ("yes" if reached(values[key], must) else "**no**") if must else ""
            command = result.get("command", f"python benchmarks/{name}.py")
            cells = (name, key, shown(values[key]), must, met, f"`{command}`")
        else:
            # A number that a script searched for and did not find is null.
            cells = (name, key, "never" if key in result else "not reported", must, "", "")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def table(results: dict[Path, dict[str, Any] | None]) -> str:
    first = next((r for r in results.values() if r), {})
    machine, versions = first.get("machine", {}), first.get("versions", {})
    quick = sorted(s.stem for s, r in results.items() if r and r.get("quick"))
    lines = [
        f"Machine: {machine.get('cpu')}, {machine.get('threads')} threads, "
        f"{machine.get('memory_gb')} GB, {machine.get('system')}. "
        "Versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".",
        "",
    ]
    if quick:
        lines += [f"With reduced sizes (`--quick`): {', '.join(quick)}.", ""]
    lines += [
        "| script | key | value | must reach | reached | command |",
        "|---|---|---|---|---|---|",
    ]
    for script, result in results.items():
        lines += rows_of(script, result)
    return "\n".join(lines) + "\n"


def page(path: Path, content: str) -> str:
    """The text of the page with the table between its two markers replaced."""
    text = path.read_text() if path.exists() else ""
    before, after = text.partition(START)[0], text.partition(END)[2] or "\n"
    return f"{before}{START}\n\n{content}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="reduced sizes, about a minute per script"
    )
    parser.add_argument("--data", help="folder of real data, for the scripts that take it")
    parser.add_argument("--only", nargs="*", help="run these, and use stored results of others")
    parser.add_argument("--table", type=Path, default=PAGE, help="page that gets the table")
    given = parser.parse_args()
    results, failed = {}, []
    for script in scripts():
        if given.only is None or script.stem in given.only:
            results[script] = run(script, given.quick, given.data)
            failed += [script.stem] * (results[script] is None)
        else:
            results[script] = stored(script)
    given.table.write_text(page(given.table, table(results)))
    print(f"wrote {given.table}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
