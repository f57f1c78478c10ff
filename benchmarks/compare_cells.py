"""Does every combination of objective and noise learn? All cells, each for the same few seconds.

With ``--data DIR``: bibtex (bookmark → tag), omniglot (image → character, new drawers) and
diginetica (session prefix → next item). Without it: a synthetic problem. Cells are tuned and
measured as by ``extremax compare``. Each must finish, and must predict held-out rows better than
the class frequencies. ``--out DIR`` stores reports, and resumes an earlier run of the same
command.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say
from _real import features_of

from extremax.comparison import Comparison, Options, Problem, Watch, choose, compare
from extremax.data import clustered, read
from extremax.report.page import write_report

TEST_ROWS = 500
VALIDATION_ROWS = 500


def bibtex(folder: Path) -> Problem:
    train, test = (read(folder / f"{name}.txt.xz", format="xc") for name in ("train", "test"))
    return Problem.split(
        train.features, train.labels, test=(test.features, test.labels), max_test_rows=2500
    )


def omniglot(folder: Path) -> Problem:
    """Pixels; the test rows are the characters of three drawers."""
    with np.load(folder / "omniglot28.npz") as file:
        images = file["X"].reshape(len(file["X"]), -1).astype(np.float32) / 255.0
        labels, train = file["y"], file["drawer"] <= 17
    test = (images[~train], labels[~train])
    return Problem.split(images[train], labels[train], test=test, max_test_rows=TEST_ROWS)


def sessions(data: Path, rows: int) -> Problem:
    """A random sample of the prefixes, so that a few seconds are an epoch or two."""
    task = features_of("diginetica", data)
    sample = np.sort(np.random.default_rng(0).permutation(len(task.labels))[:rows])
    test = (task.test, task.test_labels)
    return Problem.split(
        task.train[sample], task.labels[sample], test=test, max_test_rows=TEST_ROWS
    )


def synthetic(quick: bool) -> Problem:
    n, n_classes, width = (2_000, 60, 16) if quick else (30_000, 3_000, 64)
    features, labels = clustered(n, n_classes, width, noise=0.5)
    return Problem.split(features, labels, max_test_rows=TEST_ROWS)


class Rows(Watch):
    """Prints one line per cell."""

    def result(self, name: str, record: dict[str, Any]) -> None:
        test = record["test"]
        speed = record["examples_per_s"]
        say(
            f"  {name:<38} log-likelihood {test['log_likelihood']:>8.3f}  "
            f"accuracy {test['accuracy']:>7.2%}  rate {record['learning_rate']:<4g} "
            f"{speed or 0:>9,.0f}/s  {record['epochs']:>4} epochs"
            + ("  start kept" if record["start_kept"] else "")
        )

    def left_out(self, name: str, reason: str) -> None:
        say(f"  {name:<38} left out: {reason}")

    def failed(self, name: str, reason: str) -> None:
        say(f"  {name:<38} FAILED: {reason}")


def measure(
    name: str, problem: Problem, given: argparse.Namespace
) -> tuple[Comparison, dict[str, Any]]:
    about, prior = problem.about(), problem.prior()
    say(
        f"{name}: {about['rows']:,} rows, {about['classes']:,} classes; class prior "
        f"{prior['log_likelihood']:.3f}, {prior['accuracy']:.2%}"
    )
    options = Options(
        budget=given.seconds,
        tuning=given.tuning,
        learning_rates=(0.1, 0.3, 1.0),
        regularizations=(0.0,),
        validation_fraction=min(0.2, max(0.05, VALIDATION_ROWS / about["rows"])),
    )
    cells, _ = choose(given.cells, given.negatives)
    folder = given.out / name if given.out else None
    result = compare(problem, cells, options, folder=folder, name=name, watch=Rows())
    if folder is not None and result.final:
        write_report(result, folder)
    figures = {
        name: record["test"] | {k: record[k] for k in ("learning_rate", "examples_per_s", "epochs")}
        for name, record in zip(result.names.values(), result.final.values(), strict=True)
    }
    return result, figures


def tally(result: Comparison) -> dict[str, int]:
    """Count the cells that were tried, those without figures, and those no better than the class
    frequencies.

    Impossible cells are not tried, so a cell that was left out counts as failed.
    """
    unfinished = len(result.failed) + len(result.left_out)
    return {
        "cells": len(result.final) + unfinished,
        "failed": unfinished,
        "below_prior": len(below_prior(result)),
    }


def below_prior(result: Comparison) -> list[str]:
    prior = result.prior["log_likelihood"]
    return [
        name
        for cell, name in result.names.items()
        if not result.final[cell]["test"]["log_likelihood"] > prior
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small synthetic problem")
    parser.add_argument("--data", type=Path, help="folder with bibtex, omniglot and diginetica")
    parser.add_argument("--only", nargs="*", help="names of some of these data")
    parser.add_argument("--cells", default="all", help="as in `extremax compare`")
    parser.add_argument("--seconds", type=float, default=4.0, help="final run per cell")
    parser.add_argument(
        "--tuning", type=float, default=1.0, help="tuning time per cell, in final runs"
    )
    parser.add_argument("--negatives", type=int, default=5, help="classes drawn, m")
    parser.add_argument("--rows", type=int, default=50_000, help="rows of diginetica")
    parser.add_argument("--out", type=Path, help="folder for reports, and to resume from")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    if given.quick:
        given.seconds = min(given.seconds, 0.3)
    tasks: dict[str, Callable[[], Problem]] = {"synthetic": lambda: synthetic(given.quick)}
    if given.data and not given.quick:
        tasks = {
            "bibtex": lambda: bibtex(given.data / "bibtex"),
            "omniglot": lambda: omniglot(given.data / "omniglot"),
            "diginetica": lambda: sessions(given.data, given.rows),
        }
    figures, sizes = {}, {}
    counts = Counter(cells=0, failed=0, below_prior=0)
    for name, load in tasks.items():
        if given.only and name not in given.only:
            continue
        problem = load()
        result, figures[name] = measure(name, problem, given)
        sizes[name] = problem.about()
        counts.update(tally(result))
        figures[name]["class prior"] = result.prior
        for cell in (*result.failed, *result.left_out):
            say(f"  failed: {cell.name}: {cell.reason}")
        say(f"  below the class prior: {', '.join(below_prior(result)) or 'none'}")
    del given.rows
    finish(given, counts, figures, sizes, data=", ".join(figures))


if __name__ == "__main__":
    main()
