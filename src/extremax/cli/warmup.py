"""``extremax warmup``: compile kernels now, so that nobody waits for them later."""

from __future__ import annotations

from dataclasses import dataclass

from extremax.cli.console import say
from extremax.cli.options import argument
from extremax.errors import ArgumentError

_KINDS = "dense", "text", "sessions"


@dataclass
class Kinds:
    kinds: list[str] | None = argument(
        "[KIND]...", f"Rows that models will be trained on, of {', '.join(_KINDS)}.", None
    )


def warmup(given: Kinds) -> None:
    """Compile the kernels of training and prediction, and store them.

    Kernels are compiled when they are first used, and stored beside the package or, where that
    cannot be written, in the user's cache folder; the environment variable NUMBA_CACHE_DIR names
    another folder. The image of a container that ran this command starts without a wait.
    """
    from time import perf_counter

    from extremax.kernels import compilation

    unknown = [kind for kind in given.kinds or () if kind not in _KINDS]
    if unknown:
        raise ArgumentError(f"{unknown[0]!r} is no kind of rows; use {', '.join(_KINDS)}")
    for kind in given.kinds or _KINDS:
        start, before = perf_counter(), compilation.seconds()
        _train_and_predict(kind)
        say(
            f"{kind}: {compilation.seconds() - before:.1f} s of compilation, "
            f"{perf_counter() - start:.1f} s in all"
        )


def _train_and_predict(kind: str) -> None:
    """Use what the defaults use for rows of this kind, on next to no data."""
    import numpy as np

    from extremax import ExtremeClassifier, SessionRecommender

    random = np.random.default_rng(0)
    y = np.arange(600) % 40
    if kind == "sessions":
        sessions = random.integers(50, size=(200, 5)).tolist()
        recommender = SessionRecommender(epochs=1, random_state=0).fit(sessions)
        recommender.recommend([1, 2, 3], 5)
        return
    for objective in (None, "sampled_softmax"):
        model = ExtremeClassifier(objective, random_state=0, epochs=1 if objective else None)
        if kind == "dense":
            X = random.standard_normal((600, 16), np.float32)
            X[np.arange(600), y % 16] += 2.0
            model.fit(X, y).predict_topk(X, 5)
            if objective:
                model.predict_topk(X, 5, search="beam")
        else:
            words = random.integers(100, size=(600, 5))
            texts = [
                " ".join(f"w{word}" for word in row) + f" c{c}"
                for row, c in zip(words, y, strict=True)
            ]
            model.fit(texts, y).predict_topk(texts, 5)
        model.predict_log_proba(X if kind == "dense" else texts)
