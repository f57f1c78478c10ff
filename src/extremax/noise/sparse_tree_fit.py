"""How the sparse tree is fitted: the order of classes, a penalty per level, all nodes, and the
sharpness of each level."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from extremax.kernels.cpu.class_split import add_up_classes, closed_up, halve
from extremax.kernels.cpu.sparse_node import fit, likelihoods, pruned
from extremax.kernels.cpu.sparse_table import CHILD, packed, weights_of_nodes
from extremax.kernels.cpu.sparse_tree import SparseTree, sharper_log_probs
from extremax.kernels.cpu.threads import parallel
from extremax.noise.sparse_tree_shape import Shape, tree_shape
from extremax.noise.sparse_tree_state import load_tree
from extremax.random import Stream
from extremax.rows import SparseRows

#: λ tried by "auto", strong to weak.
PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
# Where the search among them begins, and what is tried first.
_FIRST, _MIDDLE = 3, (3, 4, 2)
#: Rows of a level by which penalties are compared.
TRIAL_ROWS = 60_000
#: A penalty makes scores too small: the factors by which they may then be multiplied.
SHARPNESSES = np.array([0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5], np.float32)
# The share of rows held out to choose a factor, and the most of them; none of fewer rows than this.
_HELD_OUT, _MOST_HELD_OUT, _ENOUGH = 0.02, 4_000, 1_000
# Weights that are multiplied at a time.
_CACHED_WEIGHTS = 1 << 16
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
    is_auto = lambda_ == "auto"
    penalties = fitting.best_penalties() if is_auto else [float(lambda_)] * shape.n_levels
    nodes = fitting.nodes(penalties, settings["prune"])
    features, counts, weights, bias = zip(*nodes, strict=True)
    tree = load_tree(
        {
            "order": order,
            "bias": np.concatenate(bias),
            "features_of": np.array([len(f) for f in features]),
            "features": np.concatenate(features),
            "counts": np.concatenate(counts),
            "weights": np.concatenate(weights),
        }
    )
    del nodes, weights
    return tree, penalties, sharpen(tree, shape, data[held_out], labels[held_out])


def similar_order(
    data: SparseRows, labels: np.ndarray, rows: np.ndarray, n_classes: int, seed: int
) -> np.ndarray:
    """Classes in an order in which similar ones are close."""
    vectors = class_vectors(data, labels, rows, n_classes)
    order = np.random.default_rng(seed).permutation(n_classes)
    key = Stream.of(seed, rows=rows[:0]).key
    ranges = np.array([[0, n_classes]])
    while np.diff(ranges).max() > 2:
        n = len(ranges)
        parallel(halve, n, max(1, n // 64), ranges, order, vectors, data.n_features, 8, key)
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
    ends = np.cumsum(weights_of_nodes(tree.slots, len(shape.level)))

    def multiply(start: int, stop: int) -> None:
        # Weights lie in the order of nodes.
        cuts = np.clip(ends, start, stop)
        factor = np.repeat(of_node, np.diff(cuts, prepend=start))
        child = tree.packed[start:stop] & CHILD
        tree.packed[start:stop] = packed(tree.weight[start:stop] * factor, child)

    parallel(multiply, len(tree.weight), _CACHED_WEIGHTS)
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

    def best_penalties(self) -> list[float]:
        """The λ of highest held-out likelihood for each level: start in the middle, go to the
        better neighbor, and on while the next one is better.

        All levels go on together, and both neighbors are tried with the middle: the root alone
        would keep one thread busy.
        """
        trials = [
            self._trial(np.flatnonzero(self.shape.level == level))
            for level in range(self.shape.n_levels)
        ]
        known: list[dict[int, float]] = [{} for _ in trials]
        wanted = [(level, i) for level, trial in enumerate(trials) if trial for i in _MIDDLE]
        while wanted:
            for (level, i), value in zip(wanted, self._held_out(trials, wanted), strict=True):
                known[level][i] = value
            ahead = ((level, _next_penalty(tried)) for level, tried in enumerate(known) if tried)
            wanted = [(level, i) for level, i in ahead if i is not None]
        best = (max(tried, key=tried.__getitem__) if tried else _FIRST for tried in known)
        return [PENALTIES[i] for i in best]

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

    def _held_out(self, trials: list[list[Trial]], wanted: list[tuple[int, int]]) -> list[float]:
        """Log-likelihood of the held-out rows of some nodes, at the best sharpness, for each wanted
        level and number of a penalty."""
        jobs = [(level, i, trial) for level, i in wanted for trial in trials[level]]
        totals = np.zeros((len(jobs), len(SHARPNESSES)))

        def work(start: int, stop: int) -> None:
            for job in range(start, stop):
                _, i, (node, rows, held_out) = jobs[job]
                features, weight = self._fit_node(node, rows, PENALTIES[i])
                totals[job] = likelihoods(
                    held_out, self._child(node, held_out), self.arrays, features, weight,
                    self.n_features, SHARPNESSES,
                )  # fmt: skip

        parallel(work, len(jobs), 1)
        of_job = [(level, i) for level, i, _ in jobs]
        chosen = [[job == one for job in of_job] for one in wanted]
        return [float(totals[mine].sum(0).max()) for mine in chosen]

    def nodes(self, penalties: list[float], prune: float) -> list[Any]:
        """Every node without its small weights: features, counts, packed weights and bias, see
        `extremax.kernels.cpu.sparse_node.pruned`. Weights absorb the scale of the rows.

        Nodes with the most work come first: the others keep all threads busy meanwhile.
        """
        nodes: list[Any] = [None] * len(self.shape.level)
        most_work = np.argsort(-np.diff(self._bounds)[:, 0] * np.diff(self.shape.first))

        def work(start: int, stop: int) -> None:
            for n in most_work[start:stop]:
                fitted = self._fit_node(n, self._rows(n), penalties[self.shape.level[n]])
                features, counts, child, weight, bias = pruned(*fitted, np.float32(prune))
                del fitted
                nodes[n] = features, counts, packed(weight * self.arrays[-1], child), bias

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


def _next_penalty(tried: dict[int, float]) -> int | None:
    """The number of the penalty to try next: beyond the best one, if that is at an end of those
    tried; None where the search ends."""
    best = max(tried, key=tried.__getitem__)
    beyond = best - 1 if best < _FIRST else best + 1
    return beyond if 0 <= beyond < len(PENALTIES) and beyond not in tried else None


def class_vectors(
    data: SparseRows, labels: np.ndarray, rows: np.ndarray, n_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sum of the rows of each class, scaled to unit length, as CSR arrays. The features of a
    class come in the order in which its rows have them."""
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    first = np.searchsorted(labels[by_class], np.arange(n_classes + 1))
    values = np.concatenate([[0], np.cumsum(np.diff(data.indptr)[by_class])])
    # At most as many features as values.
    room, counts = values[first], np.zeros(n_classes, np.int64)
    features, sums = np.empty(room[-1], np.int32), np.empty(room[-1], np.float32)
    chunk = max(1, n_classes // 64)
    arrays = first, by_class, data.arrays, data.n_features
    parallel(add_up_classes, n_classes, chunk, *arrays, room, features, sums, counts)
    ends = np.concatenate([[0], np.cumsum(counts)])
    kept = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
    parallel(closed_up, n_classes, chunk, room, ends, (features, sums), kept)
    return ends, *kept
