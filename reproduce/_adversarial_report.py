"""Tables and pictures of `adversarial_softmax.py`, from its results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import (
    Spread,
    coverage,
    group,
    markdown_table,
    mean_curve,
    picture,
    read_results,
    spread,
)

NAMES = {
    "adversarial": "adversarial",
    "uniform": "uniform",
    "frequency": "frequency",
    "nce": "NCE",
    "nce_frequencies": "NCE from log frequencies",
    "augment_reduce": "augment & reduce",
    "one_vs_each": "one-vs-each",
    "softmax": "full softmax",
}
Records = list[dict[str, Any]]


def write_report(file: Path, images: Path, seeds: int) -> None:
    """Print the tables, store them in report.md beside the results, and draw the curves.

    seeds:  the planned repetitions of every final run.
    """
    finals = final_runs(read_results(file).values())
    # Runs that ended by patience rather than by seconds are those of appendix A.2.
    timed = [record for record in finals if "seconds" in record["cell"]]
    sections = [_coverage(finals, seeds), "## Hyperparameters", settings_table(finals)]
    for (data,), records in _by_data(timed).items():
        sections += [f"## {data}", results_table(records), ablation_table(records)]
        _draw(images / f"reproduce_adversarial_{data}.png", records)
    for (data,), records in _by_data([r for r in finals if r not in timed]).items():
        sections += [f"## {data}", small_table(records)]
    text = "\n\n".join(sections) + "\n"
    (file.parent / "report.md").write_text(text, encoding="utf-8")
    print(text)


def final_runs(records: Iterable[dict[str, Any]]) -> Records:
    """The final runs that did not diverge; of several for a seed, as after another tuning, the
    last."""
    found = {}
    for record in records:
        cell = record["cell"]
        if cell["phase"] == "final" and "diverged" not in record["result"]:
            found[cell["data"], cell["method"], cell["seed"], "seconds" in cell] = record
    return list(found.values())


def _coverage(finals: Records, seeds: int) -> str:
    """The final runs that there are, of every method on each data set with a run."""

    def name(record: dict[str, Any]) -> str:
        return f"{record['cell']['data']}: {NAMES[record['cell']['method']]}"

    timed = dict.fromkeys(r["cell"]["data"] for r in finals if "seconds" in r["cell"])
    wanted = [f"{data}: {method}" for data in timed for method in NAMES.values()]
    small = {name(r) for r in finals if "seconds" not in r["cell"]}
    return "Final runs: " + coverage(map(name, finals), seeds * [*wanted, *sorted(small)])


def _by_data(records: Records) -> dict[tuple[str], Records]:
    found: dict[tuple[str], Records] = {}
    for record in records:
        found.setdefault((record["cell"]["data"],), []).append(record)
    return found


def settings_table(records: Records) -> str:
    """Table 1: sizes, and the rate and the penalty of each method."""
    rows = []
    for (data, method, rate, penalty), results in group(
        records, "data", "method", "rate", "penalty"
    ).items():
        sizes = results[0]["sizes"]
        rows.append((
            data, f"{sizes['rows']:,}", f"{sizes['classes']:,}", sizes["features"], NAMES[method],
            f"{rate:g}", f"{penalty:g}",
        ))  # fmt: skip
    return markdown_table(("data", "N", "C", "K", "method", "ρ", "λ"), sorted(rows))


def results_table(records: Records) -> str:
    """Figure 1 in numbers: test figures after the whole budget, and how soon the adversarial method
    has the held-out accuracy that a method ends with. † says that no epoch was better than the
    start."""
    rows = []
    runs = _by_method(records)
    for method, results in runs.items():
        figures = _figures(results, "as_is")
        rows.append((
            NAMES[method] + " †" * all(result["start_kept"] for result in results),
            len(results),
            *_percent_and_nats(figures),
            _of(figures, "refitted_log_likelihood").text(),
            _of(figures, "temperature").text(2),
            f"{np.mean([result['examples'] / result['sizes']['rows'] for result in results]):.2g}",
            _overtaken(runs, method),
        ))  # fmt: skip
    header = ("method", "seeds", "accuracy, %", "log-likelihood", "log-likelihood, T refitted", "T",
              "epochs", "adversarial has its accuracy after")  # fmt: skip
    return markdown_table(header, rows)


def ablation_table(records: Records) -> str:
    """Predictions with and without log q, of methods whose logits contain it."""
    rows = []
    for method, results in _by_method(records).items():
        for key, name in (("as_is", "ξ + log q"), ("without_log_q", "ξ")):
            if "without_log_q" in results[0]["predictions"]:
                figures = _figures(results, key)
                refitted = _of(figures, "refitted_log_likelihood").text()
                temperature = _of(figures, "temperature").text(2)
                rows.append(
                    (NAMES[method], name, *_percent_and_nats(figures), refitted, temperature)
                )
    header = ("method", "logits", "accuracy, %", "log-likelihood", "log-likelihood, T refitted",
              "T")  # fmt: skip
    return markdown_table(header, rows)


def small_table(records: Records) -> str:
    """Appendix A.2."""
    rows = [
        (NAMES[method], len(results), *_percent_and_nats(_figures(results, "as_is")))
        for method, results in _by_method(records).items()
    ]
    return markdown_table(("method", "seeds", "accuracy, %", "log-likelihood"), rows)


def _by_method(records: Records) -> dict[str, list[dict[str, Any]]]:
    """Results in the order of `NAMES`."""
    found = group(records, "method")
    return {method: found[method,] for method in NAMES if (method,) in found}


def _figures(results: list[dict[str, Any]], key: str) -> list[dict[str, float]]:
    return [result["predictions"][key] for result in results]


def _of(figures: Sequence[dict[str, float]], key: str) -> Spread:
    return spread(figure[key] for figure in figures)


def _percent_and_nats(figures: Sequence[dict[str, float]]) -> tuple[str, str]:
    return _of(figures, "accuracy").text(2, factor=100.0), _of(figures, "log_likelihood").text()


Curve = tuple[np.ndarray, np.ndarray, np.ndarray]


def _curve(results: list[dict[str, Any]], key: str, factor: float = 1.0) -> Curve:
    """The mean curve without its first thousandth, when nothing has been learned."""
    curves = []
    for result in results:
        points = [(point["seconds"], factor * point[key]) for point in result["curve"]]
        curves.append([point for point in points if point[0] >= points[-1][0] / 1000.0])
    return mean_curve(curves)


def _overtaken(runs: dict[str, list[dict[str, Any]]], method: str) -> str:
    """When the mean curve of the adversarial method reaches the best mean of another one."""
    if method == "adversarial" or "adversarial" not in runs:
        return ""
    seconds, accuracy, _ = _curve(runs["adversarial"], "accuracy")
    reached = np.flatnonzero(accuracy >= _curve(runs[method], "accuracy")[1].max())
    return f"{seconds[reached[0]]:.0f} s" if len(reached) else "never"


def _draw(path: Path, records: Records) -> None:
    titles = {
        "Held-out log-likelihood (nats)": ("log_likelihood", 1.0),
        "Held-out accuracy (%)": ("accuracy", 100.0),
    }
    runs = _by_method(records)
    panels = {
        title: {NAMES[method]: _curve(results, *what) for method, results in runs.items()}
        for title, what in titles.items()
    }
    picture(path, panels, "seconds of training")
