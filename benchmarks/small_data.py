"""Few rows or few classes: extremax against the classifiers of scikit-learn.

Ten tasks from what scikit-learn, matplotlib and Python themselves carry, dense rows and texts (as
TF-IDF, the same rows for every method), with defaults of extremax, as means of some random splits
into three quarters for training and one for testing. Test rows of classes that training lacks are
left out.

wins                tasks, of ten, in which the log-loss of extremax is the least of all that give
                    probabilities: LogisticRegression with C = 1 and 10, SGDClassifier, and the ten
                    nearest neighbors, smoothed with the class frequencies
worst_accuracy_gap  the largest gap of accuracy to the best of all, LinearSVC and the single nearest
                    neighbor included

    python benchmarks/small_data.py [--only digits glyphs] [--splits 5]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import sysconfig
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import finish, say
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from extremax import ExtremeClassifier

Task = tuple[Any, np.ndarray]
SPLITS, TEST_SHARE = 5, 0.25


# Tasks ------------------------------------------------------------------------------------------


def digits() -> Task:
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def blobs() -> Task:
    from sklearn.datasets import make_blobs

    return make_blobs(4_000, 20, centers=200, cluster_std=4.0, random_state=0)


def clusters() -> Task:
    from sklearn.datasets import make_classification

    return make_classification(
        6_000, 40, n_informative=12, n_redundant=10, n_classes=50, n_clusters_per_class=2,
        class_sep=1.5, random_state=0,
    )  # fmt: skip


def tiles() -> Task:
    """Patches of 8 × 8 pixels of two photographs, to the tile of 64 × 64 that each is from."""
    from sklearn.datasets import load_sample_images

    random, rows, labels = np.random.default_rng(0), [], []
    for number, image in enumerate(load_sample_images().images):
        top = random.integers(image.shape[0] - 8, size=5_000)
        left = random.integers(image.shape[1] - 8, size=5_000)
        gray = image.mean(2)
        rows += [gray[i : i + 8, j : j + 8].ravel() for i, j in zip(top, left, strict=True)]
        labels.append(number * 1_000 + top // 64 * 20 + left // 64)
    return np.array(rows) / 255.0, np.concatenate(labels)


def glyphs() -> Task:
    """Characters in 16 × 16 pixels, rendered in the fonts of matplotlib, to the character."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    drawn: dict[int, list[np.ndarray]] = {}
    for path in sorted((Path(get_data_path()) / "fonts" / "ttf").glob("DejaVu*.ttf")):
        if "Display" in path.name:
            continue
        font = ImageFont.truetype(str(path), 14)
        missing = _picture(font, "￿", Image, ImageDraw)
        for code in range(0x21, 0x2000):
            if unicodedata.category(chr(code))[0] in "LNPS":
                picture = _picture(font, chr(code), Image, ImageDraw)
                if (picture != missing).any():
                    drawn.setdefault(code, []).append(picture)
    kept = {code: pictures for code, pictures in drawn.items() if len(pictures) >= 4}
    labels = np.repeat(list(kept), [len(pictures) for pictures in kept.values()])
    return np.concatenate([np.array(p) for p in kept.values()]), labels


def _picture(font: Any, character: str, Image: Any, ImageDraw: Any) -> np.ndarray:
    image = Image.new("L", (16, 20))
    ImageDraw.Draw(image).text((2, 1), character, fill=255, font=font)
    return np.asarray(image, np.float32).ravel() / 255.0


def _library() -> Iterator[tuple[str, str]]:
    """(module, source) of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(parts):
            yield ".".join(parts), path.read_text(encoding="utf-8", errors="replace")


def lines() -> Task:
    """Lines of code of the standard library, to their module."""
    rows = [
        (line.strip(), name)
        for name, source in _library()
        for line in source.splitlines()
        if len(re.findall(r"\w+", line)) >= 4
    ]
    return _sampled(rows, 20_000, 20)


def docstrings() -> Task:
    """Docstrings of the standard library, to their top-level package."""
    return _sampled([(text, name.split(".")[0]) for name, text in _docstrings()], 6_000, 8)


def paragraphs() -> Task:
    """Docstrings and comments by paragraph, to their module: two to twenty examples per class."""
    rows = [(p, name) for name, text in _docstrings() for p in text.split("\n\n")]
    return _sampled(rows, 4_000, 2)


def _docstrings() -> Iterator[tuple[str, str]]:
    for name, source in _library():
        for text in re.findall(r'"""(.+?)"""', source, re.DOTALL):
            if len(text.split()) >= 5:
                yield name, text


def topics() -> Task:
    """Paragraphs of Python's help, to the topic."""
    from pydoc_data.topics import topics as pages

    rows = [
        (paragraph, name)
        for name, page in pages.items()
        for paragraph in page.split("\n\n")
        if len(paragraph.split()) >= 8
    ]
    return _sampled(rows, 3_000, 10)


