"""How the sparse tree is fitted: the order of classes, a penalty for each level, all nodes, and how
sharp each level is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax.features.rows import SparseRows
from extremax.kernels.cpu.class_split import halve
from extremax.kernels.cpu.sparse_node import fit, likelihoods, pruned
from extremax.kernels.cpu.sparse_table import CHILD, packed, pairs
from extremax.kernels.cpu.sparse_tree import Tree, sharper_log_probs
from extremax.kernels.cpu.threads import parallel
from extremax.noise.sparse_tree_shape import Shape
from extremax.random import Stream

# λ tried by "auto", hard to soft, where it begins, and the rows that it looks at in a level.
_PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
_FIRST, _TRIAL_ROWS = 3, 60_000
# A penalty makes scores too small: by which of these they are then multiplied.
_SHARPNESSES = np.array([0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5], np.float32)
# Share of the rows that choose it, and how many at most; with fewer than so many rows, none.
_APART, _MOST_APART, _ENOUGH = 0.02, 4_000, 1_000
# A node is fitted to at most so many rows.
_MOST_ROWS = 1 << 21


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
        parallel(halve, n, max(1, n // 16), ranges, order, *vectors.arrays, data.n_features, 8, key)
        middle = ranges.sum(1) // 2
        halves = np.stack([ranges[:, 0], middle, middle, ranges[:, 1]], 1).reshape(-1, 2)
        ranges = halves[np.diff(halves)[:, 0] > 1]
    return order


def held_apart(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that nodes are fitted to, and some that only choose how sharp levels are."""
    if len(rows) < _ENOUGH:
        return rows, rows[:0]
    shuffled = np.random.default_rng([seed, 1]).permutation(rows)
    n = min(int(_APART * len(rows)), _MOST_APART)
    return np.sort(shuffled[n:]), shuffled[:n]


def sharpen(
    tree: Tree, place: np.ndarray, shape: Shape, data: SparseRows, labels: np.ndarray
) -> list[float]:
    """Multiply the scores of each level by what makes these rows likeliest; returns by what."""
    parts = np.zeros((len(labels), shape.n_levels, len(_SHARPNESSES)))
    parallel(
        sharper_log_probs, len(labels), 64, tree, place, *data.arrays, labels, _SHARPNESSES, parts
    )
    best = _SHARPNESSES[parts.sum(0).argmax(1)] if len(labels) else np.ones(shape.n_levels)
    of_node = best[shape.level].astype(np.float32)
    node, _, counts = pairs(tree.slots)
    sharper = tree.weight * np.repeat(of_node[node], counts)
    tree.packed[:] = packed(sharper, tree.packed & CHILD)
    tree.bias[:] *= np.repeat(of_node, np.diff(tree.first))
    return best.tolist()


