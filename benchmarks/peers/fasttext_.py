"""fastText with a hierarchical softmax over the Huffman tree of its labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from measure import THREADS, Rows


class Contender:
    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        self.model, self.parameters, self.path = model, parameters, model.parent / "train.txt"
        self.test, self.test_classes = rows.words("test"), rows.test_classes
        ends = rows.labels.indptr
        with self.path.open("w", encoding="utf-8") as file:
            for words, a, b in zip(rows.words("train"), ends[:-1], ends[1:], strict=True):
                labels = " ".join(f"__label__{y}" for y in rows.labels.indices[a:b])
                file.write(f"{labels} {words}\n")

    def fit(self) -> None:
        import fasttext

        self.bag = fasttext.train_supervised(
            str(self.path), thread=THREADS, verbose=0, **self.parameters
        )

    def save(self) -> None:
        self.bag.save_model(str(self.model / "model.bin"))

    def predict(self, k: int) -> list[list[str]]:
        return self.bag.predict(self.test, k=k)[0]

    def ranked(self, found: list[list[str]]) -> list[list[int]]:
        return [[number(label) for label in labels] for labels in found]

    def log_probs(self) -> np.ndarray:
        """Through the tree: what it tells itself is p + 1e-5 at every node."""
        names, counts = self.bag.get_labels(include_freq=True)
        leaf = {number(name): i for i, name in enumerate(names)}
        nodes, signs = huffman_paths(counts)
        known = np.flatnonzero(self.test_classes >= 0)
        hidden = np.array([self.bag.get_sentence_vector(self.test[i]) for i in known])
        leaves = np.array([leaf[y] for y in self.test_classes[known]])
        return path_log_probs(hidden, self.bag.get_output_matrix(), nodes[leaves], signs[leaves])


def number(label: str) -> int:
    return int(label.removeprefix("__label__"))


def huffman_paths(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(inner nodes, ±1) on the way from each leaf to the root, padded with 0.

    As fastText builds it: leaves by falling count, the two rarest nodes joined first, a leaf
    before an inner node only if it is rarer; the second one of the two is the positive side.
    """
    n = len(counts)
    count = np.concatenate([counts, np.full(n, 10**15)])
    parent, sign = np.full(2 * n - 1, -1), np.full(2 * n - 1, -1)
    leaf, inner = n - 1, n
    for new in range(n, 2 * n - 1):
        total = 0
        for side in (-1, 1):
            if leaf >= 0 and count[leaf] < count[inner]:
                child, leaf = leaf, leaf - 1
            else:
                child, inner = inner, inner + 1
            parent[child], sign[child] = new, side
            total += count[child]
        count[new] = total
    at, nodes, signs = np.arange(n), [], []
    while (parent[at] >= 0).any():
        inside = parent[at] >= 0
        nodes.append(np.where(inside, parent[at] - n, 0))
        signs.append(np.where(inside, sign[at], 0))
        at = np.where(inside, parent[at], at)
    return np.stack(nodes, 1), np.stack(signs, 1)


def path_log_probs(
    hidden: np.ndarray, weights: np.ndarray, nodes: np.ndarray, signs: np.ndarray
) -> np.ndarray:
    """Σ log σ(± w·h) over the nodes of each row's path."""
    total = np.zeros(len(hidden))
    for node, sign in zip(nodes.T, signs.T, strict=True):
        scores = sign * np.einsum("ij,ij->i", hidden, weights[node])
        total -= np.where(sign, np.logaddexp(0.0, -scores), 0.0)
    return total