def characters() -> Task:
    """Names of Unicode characters without their first word, to that word."""
    rows = []
    for code in range(sys.maxunicode):
        first, _, rest = unicodedata.name(chr(code), "").partition(" ")
        if rest and "-" not in first:
            rows.append((rest, first))
    return _sampled([row for row in rows if row[1] not in ("CJK", "HANGUL")], 20_000, 10)


def _sampled(rows: list[tuple[str, str]], n: int, least: int) -> Task:
    """Some of the rows, of classes with at least so many, as TF-IDF."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    order = np.random.default_rng(0).permutation(len(rows))[:n]
    texts, labels = np.array([rows[i][0] for i in order], object), [rows[i][1] for i in order]
    names, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    kept = counts[classes] >= least
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32)
    return sparse.csr_matrix(vectorizer.fit_transform(texts[kept])), names[classes[kept]]


TASKS: dict[str, Callable[[], Task]] = {
    task.__name__: task
    for task in (
        digits, blobs, clusters, tiles, glyphs, docstrings, paragraphs, topics, lines, characters,
    )
}  # fmt: skip


# Methods ----------------------------------------------------------------------------------------


def methods() -> dict[str, Callable[[], Any]]:
    from sklearn.linear_model import LogisticRegression, SGDClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler
    from sklearn.svm import LinearSVC

    def scaled(model: Any) -> Any:
        # Linear models of scikit-learn ask for features of about unit size.
        return make_pipeline(MaxAbsScaler(), model)

    return {
        "extremax": lambda: ExtremeClassifier(random_state=0),
        "LogisticRegression, C=1": lambda: scaled(LogisticRegression(max_iter=300)),
        "LogisticRegression, C=10": lambda: scaled(LogisticRegression(C=10.0, max_iter=300)),
        "SGDClassifier": lambda: scaled(SGDClassifier(loss="log_loss", random_state=0)),
        "LinearSVC": lambda: scaled(LinearSVC(random_state=0)),
        "1 neighbor": lambda: KNeighborsClassifier(1),
        "10 neighbors": lambda: Smoothed(KNeighborsClassifier(10, weights="distance")),
    }


class Smoothed:
    """Nearest neighbors with a tenth of each probability from the class frequencies."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, x: Any, y: np.ndarray) -> Smoothed:
        self.model.fit(x, y)
        self.classes_, counts = np.unique(y, return_counts=True)
        self.frequency = counts / counts.sum()
        return self

    def predict(self, x: Any) -> np.ndarray:
        return self.model.predict(x)

    def predict_proba(self, x: Any) -> np.ndarray:
        return 0.9 * self.model.predict_proba(x) + 0.1 * self.frequency


def measured(model: Any, x: Any, y: np.ndarray, test: Any, truth: np.ndarray) -> dict[str, float]:
    start = time.perf_counter()
    model.fit(x, y)
    figures = {"fit_s": time.perf_counter() - start}
    figures["accuracy"] = float(np.mean(model.predict(test) == truth))
    if hasattr(model, "predict_proba"):
        p = model.predict_proba(test)
        found = p[np.arange(len(truth)), np.searchsorted(model.classes_, truth)]
        figures["log_loss"] = float(-np.log(np.maximum(found, 1e-15)).mean())
    return figures


def compared(task: Task, n_splits: int, names: list[str]) -> dict[str, dict[str, float]]:
    x, y = task
    every: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    made = methods()
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(len(y))
        n_test = round(TEST_SHARE * len(y))
        train, test = np.sort(order[n_test:]), np.sort(order[:n_test])
        test = test[np.isin(y[test], y[train])]
        for name in names:
            figures = measured(made[name](), x[train], y[train], x[test], y[test])
            every[name].append(figures)
    return {
        name: {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        for name, found in every.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two tasks and one split")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(methods()))
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    names = ["digits", "topics"] if given.quick else given.only
    warnings.simplefilter("ignore", ConvergenceWarning)
    figures: dict[str, Any] = {}
    for name in names:
        task = TASKS[name]()
        rows, classes = task[0].shape[0], len(np.unique(task[1]))
        say(f"{name}: {rows:,} rows of {task[0].shape[1]:,} features, {classes:,} classes")
        found = compared(task, 1 if given.quick else given.splits, given.methods)
        for method, row in found.items():
            loss = f"{row['log_loss']:8.3f}" if "log_loss" in row else "       –"
            say(f"  {method:26} {row['accuracy']:7.2%} {loss} {row['fit_s']:8.1f} s")
        figures[name] = {"rows": rows, "classes": classes, **found}
    finish(given, headline(figures), figures, data="scikit-learn, matplotlib, Python")


def headline(figures: dict[str, Any]) -> dict[str, float]:
    wins, gaps = 0, []
    for found in figures.values():
        others = [v for k, v in found.items() if isinstance(v, dict) and k != "extremax"]
        ours = found["extremax"]
        wins += ours["log_loss"] < min(
            (o["log_loss"] for o in others if "log_loss" in o), default=np.inf
        )
        gaps.append(max((o["accuracy"] for o in others), default=0.0) - ours["accuracy"])
    return {"wins": wins, "tasks": len(figures), "worst_accuracy_gap": max(gaps)}


if __name__ == "__main__":
    main()
