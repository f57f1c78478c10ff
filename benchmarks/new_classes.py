"""How well do classes land that come later, by `partial_fit` with rows of new classes only?

A tenth of the classes, chosen at random, is taken out of the training data with every row of them.
A model is fitted to the rest, and gets the rows that were taken out in one call of `partial_fit`.
Another model is fitted to everything. Both answer the same test rows, among all classes:

old share  accuracy on test rows of the classes that were there from the start, over that of the fit
           to everything.
new share  the same on test rows of the classes that came later.

    python benchmarks/new_classes.py --data DIR

titles: of yso-finna-en as texts, `ExtremeClassifier` with its defaults. sessions: of diginetica,
`SessionRecommender`; a session with an item that was taken out comes later as a whole, and
recall@20 counts beside accuracy. The shares at the top are the worst of all. Without DIR, or with
``--quick``: synthetic titles and sessions.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say, timed
from honest import synthetic_titles
from honest import titles as real_titles
from sessions import diginetica
from sessions import synthetic as synthetic_sessions

from extremax import ExtremeClassifier, SessionRecommender
from extremax.data.sequences import Sequences

SHARE, SEED, K = 0.1, 0, 20

Figures = dict[str, dict[str, float]]


def taken_out(classes: np.ndarray, seed: int = SEED) -> np.ndarray:
    """A tenth of the classes, at least one."""
    n = max(1, round(SHARE * len(classes)))
    return np.random.default_rng(seed).choice(classes, n, replace=False)


def measured(model: ExtremeClassifier, test: Any, truth: np.ndarray, new: np.ndarray) -> Figures:
    """Accuracy and recall@20 on test rows of old and of new classes."""
    hit = model.predict_topk(test, K).labels == truth[:, None]
    is_new = np.isin(truth, new)
    return {
        name: {"accuracy": float(hit[rows, 0].mean()), "recall": float(hit[rows].any(1).mean())}
        for name, rows in (("old", ~is_new), ("new", is_new))
    }


def shares(later: Figures, everything: Figures, keys: tuple[str, ...]) -> dict[str, float]:
    return {
        f"{group}_{key}_share": later[group][key] / everything[group][key]
        for group in ("old", "new")
        for key in keys
    }


def compared(
    make: Callable[[], ExtremeClassifier], everything: tuple, old: tuple, later: tuple,
    test: Any, truth: np.ndarray, new: np.ndarray, keys: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    whole, parts = make(), make()
    seconds = {
        "fit_all_s": timed(lambda: whole.fit(*everything)),
        "fit_old_s": timed(lambda: parts.fit(*old)),
        "partial_fit_s": timed(lambda: parts.partial_fit(*later)),
    }
    of_all, of_parts = (measured(model, test, truth, new) for model in (whole, parts))
    return shares(of_parts, of_all, keys) | seconds | {"later": of_parts, "everything": of_all}


def titles(data: Path | None) -> dict[str, Any]:
    x, y, test, truth = synthetic_titles() if data is None else real_titles(data / "yso-finna-en")
    new = taken_out(np.unique(y))
    known = np.isin(truth, y)
    test, truth = [text for text, k in zip(test, known, strict=True) if k], truth[known]
    is_new = np.isin(y, new)
    old, later = (([x[i] for i in np.flatnonzero(rows)], y[rows]) for rows in (~is_new, is_new))
    return compared(
        lambda: ExtremeClassifier(random_state=0), (x, y), old, later, test, truth, new,
        ("accuracy",),
    )  # fmt: skip


def sessions(data: Path | None) -> dict[str, Any]:
    task = synthetic_sessions(4_000, 500) if data is None else diginetica(data / "diginetica")
    new = taken_out(np.arange(task.n_items))
    known, gone = task.test.target >= 0, set(new.tolist())
    test = [prefix for prefix, k in zip(task.test.lists, known, strict=True) if k]
    old = [s for s in task.sessions if gone.isdisjoint(s)]
    later = [s for s in task.sessions if not gone.isdisjoint(s)]
    return compared(
        lambda: SessionRecommender(random_state=0), (task.sessions,), (old,), (later,),
        Sequences.of(test), task.test.target[known], new, ("accuracy", "recall"),
    )  # fmt: skip


PARTS: dict[str, Callable[[Path | None], dict[str, Any]]] = {"titles": titles, "sessions": sessions}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small synthetic problems")
    parser.add_argument("--data", type=Path, help="folder with yso-finna-en and diginetica")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    data = None if given.quick else given.data
    figures: dict[str, Any] = {}
    for name in given.parts:
        found = figures[name] = PARTS[name](data)
        plain = {key: value for key, value in found.items() if isinstance(value, float)}
        say(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in plain.items()))
    worst = {
        f"{group}_share": min(
            value
            for found in figures.values()
            for key, value in found.items()
            if key.startswith(group) and key.endswith("_share")
        )
        for group in ("old", "new")
    }
    finish(given, worst, figures, data="synthetic" if data is None else str(data.name))


if __name__ == "__main__":
    main()
