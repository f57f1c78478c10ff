"""How fast does each method learn? Held-out figures against training time, with each method tuned.

Adversarial, uniform and frequency negative sampling, NCE, augment & reduce, one-vs-each and exact
softmax, run by ``extremax compare``: the comparison of Bamler & Mandt 2020, figure 1, with exact
softmax added. With ``--data DIR``: diginetica and yso-finna-en (single label). Without it: a
synthetic problem. ``--out DIR`` stores the reports, and resumes from them.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import finish, say
from _real import folder_of

from extremax.data import clustered

CELLS = (
    "negative_sampling×tree,negative_sampling×uniform,negative_sampling×frequency,nce×frequency,"
    "augment_reduce×uniform,one_vs_each×uniform,exact"
)
# Figures of a cell in the last line.
SHOWN = ("accuracy", "log_likelihood", "epochs", "learning_rate", "regularization")


def synthetic(folder: Path, quick: bool) -> Path:
    n, n_classes, width = (3_000, 200, 16) if quick else (100_000, 10_000, 128)
    features, labels = clustered(n, n_classes, width, noise=0.5)
    tenth = n // 10
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", features[tenth:]), ("test", features[:tenth])):
        np.save(folder / f"{name}.npy", rows)
    np.save(folder / "labels.npy", labels[tenth:])
    np.save(folder / "test_labels.npy", labels[:tenth])
    return folder


def compare(features: Path, out: Path, given: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Return the rows of final.csv by cell."""
    command = [
        sys.executable, "-m", "extremax", "compare", str(features / "train.npy"),
        "--labels", str(features / "labels.npy"),
        "--test", str(features / "test.npy"), "--test-labels", str(features / "test_labels.npy"),
        "--test-rows", "10000", "--validation-fraction", "0.2" if given.quick else "0.01",
        "--cells", CELLS, "--budget", str(given.seconds), "--tuning", str(given.tuning),
        "--learning-rates", "0.1,0.3,1", "--regularizations", "0",
        "--tree-components", str(given.components), "-o", str(out),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    with (out / "final.csv").open(newline="", encoding="utf-8") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small synthetic problem")
    parser.add_argument("--data", type=Path, help="folder with diginetica and yso-finna-en")
    parser.add_argument("--only", nargs="*", help="names of some of these data")
    parser.add_argument("--seconds", type=float, default=120.0, help="final run per cell")
    parser.add_argument(
        "--tuning", type=float, default=0.6, help="tuning time per cell, in final runs"
    )
    parser.add_argument("--components", type=int, default=64, help="dimensions of the tree")
    parser.add_argument("--out", type=Path, help="folder for reports, and to resume from")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    if given.quick:
        given.seconds, given.components = 1.0, 8
    with tempfile.TemporaryDirectory() as scratch:
        out = given.out or Path(scratch) / "reports"
        if given.data and not given.quick:
            names = [n for n in ("diginetica", "yso-finna-en") if not given.only or n in given.only]
            folders = {name: folder_of(name, given.data) for name in names}
        else:
            folders = {"synthetic": synthetic(Path(scratch) / "synthetic", given.quick)}
        figures = {}
        for name, folder in folders.items():
            say(f"{name}:")
            rows = compare(folder, out / name, given)
            figures[name] = {c: {k: float(row[k]) for k in SHOWN} for c, row in rows.items()}
    headline = {"cells": sum(len(rows) for rows in figures.values())}
    finish(given, headline, figures, data=", ".join(figures))


if __name__ == "__main__":
    main()
