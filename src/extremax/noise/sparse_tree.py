"""The adversarial tree for sparse rows: a hierarchical softmax over a few hundred children a node.

Classes are put in an order in which similar ones are close (`extremax.kernels.cpu.class_split`).
The root is a softmax over ranges of them, each range one over smaller ranges, down to the classes:

    log q(y|x) = Σ over the nodes ν above y of log softmax(W_ν x + b_ν)_{the child with y}.

Two levels serve 65,536 classes, three 16 million: few and wide, because every level is a place to
go wrong, and because a feature's weights for all children of a node lie side by side. Nodes know
nothing of each other, so each is fitted by itself (`extremax.kernels.cpu.sparse_node`), and all of
them in parallel. Draws and log-probabilities cost O(nnz · levels); small weights are not kept.

It is not among ``NOISES``, which `extremax.ExtremeClassifier` feeds with dense features.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse

from extremax.features.rows import SparseRows
from extremax.noise.base import Draw, Noise, check_growth, check_labels
from extremax.random import Stream

# λ tried by "auto", hard to soft, where it begins, and the rows that it looks at in a level.
_PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
_FIRST, _TRIAL_ROWS = 3, 60_000
# A penalty makes scores too small: by which of these they are then multiplied.
_SHARPNESSES = np.array([0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5], np.float32)
# Share of the rows that choose it, and how many at most; with fewer than so many rows, none.
_APART, _MOST_APART, _ENOUGH = 0.02, 20_000, 1_000
# Halvings that one level takes at most: its nodes have 256 children.
_HALVINGS = 8
# A node is fitted to at most so many rows.
_MOST_ROWS = 1 << 21


class Shape(NamedTuple):
    """The positions and children of nodes, as in `extremax.kernels.cpu.sparse_tree`."""

    first: np.ndarray
    position: np.ndarray
    node: np.ndarray
    level: np.ndarray
    stop: np.ndarray


class SparseTreeNoise(Noise):
    """A tree of softmaxes on sparse rows; with probabilities that sum to one, also a classifier.

    lambda_:  λ, the quadratic penalty on the weights of a node, for rows of unit mean square
              length. "auto" picks one for each level by held-out likelihood. A penalty shrinks
              scores; those of each level are then multiplied by what suits rows held apart.
    passes:   visits of each example in the fit of a node.
    prune:    weights smaller than this are not kept.
    seed:     of the order of classes; trees with different seeds differ, and are worth averaging.
    """

    keeps_context = False

    def __init__(
        self,
        lambda_: float | str = "auto",
        passes: int = 10,
        prune: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.lambda_ = lambda_
        self.passes = passes
        self.prune = prune
        self.seed = seed

    def fit(
        self,
        features: Any,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray | None = None,
    ) -> SparseTreeNoise:
        labels = check_labels(labels, n_classes)
        self._check_parameters()
        data = SparseRows.of(features)
        if len(data) != len(labels):
            raise ValueError(f"features have {len(data)} rows but labels {len(labels)}")
        rows = np.arange(len(labels)) if rows is None else rows
        rows, apart = self._held_apart(rows)
        self.scale_ = _unit_scale(data, rows)
        order = self._order(data, labels, rows, n_classes)
        self._place(order)
        shape = tree_shape(n_classes)
        examples = _Examples.of(data, labels, rows, self._position, shape, self.scale_, self.seed)
        self.penalties_ = self._choose_penalties(examples, shape)
        nodes = self._fit_nodes(examples, shape)
        self._assemble(shape, nodes, order, data.n_features)
        self.n_classes_ = n_classes
        self._sharpen(data[apart], labels[apart], shape)
        return self

    def _check_parameters(self) -> None:
        if self.lambda_ != "auto" and not (
            isinstance(self.lambda_, (int, float)) and self.lambda_ > 0
        ):
            raise ValueError(f"lambda_ must be a number > 0 or 'auto', got {self.lambda_!r}")
        if self.passes < 1:
            raise ValueError(f"passes must be at least 1, got {self.passes}")
        if not self.prune >= 0:
            raise ValueError(f"prune must be a number >= 0, got {self.prune}")

    # Fit --------------------------------------------------------------------------------------

    def _held_apart(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows that nodes are fitted to, and some that only choose how sharp levels are."""
        if len(rows) < _ENOUGH:
            return rows, rows[:0]
        shuffled = np.random.default_rng([self.seed, 1]).permutation(rows)
        n = min(int(_APART * len(rows)), _MOST_APART)
        return np.sort(shuffled[n:]), shuffled[:n]

    def _sharpen(self, data: SparseRows, labels: np.ndarray, shape: Shape) -> None:
        """Multiply the scores of each level by what makes these rows likeliest."""
        from extremax.kernels.cpu.sparse_tree import level_log_probs
        from extremax.kernels.cpu.threads import parallel

        n_levels = int(shape.level.max()) + 1
        parts = np.zeros((len(labels), n_levels, len(_SHARPNESSES)))
        parallel(
            level_log_probs, len(labels), 64, self.tree_, self._position, *data.arrays, labels,
            _SHARPNESSES, parts,
        )  # fmt: skip
        best = _SHARPNESSES[parts.sum(0).argmax(1)] if len(labels) else np.ones(n_levels)
        self.sharpness_ = best.tolist()
        of_node = best[shape.level].astype(np.float32)
        of_feature = np.repeat(of_node, np.diff(self.tree_.starts))
        self.tree_.weight[:] *= np.repeat(of_feature, np.diff(self.tree_.entries))
        self.tree_.bias[:] *= np.repeat(of_node, np.diff(self.tree_.first))

    def _order(
        self, data: SparseRows, labels: np.ndarray, rows: np.ndarray, n_classes: int
    ) -> np.ndarray:
        """Classes, similar ones close."""
        from extremax.kernels.cpu.class_split import halve
        from extremax.kernels.cpu.threads import parallel

        vectors = _class_vectors(data, labels, rows, n_classes)
        order = np.random.default_rng(self.seed).permutation(n_classes)
        key = Stream.of(self.seed, rows=rows[:0]).key
        ranges = np.array([[0, n_classes]])
        while np.diff(ranges).max() > 2:
            n = len(ranges)
            parallel(
                halve, n, max(1, n // 16), ranges, order, *vectors.arrays, data.n_features, 8, key
            )
            middle = ranges.sum(1) // 2
            halves = np.stack([ranges[:, 0], middle, middle, ranges[:, 1]], 1).reshape(-1, 2)
            ranges = halves[np.diff(halves)[:, 0] > 1]
        return order

    def _place(self, order: np.ndarray) -> None:
        self._position = np.empty(len(order), np.int64)
        self._position[order] = np.arange(len(order))

    def _choose_penalties(self, examples: _Examples, shape: Shape) -> list[float]:
        n_levels = int(shape.level.max()) + 1
        if self.lambda_ != "auto":
            return [float(self.lambda_)] * n_levels
        return [self._best_penalty(examples, shape, level) for level in range(n_levels)]

    def _best_penalty(self, examples: _Examples, shape: Shape, level: int) -> float:
        """From the middle to the better neighbour, and on while the next is better."""
        trial = examples.trial(np.flatnonzero(shape.level == level), _TRIAL_ROWS)
        if not trial:
            return _PENALTIES[_FIRST]
        gains: dict[int, float] = {}

        def gain(i: int) -> float:
            if i not in gains:
                gains[i] = self._held_out(examples, shape, trial, _PENALTIES[i])
            return gains[i]

        best = _FIRST
        for step in (1, -1):
            while 0 <= best + step < len(_PENALTIES) and gain(best + step) > gain(best):
                best += step
            if best != _FIRST:
                break
        return _PENALTIES[best]

    def _held_out(
        self,
        examples: _Examples,
        shape: Shape,
        trial: list[tuple[int, np.ndarray, np.ndarray]],
        penalty: float,
    ) -> float:
        """Log-likelihood of the rows left out of some nodes, at the best sharpness."""
        from extremax.kernels.cpu.sparse_node import likelihoods
        from extremax.kernels.cpu.threads import parallel

        totals = np.zeros((len(trial), len(_SHARPNESSES)))

        def work(start: int, stop: int) -> None:
            for i in range(start, stop):
                n, rows, out = trial[i]
                features, weight = self._fit_node(examples, shape, n, rows, penalty)
                totals[i] = likelihoods(
                    out, examples.child(shape, n, out), examples.arrays, features, weight,
                    examples.n_features, _SHARPNESSES,
                )  # fmt: skip

        parallel(work, len(trial), 1)
        return float(totals.sum(0).max())

    def _fit_nodes(self, examples: _Examples, shape: Shape) -> list[Any]:
        from extremax.kernels.cpu.sparse_node import pruned
        from extremax.kernels.cpu.threads import parallel

        nodes: list[Any] = [None] * len(shape.level)

        def work(start: int, stop: int) -> None:
            for n in range(start, stop):
                penalty = self.penalties_[shape.level[n]]
                fitted = self._fit_node(examples, shape, n, examples.rows_of(n), penalty)
                nodes[n] = pruned(*fitted, np.float32(self.prune))

        parallel(work, len(nodes), 1)
        return nodes

    def _fit_node(
        self, examples: _Examples, shape: Shape, n: int, rows: np.ndarray, penalty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        from extremax.kernels.cpu.sparse_node import fit

        local = np.full(examples.n_features, -1, np.int32)
        size = int(shape.first[n + 1] - shape.first[n])
        key = Stream.of(self.seed, n, rows=rows[:0]).key
        return fit(
            rows, examples.child(shape, n, rows), size, *examples.arrays, local, penalty,
            self.passes, key,
        )  # fmt: skip

    def _assemble(self, shape: Shape, nodes: list[Any], order: np.ndarray, n_features: int) -> None:
        """All nodes in the arrays that walks read; weights take the scale of the rows in."""
        features, counts, child, weight, bias = zip(*nodes, strict=True)
        starts = np.cumsum([0] + [len(f) for f in features])
        entries = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        self._set(
            {
                "first": shape.first,
                "position": shape.position,
                "node": shape.node,
                "bias": np.concatenate(bias),
                "starts": starts,
                "features": np.concatenate(features),
                "entries": entries,
                "child": np.concatenate(child),
                "weight": np.concatenate(weight) * np.float32(self.scale_),
                "order": order,
            }
        )
        self.n_features_in_ = n_features

    def _set(self, arrays: dict[str, np.ndarray]) -> None:
        from extremax.kernels.cpu.sparse_tree import Tree

        types = {"bias": np.float32, "weight": np.float32, "features": np.int32, "child": np.int16}
        self.tree_ = Tree(
            **{k: np.ascontiguousarray(v, types.get(k, np.int64)) for k, v in arrays.items()}
        )
        self._place(self.tree_.order)

    # The distribution -------------------------------------------------------------------------

    @property
    def n_late_(self) -> int:
        """Classes that came after the fit."""
        return self.n_classes_ - len(self.tree_.order)

    def context(self, features: Any) -> Any:
        """The rows themselves."""
        rows = SparseRows.of(features)
        if rows.n_features != self.n_features_in_:
            raise ValueError(f"rows have {rows.n_features} features, not {self.n_features_in_}")
        return rows

    def sample(self, context: Any, m: int, stream: Stream) -> Draw:
        from extremax.kernels.cpu.sparse_tree import sample
        from extremax.kernels.cpu.threads import parallel

        labels = torch.empty((len(context), m), dtype=torch.int64)
        log_q = torch.empty((len(context), m))
        parallel(
            sample, len(context), 256, self.tree_, *context.arrays, stream.key, stream.rows,
            labels.numpy(), log_q.numpy(),
        )  # fmt: skip
        if self.n_late_:
            # A walk uses numbers 0..64m−1 of a row's stream; the late branch uses the next ones.
            uniform = torch.from_numpy(stream.uniform(65 * m)[:, 64 * m :])
            scaled = (uniform * self.n_classes_).long()
            late = scaled >= len(self.tree_.order)
            labels = torch.where(late, scaled, labels)
            log_q = torch.where(late, -math.log(self.n_classes_), log_q + self._log_share)
        return Draw(labels, log_q)

    @property
    def _log_share(self) -> float:
        """log of the share of probability that the tree's own classes have."""
        return math.log(len(self.tree_.order) / self.n_classes_)

    def log_prob(self, context: Any, labels: torch.Tensor) -> torch.Tensor:
        from extremax.kernels.cpu.sparse_tree import log_prob
        from extremax.kernels.cpu.threads import parallel

        late = labels >= len(self.tree_.order)
        inside = torch.where(late, 0, labels).contiguous()
        out = torch.empty(labels.shape)
        parallel(
            log_prob, len(context), 256, self.tree_, self._position, *context.arrays,
            inside.numpy(), out.numpy(),
        )  # fmt: skip
        if self.n_late_:
            out = torch.where(late, -math.log(self.n_classes_), out + self._log_share)
        return out

    def log_prob_all(self, context: Any) -> torch.Tensor:
        from extremax.kernels.cpu.sparse_tree import log_prob_all
        from extremax.kernels.cpu.threads import parallel

        out = torch.full((len(context), self.n_classes_), -math.log(self.n_classes_))
        parallel(log_prob_all, len(context), 16, self.tree_, *context.arrays, out.numpy())
        if self.n_late_:
            out[:, : len(self.tree_.order)] += self._log_share
        return out

    def search(self, context: Any, k: int, width: int) -> Draw:
        """The k likeliest classes under the ``width`` likeliest nodes of each level, best first,
        and their log q; −1 and −∞ where there are not as many."""
        from extremax.kernels.cpu.sparse_tree import search
        from extremax.kernels.cpu.threads import parallel

        labels = torch.empty((len(context), k), dtype=torch.int64)
        log_q = torch.empty((len(context), k))
        parallel(
            search, len(context), 64, self.tree_, *context.arrays, width, labels.numpy(),
            log_q.numpy(),
        )  # fmt: skip
        return Draw(labels, log_q + self._log_share)

    def extend(self, n_classes: int) -> None:
        check_growth(self, n_classes)
        self.n_classes_ = n_classes

    def state(self) -> dict[str, torch.Tensor]:
        return {
            **{name: torch.from_numpy(array) for name, array in self.tree_._asdict().items()},
            "n_classes": torch.tensor(self.n_classes_),
            "n_features": torch.tensor(self.n_features_in_),
            "penalties": torch.tensor(self.penalties_, dtype=torch.float64),
            "sharpness": torch.tensor(self.sharpness_, dtype=torch.float64),
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        from extremax.kernels.cpu.sparse_tree import Tree

        self._set({name: state[name].numpy() for name in Tree._fields})
        self.n_classes_ = int(state["n_classes"])
        self.n_features_in_ = int(state["n_features"])
        self.penalties_ = state["penalties"].tolist()
        self.sharpness_ = state["sharpness"].tolist()


class _Examples(NamedTuple):
    """Training rows by the positions of their classes, so that those of a node are neighbours."""

    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
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
    ) -> _Examples:  # fmt: skip
        indptr, indices, values = data.arrays
        position = place[labels]
        by_position = rows[np.argsort(position[rows], kind="stable")]
        start = shape.position[shape.first[:-1]]
        bounds = np.searchsorted(position[by_position], np.stack([start, shape.stop], 1))
        scaled = (indptr, indices, values * np.float32(scale))
        return cls(scaled, data.n_features, by_position, position, bounds, seed)

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


def tree_shape(n_classes: int) -> Shape:
    """As few levels as there can be with `_HALVINGS` halvings each, the halvings spread evenly."""
    depth = max(1, math.ceil(math.log2(max(n_classes, 2))))
    n_levels = -(-depth // _HALVINGS)
    steps = [(depth * (i + 1)) // n_levels - (depth * i) // n_levels for i in range(n_levels)]
    ranges = [np.array([[0, n_classes]])]
    first, position, node, level, stop = [0], [], [], [], []
    n_nodes = 1
    for number, halvings in enumerate(steps):
        inner = []
        for lo, hi in ranges[-1]:
            edges = np.array([lo, hi])
            for _ in range(halvings):
                edges = np.unique(np.concatenate([edges, (edges[:-1] + edges[1:]) // 2]))
            position.append(edges[:-1])
            sizes = np.diff(edges)
            own = np.full(len(sizes), -1)
            own[sizes > 1] = n_nodes + np.arange((sizes > 1).sum())
            n_nodes += int((sizes > 1).sum())
            node.append(own)
            first.append(first[-1] + len(sizes))
            level.append(number)
            stop.append(hi)
            inner.append(np.stack([edges[:-1], edges[1:]], 1)[sizes > 1])
        ranges.append(np.concatenate(inner))
    return Shape(
        np.array(first), np.concatenate(position), np.concatenate(node), np.array(level),
        np.array(stop),
    )  # fmt: skip


def _unit_scale(data: SparseRows, rows: np.ndarray) -> float:
    """1 / root mean square of the lengths of the rows."""
    squares = np.concatenate([[0.0], np.cumsum(np.square(data.values, dtype=np.float64))])
    lengths = (squares[data.indptr[1:]] - squares[data.indptr[:-1]])[rows]
    mean = float(lengths.mean()) if len(rows) else 0.0
    return mean**-0.5 if mean > 0 else 1.0


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
