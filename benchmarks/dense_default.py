"""What do the defaults on dense rows give up against the best that hours of tuning found?

The defaults of `ExtremeClassifier` against exact softmax for 900 s and negative sampling with the
tree, on titles (yso-finna-en, 22,649 subjects, 512 features) and sessions (diginetica, 43,066
items, 256 features), two threads. Each figure is on test rows, the worse of both data:

accuracy_share  accuracy of the default over the best accuracy of the others
loglik_gap      best log-likelihood of the others less that of the default
time_share      seconds of the default over those of the slowest of the others that is best at
                something

    python benchmarks/dense_default.py --data DIR

Without DIR, or with ``--quick``: small synthetic problems.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say
from _real import features_of

from extremax import ExtremeClassifier
from extremax.data import clustered

NAMES = "yso-finna-en", "diginetica"


def measured(name: str, model: ExtremeClassifier, task: tuple[np.ndarray, ...]) -> dict[str, float]:
    x, y, test, truth = task
    start = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - start
    found = model.evaluate(test, truth)
    say(
        f"{name}: accuracy {found.accuracy:.2%}, log-likelihood {found.log_likelihood:.3f}, "
        f"{seconds:.0f} s, {len(model.history_)} epochs"
    )
    return {"accuracy": found.accuracy, "loglik": found.log_likelihood, "seconds": seconds}


def compared(task: tuple[np.ndarray, ...], seconds: float, large: bool) -> dict[str, Any]:
    common: dict[str, Any] = {"random_state": 0, "n_jobs": 2}
    if not large:
        # So small that exact softmax would be the default.
        common["max_seconds"] = 1e-3
    default = measured("default", ExtremeClassifier(**common), task)
    common.pop("max_seconds", None)
    others = {
        "exact": ExtremeClassifier("exact", epochs=100, max_seconds=seconds, **common),
        "negative sampling, tree": ExtremeClassifier("negative_sampling", "tree", **common),
    }
    found = {name: measured(name, model, task) for name, model in others.items()}
    best = {key: max(found.values(), key=lambda one: one[key]) for key in ("accuracy", "loglik")}
    return {
        "accuracy_share": default["accuracy"] / best["accuracy"]["accuracy"],
        "loglik_gap": best["loglik"]["loglik"] - default["loglik"],
        "time_share": default["seconds"] / max(one["seconds"] for one in best.values()),
        "default": default,
        "others": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small synthetic problems")
    parser.add_argument("--data", type=Path, help="folder with yso-finna-en and diginetica")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seconds", type=float, default=900.0, help="of exact softmax")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    data = None if given.quick else given.data
    figures: dict[str, dict[str, Any]] = {}
    for seed, name in enumerate(given.only):
        if data is None:
            x, y = clustered(6_000, 300, 16, seed=seed)
            task: tuple[np.ndarray, ...] = x[:5_000], y[:5_000], x[5_000:], y[5_000:]
            figures[name] = compared(task, 2.0, large=False)
        else:
            say(name)
            figures[name] = compared(tuple(features_of(name, data)), given.seconds, large=True)
    headline = {
        "accuracy_share": min(found["accuracy_share"] for found in figures.values()),
        "loglik_gap": max(found["loglik_gap"] for found in figures.values()),
        "time_share": max(found["time_share"] for found in figures.values()),
    }
    finish(given, headline, figures, data="synthetic" if data is None else ", ".join(given.only))


if __name__ == "__main__":
    main()
