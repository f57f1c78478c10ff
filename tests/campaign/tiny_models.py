"""Saved models with a dozen classes: one for each kind of head, noise, label and encoder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.features import Encoder
from extremax.noise import MixtureNoise, TreeNoise

_ROWS, _FEATURES, _CLASSES = 90, 7, 12


class SavedModel(NamedTuple):
    """The files of a model by name, rows with labels for it, and its answers on them."""

    name: str
    files: dict[str, bytes]
    X: Any
    y: Any
    probabilities: np.ndarray
    best: np.ndarray


def answers(classifier: ExtremeClassifier, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of all classes, and log-probabilities of the best."""
    return classifier.predict_proba(X), classifier.predict_topk(X, 4).log_probs


def save_models(folder: Path) -> list[SavedModel]:
    """Train and save all of them; each takes a fraction of a second."""
    saved = []
    for name, (parameters, X, y) in _recipes().items():
        classifier = ExtremeClassifier(**{"epochs": 2, "random_state": 0, "n_jobs": 1} | parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            classifier.fit(X, y)
        path = folder / name
        classifier.save(path)
        files = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
        few = X[:5]
        classifier = ExtremeClassifier.load(path)
        saved.append(SavedModel(name, files, few, y[:5], *answers(classifier, few)))
    return saved


def _recipes() -> dict[str, tuple[dict[str, Any], Any, Any]]:
    rng = np.random.default_rng(0)
    y = rng.integers(_CLASSES, size=_ROWS)
    X = (rng.normal(size=(_CLASSES, _FEATURES))[y] + rng.normal(size=(_ROWS, _FEATURES))).astype(
        "f4"
    )
    contexts = X.copy()
    contexts[:, 0] = (y + rng.integers(2, size=_ROWS)) % _CLASSES
    matrix = sparse.csr_matrix(np.where(X > 0.3, X, 0))
    texts = [" ".join(f"word{j}" for j in np.flatnonzero(row > 0.3)) for row in X]
    names = [f"class {label}" for label in y]
    lists = [[f"class {label}", "odd" if label % 2 else "even"] for label in y]
    mixed = [*names[:45], *y[45:].tolist()]
    several = [[int(label), int(label) // 2] for label in y]
    sampled = {"objective": "sampled_softmax"}
    return {
        "dense_tree": ({}, X, y),
        "dense_exact": ({"objective": "exact", "calibrate": True}, X, y),
        "dense_multilabel": ({"calibrate": True}, X, several),
        "mixed_labels": ({"noise": "frequency", "objective": "nce"}, X, mixed),
        "log_uniform": ({"noise": "log_uniform"} | sampled, X, y.astype("f8")),
        "bigram": ({"noise": "bigram"} | sampled, contexts, y),
        "quadratic": ({"noise": "quadratic"} | sampled, X, y),
        "quartic": ({"noise": "quartic"} | sampled, X, y),
        "quartic_walk": ({"noise": "quartic_walk"} | sampled, X, y),
        "fourier": ({"noise": "fourier"} | sampled, X, y),
        "softmax": ({"noise": "softmax"} | sampled, X, y),
        "mixture": (
            {"noise": MixtureNoise((TreeNoise(3), "frequency", "bigram"), (2, 1, 1))} | sampled,
            contexts,
            names,
        ),
        "sparse_tree": ({"bag_size": 8, "calibrate": True}, matrix, y),
        "sparse_exact": ({"objective": "exact"}, matrix, y),
        "sparse_projected": ({"encoder": Encoder(4)}, matrix, y),
        "texts": ({"bag_size": 8, "encoder": Encoder(buckets=64)}, texts, names),
        "texts_multilabel": ({"objective": "exact", "encoder": Encoder(buckets=64)}, texts, lists),
        "texts_projected": ({"encoder": Encoder(4, "char_wb", (2, 3), 128)}, texts, names),
    }
