"""How the sparse tree is fitted: the order of classes, a penalty per level, all nodes, and the
sharpness of each level."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax.kernels.cpu.class_split import halve
from extremax.kernels.cpu.sparse_node import fit, likelihoods, pruned
from extremax.kernels.cpu.sparse_table import CHILD, packed, pairs
from extremax.kernels.cpu.sparse_tree import SparseTree, sharper_log_probs
from extremax.kernels.cpu.threads import parallel
from extremax.noise.sparse_tree_shape import Shape, tree_shape
from extremax.noise.sparse_tree_state import load_tree
from extremax.random import Stream
from extremax.rows import SparseRows

#: λ tried by "auto", strong to weak.
PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
# Where the search among them begins.
_FIRST = 3
#: Rows of a level by which penalties are compared.
TRIAL_ROWS = 60_000
#: A penalty makes scores too small: the factors by which they may then be multiplied.
SHARPNESSES = np.array([0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5], np.float32)
# The share of rows held out to choose a factor, and the most of them; none of fewer rows than this.
_HELD_OUT, _MOST_HELD_OUT, _ENOUGH = 0.02, 4_000, 1_000
#: The most rows that one node is fitted to.
MOST_ROWS = 1 << 21


def fit_tree(
    data: SparseRows, labels: np.ndarray, rows: np.ndarray, n_classes: int, settings: dict[str, Any]
) -> tuple[SparseTree, list[float], list[float]]:
    """Fit a tree to these rows: the tree, and the penalty and the sharpness of each level.

    settings:  the parameters of `SparseTreeNoise`.
    """
    seed, lambda_ = settings["seed"], settings["lambda_"]
    rows, held_out = _hold_out(rows, seed)
    scale = data.unit_scale(rows)
    order = similar_order(data, labels, rows, n_classes, seed)
    shape = tree_shape(n_classes)
    place = np.empty(n_classes, np.int64)
    place[order] = np.arange(n_classes)
    fitting = NodeFit(data, rows, place[labels], shape, scale, settings["passes"], seed)
    penalties = [
        fitting.best_penalty(level) if lambda_ == "auto" else float(lambda_)
        for level in range(shape.n_levels)
    ]
    nodes = fitting.nodes(penalties, settings["prune"])
    features, counts, child, weight, bias = zip(*nodes, strict=True)
    # Weights absorb the scale of the rows.
    weights = np.concatenate(weight) * np.float32(scale)
    tree = load_tree(
        {
            "order": order,
            "bias": np.concatenate(bias),
            "features_of": np.array([len(f) for f in features]),
            "features": np.concatenate(features),
            "counts": np.concatenate(counts),
            "weights": packed(weights, np.concatenate(child)),
        }
    )
    return tree, penalties, sharpen(tree, shape, data[held_out], labels[held_out])


def similar_order(
    data: SparseRows, labels: np.ndarray, rows: np.ndarray, n_classes: int, seed: int
) -> np.ndarray:
    """Classes in an order in which similar ones are close."""
    vectors = _class_vectors(data, labels, rows, n_classes)
    order = np.random.default_rng(seed).permutation(n_classes)
    key = Stream.of(seed, rows=rows[:0]).key
    ranges = np.array([[0, n_classes]])
    while np.diff(ranges).max() > 2:
        n = len(ranges)
        parallel(halve, n, max(1, n // 16), ranges, order, vectors.arrays, data.n_features, 8, key)
        middle = ranges.sum(1) // 2
        halves = np.stack([ranges[:, 0], middle, middle, ranges[:, 1]], 1).reshape(-1, 2)
        ranges = halves[np.diff(halves)[:, 0] > 1]
    return order


def _hold_out(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit nodes to, and rows held out to choose the sharpness of levels."""
    if len(rows) < _ENOUGH:
        return rows, rows[:0]
    shuffled = np.random.default_rng([seed, 1]).permutation(rows)
    n = min(int(_HELD_OUT * len(rows)), _MOST_HELD_OUT)
    return np.sort(shuffled[n:]), shuffled[:n]


def sharpen(tree: SparseTree, shape: Shape, data: SparseRows, labels: np.ndarray) -> list[float]:
    """Multiply the scores of each level by the factor that makes these rows likeliest; returns the
    factors."""
    log_probs = np.zeros((len(labels), shape.n_levels, len(SHARPNESSES)))
    parallel(sharper_log_probs, len(labels), 64, tree, data.arrays, labels, SHARPNESSES, log_probs)
    best = SHARPNESSES[log_probs.sum(0).argmax(1)] if len(labels) else np.ones(shape.n_levels)
    of_node = best[shape.level].astype(np.float32)
    node, _, counts = pairs(tree.slots)
    sharper = tree.weight * np.repeat(of_node[node], counts)
    tree.packed[:] = packed(sharper, tree.packed & CHILD)
    tree.bias[:] *= np.repeat(of_node, np.diff(tree.first))
    return best.tolist()


class Trial(NamedTuple):
    """A node by which penalties are compared, its rows, and those held out."""

    node: int
    rows: np.ndarray
    held_out: np.ndarray


