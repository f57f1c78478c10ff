"""Tables and pictures of `adversarial_softmax.py`, from its results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _adversarial_data import SMALL
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
    """How many of the final runs there are: of every method on the data sets with a run, and of two
    methods on the small data set."""

    def name(cell: dict[str, Any]) -> str:
        appendix = "" if "seconds" in cell else " (appendix A.2)"
        return f"{cell['data']}, {NAMES[cell['method']]}{appendix}"

    cells = [record["cell"] for record in finals]
    timed = dict.fromkeys(cell["data"] for cell in cells if "seconds" in cell)
    small = {cell["data"] for cell in cells if "seconds" not in cell} or {SMALL}
    wanted = [
        *({"data": data, "method": method, "seconds": 0} for data in timed for method in NAMES),
        *({"data": data, "method": method} for data in small for method in ("uniform", "softmax")),
    ]
    return "Final runs: " + coverage(map(name, cells), seeds * [name(cell) for cell in wanted])


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
    """Figure 1 in numbers: test figures of the best epoch, and how soon a method, and adversarial
    sampling, have the best held-out accuracy of the method. † says that no epoch was better than
    the start."""
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
            *_best_accuracy(runs, method),
        ))  # fmt: skip
    header = ("method", "seeds", "accuracy, %", "log-likelihood", "log-likelihood, T refitted", "T",
              "epochs", "best accuracy after", "adversarial has it after")  # fmt: skip
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


def _best_accuracy(runs: dict[str, list[dict[str, Any]]], method: str) -> tuple[str, str]:
    """When the mean held-out accuracy of a method is highest, and when that of the adversarial one
    is as high."""
    seconds, accuracy, _ = _curve(runs[method], "accuracy")
    after = f"{seconds[accuracy.argmax()]:.0f} s"
    if method == "adversarial" or "adversarial" not in runs:
        return after, ""
    seconds, others, _ = _curve(runs["adversarial"], "accuracy")
    reached = np.flatnonzero(others >= accuracy.max())
    return after, f"{seconds[reached[0]]:.0f} s" if len(reached) else "never"


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