class NodeFit(NamedTuple):
    """Fits nodes of a shape to examples, each by itself."""

    examples: Examples
    shape: Shape
    passes: int
    seed: int

    def best_penalty(self, level: int) -> float:
        """From the middle to the better neighbour, and on while the next is better."""
        trial = self.examples.trial(np.flatnonzero(self.shape.level == level), _TRIAL_ROWS)
        if not trial:
            return _PENALTIES[_FIRST]
        gains: dict[int, float] = {}

        def gain(i: int) -> float:
            if i not in gains:
                gains[i] = self._held_out(trial, _PENALTIES[i])
            return gains[i]

        best = _FIRST
        for step in (1, -1):
            while 0 <= best + step < len(_PENALTIES) and gain(best + step) > gain(best):
                best += step
            if best != _FIRST:
                break
        return _PENALTIES[best]

    def _held_out(self, trial: list[tuple[int, np.ndarray, np.ndarray]], penalty: float) -> float:
        """Log-likelihood of the rows left out of some nodes, at the best sharpness."""
        totals = np.zeros((len(trial), len(_SHARPNESSES)))

        def work(start: int, stop: int) -> None:
            for i in range(start, stop):
                n, rows, out = trial[i]
                features, weight = self._fit_node(n, rows, penalty)
                child = self.examples.child(self.shape, n, out)
                totals[i] = likelihoods(
                    out, child, self.examples.arrays, features, weight,
                    self.examples.n_features, _SHARPNESSES,
                )  # fmt: skip

        parallel(work, len(trial), 1)
        return float(totals.sum(0).max())

    def nodes(self, penalties: list[float], prune: float) -> list[Any]:
        """Every node, its small weights left out (`extremax.kernels.cpu.sparse_node.pruned`)."""
        found: list[Any] = [None] * len(self.shape.level)

        def work(start: int, stop: int) -> None:
            for n in range(start, stop):
                penalty = penalties[self.shape.level[n]]
                fitted = self._fit_node(n, self.examples.rows_of(n), penalty)
                found[n] = pruned(*fitted, np.float32(prune))

        parallel(work, len(found), 1)
        return found

    def _fit_node(self, n: int, rows: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        local = np.full(self.examples.n_features, -1, np.int32)
        size = int(self.shape.first[n + 1] - self.shape.first[n])
        key = Stream.of(self.seed, n, rows=rows[:0]).key
        child = self.examples.child(self.shape, n, rows)
        return fit(rows, child, size, *self.examples.arrays, local, penalty, self.passes, key)


class Examples(NamedTuple):
    """Training rows by the positions of their classes, so that those of a node are neighbours."""

    #: CSR, and what its values are multiplied by: a copy of them may be more than memory has.
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.float32]
    n_features: int
    #: Numbers of the rows, sorted by position; positions of every row; where nodes begin and end.
    by_position: np.ndarray
    position: np.ndarray
    bounds: np.ndarray
    seed: int

    @classmethod
    def of(
        cls, data: SparseRows, labels: np.ndarray, rows: np.ndarray, place: np.ndarray,
        shape: Shape, scale: float, seed: int,
    ) -> Examples:  # fmt: skip
        position = place[labels]
        by_position = rows[np.argsort(position[rows], kind="stable")]
        start = shape.position[shape.first[:-1]]
        bounds = np.searchsorted(position[by_position], np.stack([start, shape.stop], 1))
        arrays = (*data.arrays, np.float32(scale))
        return cls(arrays, data.n_features, by_position, position, bounds, seed)

    def rows_of(self, n: int) -> np.ndarray:
        """The rows of a node, or as many of them as it is fitted to."""
        rows = self.by_position[self.bounds[n, 0] : self.bounds[n, 1]]
        if len(rows) <= _MOST_ROWS:
            return rows
        return np.random.default_rng([self.seed, n]).permutation(rows)[:_MOST_ROWS]

    def child(self, shape: Shape, n: int, rows: np.ndarray) -> np.ndarray:
        """Which child of node n each of these rows belongs to."""
        starts = shape.position[shape.first[n] : shape.first[n + 1]]
        return np.searchsorted(starts, self.position[rows], side="right") - 1

    def trial(self, nodes: np.ndarray, most: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Some of these nodes, at most so many rows of them, and a tenth of those apart."""
        generator = np.random.default_rng(self.seed)
        found, n_rows = [], 0
        for n in generator.permutation(nodes):
            rows = generator.permutation(self.rows_of(n))[: most - n_rows]
            if len(rows) >= 20:
                found.append((int(n), rows[len(rows) // 10 :], rows[: len(rows) // 10]))
            n_rows += len(rows)
            if n_rows >= most:
                break
        return found


def _class_vectors(
    data: SparseRows, labels: np.ndarray, rows: np.ndarray, n_classes: int
) -> SparseRows:
    """The sum of the rows of each class, of unit length."""
    ones = np.ones(len(rows), np.float32)
    members = sparse.csr_matrix((ones, (labels[rows], rows)), shape=(n_classes, len(data)))
    sums = sparse.csr_matrix(members @ data.matrix)
    sums.sort_indices()
    squares = np.asarray(sums.multiply(sums).sum(1)).ravel()
    sums.data /= np.repeat(np.sqrt(np.maximum(squares, 1e-30)), np.diff(sums.indptr))
    return SparseRows(sums.astype(np.float32))
