"""Tables and pictures of `discrete_estimators.py`, from its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _common import coverage, group, markdown_table, picture, spread

Result = dict[str, Any]
NOT_RUN = "not run"
DEFAULT = {"gumbel_softmax": 0.5, "straight_through": 1.0}


def pooled_t(results: list[Result]) -> float:
    """Bias over its standard error, both pooled over the seeds; the largest over the logits."""
    bias = np.mean([r["bias"] for r in results], axis=0)
    error = np.sqrt(np.square([r["error"] for r in results]).sum(0)) / len(results)
    # Estimates without variance may still differ from the truth by rounding.
    return float(np.max(np.abs(bias) / np.maximum(error, 1e-12)))


def variance_table(records: list[Result]) -> str:
    """Bias and variance of every estimator, the relaxed ones at their usual temperature."""
    found = group(records, "estimator", "problem", "temperature")
    plain = {
        (r["cell"]["problem"], r["cell"]["seed"]): r["result"]["variance"]
        for r in records
        if r["cell"]["estimator"] == "reinforce"
    }
    ratios: dict[tuple[str, str, float | None], list[float]] = {}
    for record in records:
        cell = record["cell"]
        if (cell["problem"], cell["seed"]) in plain:
            key = (cell["estimator"], cell["problem"], cell.get("temperature"))
            ratio = record["result"]["variance"] / plain[cell["problem"], cell["seed"]]
            ratios.setdefault(key, []).append(ratio)
    problems = list(dict.fromkeys(problem for _, problem, _ in found))
    rows = []
    for name in dict.fromkeys(name for name, _, _ in found):
        line = [f"`{name}`" + (f", τ = {DEFAULT[name]:g}" if name in DEFAULT else "")]
        for problem in problems:
            key = (name, problem, DEFAULT.get(name))
            results, ratio = found.get(key, []), ratios.get(key, [])
            variances = [r["variance"] for r in results]
            t = f"{pooled_t(results):.1f}" if results else NOT_RUN
            line += [t, scientific(variances), scientific(ratio)]
        rows.append(line)
    header = [f"{p}: {n}" for p in problems for n in ("t", "variance", "over REINFORCE")]
    return markdown_table(["estimator", *header], rows)


def scientific(values: list[float]) -> str:
    """Mean ± standard error, where there are several seeds."""
    if not values:
        return NOT_RUN
    mean, error = spread(values)
    return f"{mean:.3g}" + (f" ± {error:.1g}" if len(values) > 1 else "")


def relaxation_table(records: list[Result]) -> str:
    """Relative bias and variance of the relaxed estimators by temperature."""
    found = group(
        [r for r in records if "temperature" in r["cell"]], "problem", "estimator", "temperature"
    )
    rows = []
    for (problem, name, temperature), results in found.items():
        bias = spread(float(np.linalg.norm(r["bias"])) / r["truth"] for r in results)
        variance = scientific([r["variance"] for r in results])
        rows.append([problem, f"`{name}`", f"{temperature:g}", bias.text(), variance])
    return markdown_table(["problem", "estimator", "τ", "bias / true gradient", "variance"], rows)


def curves(results: list[Result], key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(step, mean, standard error); the steps are the same for all seeds."""
    array = np.array([r[key] for r in results], float)
    values = array[:, :, 1]
    error = values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0 * values[0]
    return array[0, :, 0], values.mean(0), error


def learning_table(toys: list[Result], digits: list[Result]) -> str:
    """Loss of the toy and ELBO of the digits after the last step."""
    by_target, by_name = group(toys, "estimator", "t"), group(digits, "estimator")
    targets = sorted({t for _, t in by_target})
    rows = []
    for name in dict.fromkeys([*(name for name, _ in by_target), *(name for (name,) in by_name)]):
        line = [f"`{name}`"]
        for t in targets:
            losses = [r["loss"][-1][1] for r in by_target.get((name, t), [])]
            line.append(spread(losses).text(4) if losses else NOT_RUN)
        ended = [r["elbo"][-1][1] for r in by_name.get((name,), [])]
        # Enumeration would need 8^8 states per digit.
        missing = "" if name == "exact" else NOT_RUN
        rows.append([*line, spread(ended).text(2) if ended else missing])
    rows.append(["optimum", *(f"{t**2:.4f}" for t in targets), ""])
    header = [*(f"toy: loss, t = {t}" for t in targets), "digits: ELBO, nats"]
    return markdown_table(["estimator", *header], rows)


def report(records: list[Result], planned: list[dict[str, Any]], images: Path) -> None:
    """Print the tables, and draw the curves.

    planned:  the cells of all runs.
    """

    def name_of(cell: dict[str, Any]) -> str:
        return f"{cell['kind']} {cell['estimator']}"

    print(coverage((name_of(r["cell"]) for r in records), map(name_of, planned)), end="\n\n")
    by_kind = {
        kind: [r for r in records if r["cell"]["kind"] == kind]
        for kind in ("variance", "toy", "digits")
    }
    print(variance_table(by_kind["variance"]), end="\n\n")
    print(relaxation_table(by_kind["variance"]), end="\n\n")
    print(learning_table(by_kind["toy"], by_kind["digits"]), end="\n\n")
    panels: dict[str, dict[str, Any]] = {}
    for (name, t), results in group(by_kind["toy"], "estimator", "t").items():
        panels.setdefault(f"toy: loss, t = {t}", {})[name] = curves(results, "loss")
    for (name,), results in group(by_kind["digits"], "estimator").items():
        # The first steps would set the scale.
        steps, mean, error = (part[2:] for part in curves(results, "elbo"))
        panels.setdefault("digits: held-out ELBO", {})[name] = (steps, mean, error)
    for lines in panels.values():
        # Its line is that of leave-one-out.
        lines.pop("control_variate", None)
    picture(images / "reproduce_discrete.png", panels, "step", log_x=False)
