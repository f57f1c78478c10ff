"""Does adversarial noise pay off? Accuracy and log-likelihood at equal training time.

Negative sampling with noise from the tree against uniform and frequency noise. All else is equal:
the features, the start, the seconds (which include fitting the tree), and the choice of the
learning rate by held-out log-likelihood. With ``--data DIR``: diginetica (session prefix → next
item) and yso-finna-en (title → subject, single label); test files are used only at the end. Without
it: a synthetic problem.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say
from _real import Task, features_of

from extremax import ExtremeClassifier
from extremax.data import clustered
from extremax.noise import TreeNoise

LEARNING_RATES = (0.3, 1.0)
TEST_ROWS = 20_000


def synthetic(quick: bool) -> Task:
    n, n_classes, width = (30_000, 3_000, 64) if quick else (300_000, 30_000, 256)
    features, labels = clustered(n, n_classes, width, noise=0.5)
    order = np.random.default_rng(0).permutation(n)
    train, test = order[n // 10 :], order[: n // 10]
    return Task(features[train], labels[train], features[test], labels[test])


def measure(task: Task, seconds: float, components: int) -> dict[str, dict[str, float]]:
    """Test figures of each noise, at the learning rate with the best held-out log-likelihood."""
    sample = np.random.default_rng(0).permutation(len(task.test))[:TEST_ROWS]
    results = {}
    for name in ("adversarial", "uniform", "frequency"):
        best: tuple[float, Any] = (-np.inf, None)
        for rate in LEARNING_RATES:
            model = ExtremeClassifier(
                noise=TreeNoise(components) if name == "adversarial" else name,
                learning_rate=rate,
                max_seconds=seconds,
                epochs=10_000,
                patience=10_000,
                validation_fraction=0.05,
                random_state=0,
            ).fit(task.train, task.labels)
            likelihood = max(record["log_likelihood"] for record in model.history_)
            if likelihood > best[0]:
                best = (likelihood, model)
        chosen = best[1]
        test = chosen.evaluate(task.test[sample], task.test_labels[sample])
        results[name] = {
            "accuracy": test.accuracy,
            "log_likelihood": test.log_likelihood,
            "learning_rate": chosen.learning_rate,
            "epochs": len(chosen.history_),
            "seconds": chosen.history_[-1]["seconds"],
        }
        if name == "adversarial":
            results[name]["sharpness"] = chosen.model_.noise.sharpness_
        say(
            f"  {name:<12} accuracy {test.accuracy:.2%}, log-likelihood "
            f"{test.log_likelihood:.3f}, {len(chosen.history_)} epochs, "
            f"learning rate {chosen.learning_rate}"
        )
    return results


def gains(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """Adversarial noise against the better of the two others, in each figure."""
    others = [results["uniform"], results["frequency"]]
    own = results["adversarial"]
    return {
        "accuracy_gain": own["accuracy"] / max(o["accuracy"] for o in others),
        "loglik_gain": own["log_likelihood"] - max(o["log_likelihood"] for o in others),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small synthetic problem")
    parser.add_argument("--data", type=Path, help="folder with diginetica and yso-finna-en")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time per noise")
    parser.add_argument("--components", type=int, default=64, help="dimensions of the tree")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    if given.quick:
        given.seconds, given.components = 3.0, 16
    tasks: dict[str, Any] = {"synthetic": lambda: synthetic(given.quick)}
    if given.data and not given.quick:
        tasks = {
            name: partial(features_of, name, given.data) for name in ("diginetica", "yso-finna-en")
        }
    # Compile the kernels before training is timed.
    for noise in ("tree", "uniform", "frequency"):
        rows = np.random.default_rng(0).standard_normal((1000, 8), dtype=np.float32)
        ExtremeClassifier(noise=noise, epochs=1).fit(rows, np.arange(1000) % 20)
    figures, each, sizes = {}, {}, {}
    for name, load in tasks.items():
        task = load()
        n_classes = len(np.unique(task.labels))
        say(f"{name}: {len(task.labels):,} rows, {n_classes:,} classes, {given.seconds:g} s each")
        figures[name] = measure(task, given.seconds, given.components)
        each[name] = gains(figures[name])
        figures[name] |= each[name]
        sizes[name] = {
            "rows": len(task.labels), "classes": n_classes, "features": task.train.shape[1],
        }  # fmt: skip
    headline = {key: min(g[key] for g in each.values()) for key in ("accuracy_gain", "loglik_gain")}
    finish(given, headline, figures, sizes, data=", ".join(tasks))


if __name__ == "__main__":
    main()
