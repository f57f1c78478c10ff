"""How long training on rows that stay sparse will take, from a trial as in
`extremax.planning.timing`.

Features of the made-up rows are as frequent as words are, P(f) ∝ 1/f. A node of the tree is fitted
to some of them, and the time scaled by visits × children; steps draw from a tree made up as large
as the real one. Rough is what the data decide: how many penalties the fit tries, how many weights
it keeps, which makes draws slow or fast, and how many steps weighing head and tree takes.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from scipy import sparse

from extremax.bag_head import BagHead
from extremax.features.rows import SparseRows
from extremax.kernels.cpu.sparse_table import packed
from extremax.kernels.cpu.threads import active
from extremax.noise import Noise, SparseTreeNoise
from extremax.noise.sparse_tree_fit import _MOST_ROWS, _TRIAL_ROWS
from extremax.noise.sparse_tree_shape import tree_shape
from extremax.planning.memory import rows_apart
from extremax.planning.timing import HEAD_FLOATS, MOST_ROWS, SECONDS, Step, Trial
from extremax.prediction.blending import blends, fit_blend
from extremax.prediction.blocks import Head
from extremax.sparse_head import SparseHead

# Two levels of the tree, and weights that a level has at most.
_MOST_CLASSES, _MOST_WEIGHTS = 1 << 16, 1 << 23
# Values of the trial's rows, and rows by which it weighs head and tree.
_MOST_VALUES, _WEIGHED = 1 << 22, 1_000
# Penalties that the choice of one tries at least, see `NodeFit.best_penalty`.
_TRIES = 3


class SparseTrial(Trial):
    """Sparse rows, a bag and a tree nobody has trained."""

    def _most_classes(self) -> int:
        return _MOST_CLASSES

    def _features(self) -> SparseRows:
        self.n_features = min(self.problem.features, max(1, HEAD_FLOATS // self.model.bag_size))
        each = max(1, round(self.problem.nonzeros))
        rows = max(64, min(self.problem.rows, MOST_ROWS, _MOST_VALUES // each))
        found = (self.n_features ** self.random.random((rows, each))).astype(np.int64) - 1
        ends = np.arange(0, rows * each + 1, each)
        values = np.ones(rows * each, np.float32)
        shape = (rows, self.n_features)
        return SparseRows.of(sparse.csr_matrix((values, found.ravel(), ends), shape))

    def _head(self) -> Head:
        model = self.model
        if not self.objective.samples:
            rows = np.arange(self.rows)
            start = model.accumulator_start
            return SparseHead.of(self.features, self.labels, rows, self.classes, start, 1.0)
        head = BagHead(self.classes, self.n_features, model.bag_size, model.accumulator_start)
        head.weight.fill_(1e-3)
        return head

    def _noise(self) -> Noise:
        noise = self._unfitted()
        if not isinstance(noise, SparseTreeNoise):
            return noise.fit(self.features, self.labels, self.classes)
        noise.load_state(self._tree())
        return noise

    def _tree(self) -> dict[str, torch.Tensor]:
        """Nodes of a level are all alike; a feature that comes k times in the rows of a node speaks
        of k of its children."""
        shape = tree_shape(self.classes)
        sizes = np.diff(shape.first)
        features, counts, child, features_of = [], [], [], []
        share = 1.0 / (np.arange(1, self.n_features + 1) * math.log(self.n_features + 1))
        for level in range(shape.n_levels):
            nodes = sizes[shape.level == level]
            values = min(self.problem.nonzeros * self.problem.rows, _MOST_WEIGHTS) / len(nodes)
            often = np.minimum(self.random.poisson(values * share), nodes.min())
            said = np.flatnonzero(often)
            own = np.concatenate([[0], *(np.arange(often[f]) for f in said)])[1:]
            features.append(np.tile(said, len(nodes)))
            counts.append(np.tile(often[said], len(nodes)))
            child.append(np.tile(own, len(nodes)).astype(np.int16))
            features_of += [len(said)] * len(nodes)
        n_weights = sum(len(part) for part in child)
        weight = self.random.standard_normal(n_weights, dtype=np.float32) / 2
        arrays = {
            "first": shape.first,
            "position": shape.position,
            "node": shape.node,
            "bias": np.zeros(len(shape.position), np.float32),
            "features_of": np.array(features_of),
            "features": np.concatenate(features),
            "counts": np.concatenate(counts),
            "weights": packed(weight, np.concatenate(child)),
            "order": self.random.permutation(self.classes),
            "n_classes": np.array(self.classes),
            "n_features": np.array(self.n_features),
            "penalties": np.zeros(shape.n_levels),
            "sharpness": np.ones(shape.n_levels),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def noise_seconds(self) -> float:
        """Fits to ever more rows, until one takes long enough to tell; of a tree, its root."""
        noise, classes = self._unfitted(), self.classes
        if isinstance(noise, SparseTreeNoise):
            noise.set_params(lambda_=1.0)
            classes = int(tree_shape(self.problem.classes).first[1])
        n = 1000
        # The first time loads the kernels.
        noise.fit(self.features[:n], self.labels[:n] % classes, classes)
        while True:
            n = min(n, self.rows)
            start = time.perf_counter()
            noise.fit(self.features[:n], self.labels[:n] % classes, classes)
            took = time.perf_counter() - start
            if took > SECONDS / 2 or n == self.rows:
                break
            n *= 2
        if not isinstance(noise, SparseTreeNoise):
            return took * self.problem.rows / n
        tries = _TRIES if self.unfitted.get_params()["lambda_"] == "auto" else 0
        whole = _fit_work(self.problem.rows, self.problem.classes, tries)
        return took * whole / _fit_work(n, classes, 0)

    def last_steps(self) -> list[Step]:
        rows = rows_apart(self.problem, self.model)
        if not blends(self.noise, self.objective) or not rows:
            return []
        few, counts = np.arange(min(self.rows, _WEIGHED)), np.ones(self.classes)
        # The first time loads the kernels.
        fit_blend(self.scorer, self.features, self.labels, few[:8], counts)
        start = time.perf_counter()
        fit_blend(self.scorer, self.features, self.labels, few, counts)
        a_row = (time.perf_counter() - start) / len(few)
        return [Step("weighing head and noise", a_row * rows)]


def _fit_work(rows: int, classes: int, tries: int) -> float:
    """What fitting a tree costs, up to a factor: rows × children on the longest way.

    The root is the work of one thread, the nodes of other levels are shared by all. Each of the
    penalties that are tried costs a level a fit to some of its rows.
    """
    shape, threads = tree_shape(classes), active()
    sizes = np.diff(shape.first)
    alone, shared, tried = 0.0, 0.0, 0.0
    for level in range(shape.n_levels):
        nodes = sizes[shape.level == level]
        children = float(nodes.mean())
        work = min(rows, len(nodes) * _MOST_ROWS) * children
        shared += work
        alone = alone or work
        tried += tries * min(rows, _TRIAL_ROWS) * children / min(threads, len(nodes))
    return tried + max(alone, shared / threads)
