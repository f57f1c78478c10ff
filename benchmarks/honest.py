"""Are the probabilities right? Those of a search against exact ones, and all of them against what
came true.

beam error   mean |log p − exact log p| of the best class that a search finds, on test rows; the
             99th percentile and the mean of the signed error stand beside it.
above chance expected calibration error of the most probable class, 15 bins of equal size, less what
             it would be if every probability were right (`extremax.diagnostics.reliability`); for
             titles also in four bands of how frequent the predicted class is in training.
marginal ECE the same error, chance included, of the probabilities that each of the best five labels
             is one of a title's labels, in a model of all labels; chance stands beside it, and the
             error of shares, which are no such probabilities.

    python benchmarks/honest.py --data DIR --parts sparse dense sessions several spelling

sparse: titles of yso-finna-en as texts; dense: the same as 512 features; sessions: diginetica;
several: titles with all their labels; spelling: the misspellings of `examples/spelling.py`, after
`recalibrate` on 5,000 others, since training has none but generated ones.
Without DIR, or with ``--quick``: small synthetic problems.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say
from _real import features_of
from sessions import diginetica
from sessions import synthetic as synthetic_sessions

from extremax import ExtremeClassifier, SessionRecommender
from extremax.data import clustered
from extremax.data.sequences import Sequences
from extremax.diagnostics import reliability

# Test rows whose exact probabilities are computed, and bands of class frequency.
EXACT_ROWS, BANDS = 5_000, 4


def beam(model: ExtremeClassifier, rows: Any, name: str) -> dict[str, float]:
    """Errors of the log-probabilities of a search."""
    found = model.predict_topk(rows[:EXACT_ROWS], 1, search="beam")
    exact = model.predict_log_proba(rows[:EXACT_ROWS], found.labels)[:, 0]
    error = found.log_probs[:, 0] - exact
    inside = np.abs(error) <= found.standard_error
    return {
        f"beam_error_{name}": float(np.abs(error).mean()),
        f"beam_p99_{name}": float(np.quantile(np.abs(error), 0.99)),
        f"beam_bias_{name}": float(error.mean()),
        f"within_standard_error_{name}": float(inside.mean()),
    }


def calibration(
    model: ExtremeClassifier, found: Any, truth: np.ndarray, name: str
) -> dict[str, float]:
    """Expected calibration error above chance, over all rows and by frequency of the class."""
    best, confidence = found.labels[:, 0], np.exp(found.log_probs[:, 0])
    correct = best == truth
    whole = reliability(confidence, correct)
    counts = model.model_.labels.counts[model.model_.labels.encode(best)]
    bands = np.array_split(np.argsort(counts, kind="stable"), BANDS)
    parts = [reliability(confidence[rows], correct[rows]) for rows in bands]
    return {
        f"ece_{name}": whole.error - whole.by_chance,
        f"ece_{name}_worst_band": max(part.error - part.by_chance for part in parts),
    }


def titles(folder: Path) -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    def read(name: str) -> tuple[list[str], np.ndarray]:
        with lzma.open(folder / name, "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        return [row[0] for row in rows], np.array([row[1] for row in rows])

    return *read("train.tsv.xz"), *read("test.tsv.xz")


def synthetic_titles() -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    random = np.random.default_rng(0)
    y = random.integers(6_000, size=30_000)
    words = np.stack([y % 97, y // 97, *random.integers(400, size=(4, len(y)))], 1)
    texts = [" ".join(f"{'abcdef'[i]}{w}" for i, w in enumerate(row)) for row in words]
    labels = y.astype(str)
    return texts[:27_000], labels[:27_000], texts[27_000:], labels[27_000:]


def sparse(data: Path | None) -> dict[str, float]:
    x, y, test, truth = synthetic_titles() if data is None else titles(data / "yso-finna-en")
    model = ExtremeClassifier(random_state=0).fit(x, y)
    figures = beam(model, test, "sparse")
    start = time.perf_counter()
    found = model.predict_topk(test, 1)
    figures["docs_per_s"] = len(test) / (time.perf_counter() - start)
    return figures | calibration(model, found, truth, "titles")


def dense(data: Path | None) -> dict[str, float]:
    if data is None:
        x, y = clustered(30_000, 6_000, 32, seed=0)
        x, y, test = x[:27_000], y[:27_000], x[27_000:]
    else:
        x, y, test, _ = features_of("yso-finna-en", data)
    model = ExtremeClassifier(random_state=0).fit(x, y)
    return beam(model, test, "dense")


def several(data: Path | None) -> dict[str, float]:
    if data is None:
        x, y, test, truth = synthetic_labels()
    else:
        folder = data / "yso-finna-en"
        x, y = all_labels(folder / "train.tsv.xz")
        test, truth = all_labels(folder / "test.tsv.xz")
    model = ExtremeClassifier(random_state=0).fit(x, y)
    found = model.predict_topk(test, 5)
    rows = zip(found.labels.tolist(), map(set, truth), strict=True)
    hits = np.array([[label in labels for label in best] for best, labels in rows])
    marginal = reliability(found.marginals.ravel(), hits.ravel())
    counts = model.model_.labels.counts[model.model_.labels.encode(found.labels.ravel())]
    bands = np.array_split(np.argsort(counts, kind="stable"), BANDS)
    parts = [reliability(found.marginals.ravel()[b], hits.ravel()[b]) for b in bands]
    by_marginal = np.argsort(-found.marginals, axis=1, kind="stable")
    return {
        "marginal_ece": marginal.error,
        "marginal_ece_chance": marginal.by_chance,
        "marginal_ece_worst_band": max(part.error for part in parts),
        "marginal_ece_best_label": reliability(found.marginals[:, 0], hits[:, 0]).error,
        "share_ece": reliability(np.exp(found.log_probs).ravel(), hits.ravel()).error,
        "expected_labels": float(model.expected_labels(test).mean()),
        "labels": float(np.mean([len(set(labels)) for labels in truth])),
        "precision_1": float(hits[:, 0].mean()),
        "precision_1_by_marginal": float(np.take_along_axis(hits, by_marginal, 1)[:, 0].mean()),
        "precision_5": float(hits.mean()),
    }


def all_labels(path: Path) -> tuple[list[str], list[list[str]]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [row[0] for row in rows], [row[2].split() for row in rows]


def synthetic_labels() -> tuple[list[str], list[list[str]], list[str], list[list[str]]]:
    """Three words a text, each of which brings its own label in two of three cases."""
    random = np.random.default_rng(0)
    words = random.integers(300, size=(20_000, 3))
    kept = random.random(words.shape) < 2 / 3
    kept[~kept.any(1), 0] = True
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    labels = [[f"{word}" for word in row[mask]] for row, mask in zip(words, kept, strict=True)]
    return texts[:17_000], labels[:17_000], texts[17_000:], labels[17_000:]


def sessions(data: Path | None) -> dict[str, float]:
    task = synthetic_sessions(4_000, 500) if data is None else diginetica(data / "diginetica")
    model = SessionRecommender(random_state=0).fit(task.sessions)
    found = model.predict_topk(Sequences.of(task.test.lists), 1)
    return calibration(model, found, task.test.target, "sessions")


def spelling(data: Path | None) -> dict[str, float]:
    sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
    import spelling as example

    words, counts = example.read_words(6_000 if data is None else None)
    wrong, right = example.read_misspellings(words)
    n_typos = 60_000 if data is None else 600_000
    typos, labels = example.make_typos(words, counts, wrong, n_typos, seed=0)
    (some, some_right), (wrong, right) = example.divided(wrong, right)
    features = example.word_views(words)
    model = ExtremeClassifier(
        "exact", epochs=1, learning_rate=1.0, validation_fraction=0.02, random_state=0
    )
    model.fit(*example.training_rows(features, words, typos, labels))
    before = calibration(model, model.predict_topk(features.transform(wrong), 1), right, "before")
    model.recalibrate(features.transform(some), some_right)
    found = model.predict_topk(features.transform(wrong), 1)
    return calibration(model, found, right, "spelling") | {
        "spelling_before": before["ece_before"],
        "spelling_loglik": float(model.log_likelihood(features.transform(wrong), right)),
    }


PARTS: dict[str, Callable[[Path | None], dict[str, float]]] = {
    "sparse": sparse, "dense": dense, "sessions": sessions, "several": several,
    "spelling": spelling,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small synthetic problems")
    parser.add_argument("--data", type=Path, help="folder with yso-finna-en and diginetica")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    data = None if given.quick else given.data
    figures: dict[str, float] = {}
    for name in given.parts:
        found = PARTS[name](data)
        say(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()))
        figures |= found
    headline = {
        k: v for k, v in figures.items() if k.startswith(("beam_error", "ece", "marginal_ece"))
    }
    finish(given, headline, figures, data="synthetic" if data is None else str(data.name))


if __name__ == "__main__":
    main()
