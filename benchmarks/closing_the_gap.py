"""How close does sampled softmax come to exact softmax with few classes per example?

Held-out accuracy and log-likelihood of the best sampled cell against exact softmax on the same
features; both are tuned on validation rows and trained for as long as they need. With ``--data
DIR``: yso-finna-en (title → subject, single label, 512 dimensions). Without it: a synthetic
problem.

``cost_share`` is (1 + m)/C, the number of scores computed per training example relative to exact
softmax. ``tree_share``, in the figures, is the additional cost of drawing from the noise tree in
the same unit.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say
from _real import features_of

from extremax.comparison import Cell, Options, Problem, Watch, choose, compare
from extremax.data import clustered


def titles(data: Path, rows: int | None) -> Problem:
    """All rows, or a sample of ``rows`` of them."""
    task = features_of("yso-finna-en", data)
    train, labels = task.train, task.labels
    if rows is not None and rows < len(labels):
        sample = np.sort(np.random.default_rng(0).permutation(len(labels))[:rows])
        train, labels = train[sample], labels[sample]
    return Problem.split(
        train, labels, test=(task.test, task.test_labels), max_test_rows=len(task.test_labels)
    )


def synthetic(quick: bool) -> Problem:
    n, n_classes, width = (4_000, 1_000, 32) if quick else (100_000, 10_000, 128)
    features, labels = clustered(n, n_classes, width, noise=0.5)
    return Problem.split(features, labels, test_fraction=0.2)


def cost_share(cell: Cell, problem: Problem) -> float:
    """Scores computed per training example, relative to exact softmax."""
    return 1.0 if cell.noise is None else (1 + cell.n_negatives) / problem.n_classes


def tree_share(cell: Cell, components: int, problem: Problem) -> float:
    """Additional cost of the noise tree in the same unit, where a node costs k/K of a score.

    Each draw, each log q of a draw by the other part of a mixture, and log q of the true class
    is one walk.
    """
    if cell.noise not in ("tree", "mixture"):
        return 0.0
    n_classes, width = problem.n_classes, problem.features.shape[1]
    walk = math.ceil(math.log2(n_classes)) * min(components, width) / width
    return walk * (1 + cell.n_negatives) / n_classes


class Rounds(Watch):
    """Prints one line per round of tuning and per final run."""

    current = ""

    def began(self, what: str, seconds: float) -> None:
        if what != self.current:
            say(f"  {what} ({seconds:.1f} s each); about {self.left:.0f} s left")
        self.current = what


def measure(
    cells: list[Cell], problem: Problem, options: Options, folder: Path | None
) -> dict[Cell, dict[str, Any]]:
    result = compare(problem, cells, options, folder=folder, watch=Rounds())
    for cell in result.failed:
        raise SystemExit(f"{cell.name} failed: {cell.reason}")
    for cell, record in result.final.items():
        test = record["test"]
        say(
            f"{_name(cell)}: accuracy {test['accuracy']:.2%}, "
            f"log-likelihood {test['log_likelihood']:.3f} on test rows "
            f"({record['accuracy']:.2%}, {record['log_likelihood']:.3f} on validation rows), "
            f"{record['epochs']} epochs, rate {record['learning_rate']:g}, λ "
            f"{record['regularization']:g}"
        )
    return result.final


def _name(cell: Cell) -> str:
    return cell.name if cell.noise is None else f"{cell.name}, m = {cell.n_negatives}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small synthetic problem")
    parser.add_argument("--data", type=Path, help="folder with yso-finna-en")
    parser.add_argument("--rows", type=int, help="use a sample of the rows")
    parser.add_argument("--seconds", type=float, help="per sampled cell: 900, synthetic 20")
    parser.add_argument("--exact-seconds", type=float, help="exact softmax: 3600, synthetic 60")
    parser.add_argument("--tuning", type=float, default=0.7, help="tuning time, as a multiple")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.1, 0.3, 1.0])
    parser.add_argument("--penalties", type=float, nargs="*", default=[0.0, 1e-4])
    parser.add_argument("--components", type=int, default=64, help="dimensions of the tree")
    parser.add_argument("--cells", default="sampled_softmax×mixture@200", help="sampled cells")
    parser.add_argument("--out", type=Path, help="folder to resume from")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    if given.quick:
        given.seconds = given.exact_seconds = 1.0
        given.components, given.cells = 8, "sampled_softmax×mixture@8"
    real = given.data is not None and not given.quick
    given.seconds = given.seconds or (900.0 if real else 20.0)
    given.exact_seconds = given.exact_seconds or (3600.0 if real else 60.0)
    problem = titles(given.data, given.rows) if real else synthetic(given.quick)
    name = "yso-finna-en" if real else "synthetic"
    about = problem.about()
    say(f"{name}: {about['rows']:,} rows, {about['classes']:,} classes")
    records: dict[Cell, dict[str, Any]] = {}
    for cells, seconds in ((given.cells, given.seconds), ("exact", given.exact_seconds)):
        options = Options(
            budget=seconds,
            tuning=given.tuning,
            learning_rates=tuple(given.rates),
            regularizations=tuple(given.penalties),
            tree_components=given.components,
            validation_fraction=0.2 if given.quick else 0.02,
        )
        folder = given.out / cells.partition(",")[0] if given.out else None
        records |= measure(choose(cells, 5)[0], problem, options, folder)
    exact_cell = next(cell for cell in records if cell.noise is None)
    exact = records.pop(exact_cell)["test"]
    # Chosen on validation rows.
    trained = [cell for cell in records if not records[cell]["start_kept"]] or list(records)
    best = max(trained, key=lambda cell: records[cell]["log_likelihood"])
    sampled = records[best]["test"]
    headline = {
        "accuracy_ratio": sampled["accuracy"] / exact["accuracy"],
        "loglik_gap": exact["log_likelihood"] - sampled["log_likelihood"],
        "cost_share": cost_share(best, problem),
    }
    figures = {
        _name(cell): record["test"]
        | {key: record[key] for key in ("learning_rate", "regularization", "epochs", "seconds")}
        | {
            "cost_share": cost_share(cell, problem),
            "tree_share": tree_share(cell, given.components, problem),
        }
        for cell, record in records.items()
    }
    given.__dict__.pop("rows")
    finish(given, headline, figures | {"exact": exact}, about, data=name)


if __name__ == "__main__":
    main()