class NodeFit:
    """Fits the nodes of a shape to rows, each node independently.

    Rows are sorted by the positions of their classes, so that those of a node are neighbors.

    rows:      numbers of the rows to fit to.
    position:  the position of every row's class.
    scale:     the factor of the values, which kernels apply: a scaled copy may not fit in memory.
    """

    def __init__(
        self, data: SparseRows, rows: np.ndarray, position: np.ndarray, shape: Shape, scale: float,
        passes: int, seed: int,
    ) -> None:  # fmt: skip
        self.arrays, self.n_features = (*data.arrays, np.float32(scale)), data.n_features
        self.shape, self.position, self.passes, self.seed = shape, position, passes, seed
        self._by_position = rows[np.argsort(position[rows], kind="stable")]
        start = shape.position[shape.first[:-1]]
        # Where among the sorted rows each node begins and ends.
        self._bounds = np.searchsorted(
            position[self._by_position], np.stack([start, shape.stop], 1)
        )

    def best_penalty(self, level: int) -> float:
        """The λ of highest held-out likelihood: start in the middle, go to the better neighbor, and
        on while the next one is better."""
        trial = self._trial(np.flatnonzero(self.shape.level == level))
        if not trial:
            return PENALTIES[_FIRST]
        likelihood = cache(lambda i: self._held_out(trial, PENALTIES[i]))
        best = _FIRST
        for step in (1, -1):
            while 0 <= best + step < len(PENALTIES) and likelihood(best + step) > likelihood(best):
                best += step
            if best != _FIRST:
                break
        return PENALTIES[best]

    def _trial(self, nodes: np.ndarray) -> list[Trial]:
        """Some of these nodes with at most `TRIAL_ROWS` rows together, a tenth of them held out."""
        generator = np.random.default_rng(self.seed)
        chosen, n_rows = [], 0
        for n in generator.permutation(nodes):
            rows = generator.permutation(self._rows(n))[: TRIAL_ROWS - n_rows]
            if len(rows) >= 20:
                chosen.append(Trial(int(n), rows[len(rows) // 10 :], rows[: len(rows) // 10]))
            n_rows += len(rows)
            if n_rows >= TRIAL_ROWS:
                break
        return chosen

    def _held_out(self, trial: list[Trial], penalty: float) -> float:
        """Log-likelihood of the held-out rows of some nodes, at the best sharpness."""
        totals = np.zeros((len(trial), len(SHARPNESSES)))

        def work(start: int, stop: int) -> None:
            for i in range(start, stop):
                node, rows, held_out = trial[i]
                features, weight = self._fit_node(node, rows, penalty)
                totals[i] = likelihoods(
                    held_out, self._child(node, held_out), self.arrays, features, weight,
                    self.n_features, SHARPNESSES,
                )  # fmt: skip

        parallel(work, len(trial), 1)
        return float(totals.sum(0).max())

    def nodes(self, penalties: list[float], prune: float) -> list[Any]:
        """Every node without its small weights, see `extremax.kernels.cpu.sparse_node.pruned`."""
        nodes: list[Any] = [None] * len(self.shape.level)

        def work(start: int, stop: int) -> None:
            for n in range(start, stop):
                fitted = self._fit_node(n, self._rows(n), penalties[self.shape.level[n]])
                nodes[n] = pruned(*fitted, np.float32(prune))

        parallel(work, len(nodes), 1)
        return nodes

    def _fit_node(self, n: int, rows: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        local = np.full(self.n_features, -1, np.int32)
        size = int(self.shape.first[n + 1] - self.shape.first[n])
        key = Stream.of(self.seed, n, rows=rows[:0]).key
        child = self._child(n, rows)
        return fit(rows, child, size, self.arrays, local, penalty, self.passes, key)

    def _rows(self, n: int) -> np.ndarray:
        """The rows of a node, at most `MOST_ROWS`."""
        rows = self._by_position[self._bounds[n, 0] : self._bounds[n, 1]]
        if len(rows) <= MOST_ROWS:
            return rows
        return np.random.default_rng([self.seed, n]).permutation(rows)[:MOST_ROWS]

    def _child(self, n: int, rows: np.ndarray) -> np.ndarray:
        """The child of node n that each of these rows belongs to."""
        starts = self.shape.position[self.shape.first[n] : self.shape.first[n + 1]]
        return np.searchsorted(starts, self.position[rows], side="right") - 1


def _class_vectors(
    data: SparseRows, labels: np.ndarray, rows: np.ndarray, n_classes: int
) -> SparseRows:
    """The sum of the rows of each class, scaled to unit length."""
    ones = np.ones(len(rows), np.float32)
    members = sparse.csr_matrix((ones, (labels[rows], rows)), shape=(n_classes, len(data)))
    sums = sparse.csr_matrix(members @ data.matrix)
    sums.sort_indices()
    squares = np.asarray(sums.multiply(sums).sum(1)).ravel()
    sums.data /= np.repeat(np.sqrt(np.maximum(squares, 1e-30)), np.diff(sums.indptr))
    return SparseRows(sums.astype(np.float32))
