"""Tables and the picture of `sequence_gan.py`, from its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _common import Spread, coverage, group, markdown_table, spread
from scipy.interpolate import CubicSpline

from extremax.report import drawing

Result = dict[str, Any]
# What is changed, by the name of the setting; each group has its color in the picture.
GROUPS = {
    "discriminator": "optimal discriminator",
    "rollouts": "rollouts",
    "reward": "reward",
    "warm_up": "steps before the first round",
    "likelihood": "with likelihood",
    "rate": "learning rate",
    "estimator": "estimator",
    "d_units": "units or dropout of D",
    "d_dropout": "units or dropout of D",
}
# Temperatures of maximum likelihood and of adversarial generators in the table, and lines of both
# in the picture.
SHOWN = (1.0, 0.95, 0.9, 0.85, 0.8)
COOLED = (1.0, 0.8)
LINE, SHORT_LINE = (*SHOWN, 0.7), SHOWN[:3]
ABOUT = ("problem", "seed", "method")


def at(result: Result, temperature: float) -> dict[str, float]:
    """The evaluation at a temperature."""
    return next(p for p in result["tempered"] if p["temperature"] == temperature)


def against_temperature(point: dict[str, float], likelihood: Result) -> float:
    """Oracle NLL minus that of maximum likelihood at the temperature of equal held-out NLL.

    Both NLLs are smooth in the temperature, so cubic splines connect the measured ones; straight
    lines would lie above the convex curve. Only temperatures up to the one of the lowest held-out
    NLL count; below that NLL, the comparison is with that temperature, and beyond the curve with
    its end.
    """
    curve = sorted((p["temperature"], p["held_out"], p["oracle"]) for p in likelihood["tempered"])
    temperatures, *numbers = np.array(curve).T
    fine = np.linspace(temperatures[0], temperatures[-1], 2001)
    held_out, oracle = (CubicSpline(temperatures, number)(fine) for number in numbers)
    cooler = slice(held_out.argmin(), None, -1)
    return point["oracle"] - float(np.interp(point["held_out"], held_out[cooler], oracle[cooler]))


def label(change: dict[str, Any]) -> str:
    """A setting in words: what differs from the defaults."""
    return ", ".join(f"{key} = {value}" for key, value in change.items()) or "as described"


def name_of(cell: dict[str, Any]) -> str:
    """The problem, the method and the setting of a run."""
    change = {key: value for key, value in cell.items() if key not in ABOUT}
    method = label(change) if cell["method"] == "adversarial" else cell["method"]
    return f"{cell['problem']}: {method}"


def settings(records: list[Result], problem: str) -> dict[str, tuple[dict[str, Any], list[Result]]]:
    """Adversarial settings by label: (what is changed, results)."""
    found: dict[str, tuple[dict[str, Any], list[Result]]] = {}
    for record in records:
        cell = record["cell"]
        if cell["problem"] == problem and cell["method"] == "adversarial":
            change = {key: value for key, value in cell.items() if key not in ABOUT}
            result = record["result"] | {"seed": cell["seed"]}
            found.setdefault(label(change), (change, []))[1].append(result)
    return found


def likelihoods(records: list[Result], problem: str) -> dict[int, Result]:
    """Results of maximum likelihood by seed."""
    return {
        record["cell"]["seed"]: record["result"]
        for record in records
        if record["cell"]["problem"] == problem and record["cell"]["method"] != "adversarial"
    }


def table(records: list[Result], problem: str) -> str:
    likelihood = likelihoods(records, problem)
    rows = [row("the oracle", [r["of_oracle"] for r in likelihood.values()])]
    for temperature in SHOWN:
        points = [at(result, temperature) for result in likelihood.values()]
        rows.append(row(f"maximum likelihood, temperature {temperature:g}", points))
    for name, (_, results) in settings(records, problem).items():
        points = [at(result, 1.0) for result in results]
        gaps = [
            spread(against_temperature(at(r, t), likelihood[r["seed"]]) for r in results)
            for t in COOLED
        ]
        loss = spread(result["discriminator"]["held_out"] for result in results)
        rows.append(row(f"adversarial: {name}", points, *gaps, loss))
    header = (
        "generator", "seeds", "oracle NLL", "held-out NLL", "KL(G‖p)", "loss of the optimal D",
        "gap to maximum likelihood", f"gap at temperature {COOLED[1]:g}", "loss of D at the start",
    )  # fmt: skip
    return markdown_table(header, rows)


def row(name: str, points: list[dict[str, float]], *more: Spread) -> list[Any]:
    figures = ("oracle", "held_out", "reverse_kl", "optimal_loss")
    cells = [spread(point[key] for point in points) for key in figures]
    empty = [""] * (len(COOLED) + 1 - len(more))
    return [name, len(points), *(cell.text() for cell in (*cells, *more)), *empty]


def draw(path: Path, records: list[Result], problems: list[str]) -> None:
    """Held-out NLL against oracle NLL, both minus those of maximum likelihood with the same seed.

    Lines go from temperature 1 to the lowest of `LINE` or `SHORT_LINE`.
    """
    names = dict.fromkeys(f"adversarial, {name}" for name in GROUPS.values())
    shades = (*drawing.LINE_COLORS[1:], "#882255", "#999933")
    colors = dict(zip(names, shades, strict=True))
    with drawing.load_matplotlib().rc_context(drawing.STYLE):
        figure = drawing.new_figure(4.4 * len(problems), 4.0, layout="constrained")
        handles: dict[str, Any] = {}
        row_of_axes = figure.subplots(1, len(problems), squeeze=False)[0]
        for axes, problem in zip(row_of_axes, problems, strict=True):
            likelihood = likelihoods(records, problem)
            before = [result | {"seed": seed} for seed, result in likelihood.items()]
            handles["maximum likelihood, temperature 1 to 0.7"] = cooled_line(
                axes, before, likelihood, LINE, drawing.LINE_COLORS[0]
            )
            for change, results in settings(records, problem).values():
                name = "adversarial, " + (GROUPS[next(iter(change))] if change else "as described")
                color = colors.get(name, drawing.INK)
                if not change or "discriminator" in change:
                    cooled_line(axes, results, likelihood, SHORT_LINE, color, linestyle=":")
                point = bars(axes, results, likelihood, 1.0, color)
                handles[name] = axes.scatter(*point, s=22, color=color, zorder=3)
            drawing.frame(axes, problem, "oracle NLL of generated sequences, change", grid="both")
            axes.set_ylabel("NLL of held-out sequences, change")
            axes.locator_params("x", nbins=6)
        figure.legend(
            handles.values(),
            handles,
            loc="outside upper left",
            ncols=2,
            frameon=False,
        )
    drawing.save_figure(figure, path)
    print(path, flush=True)


def cooled_line(
    axes: Any, results: list[Result], likelihood: dict[int, Result],
    temperatures: tuple[float, ...], color: str, **options: Any,
) -> Any:  # fmt: skip
    points = [bars(axes, results, likelihood, t, color) for t in temperatures]
    return drawing.plot_line(axes, *zip(*points, strict=True), color=color, **options)


def bars(
    axes: Any, results: list[Result], likelihood: dict[int, Result], temperature: float, color: str
) -> tuple[float, float]:
    """Draw the standard errors of both changes at a temperature, and return their means."""
    x, y = (
        spread(at(r, temperature)[key] - at(likelihood[r["seed"]], 1.0)[key] for r in results)
        for key in ("oracle", "held_out")
    )
    axes.errorbar(
        x.mean, y.mean, np.nan_to_num(y.error), np.nan_to_num(x.error), color=color, linewidth=0.8
    )
    return x.mean, y.mean


def report(records: list[Result], planned: list[dict[str, Any]], images: Path) -> None:
    """Print a table per problem, and draw the picture.

    planned:  the cells of all runs.
    """
    print(coverage((name_of(r["cell"]) for r in records), map(name_of, planned)) + "\n")
    problems = [problem for (problem,) in group(records, "problem")]
    for problem in problems:
        print(f"### {problem}\n\n{table(records, problem)}\n", flush=True)
    draw(images / "reproduce_sequence_gan.png", records, problems)
