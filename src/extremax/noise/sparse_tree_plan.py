"""What a sparse tree costs, for planning: memory, work of the fit, and a random tree to time.

Memory depends on the data: on titles the tree kept 0.7 to 1.6 weights per value and level, and one
is assumed. The fit needs most for the root, with one α per row and child
(`extremax.kernels.cpu.sparse_node`).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from extremax.kernels.cpu.sparse_table import packed
from extremax.noise.sparse_tree_fit import MOST_ROWS, TRIAL_ROWS
from extremax.noise.sparse_tree_shape import tree_shape
from extremax.rows import Needs, Sizes

# A weight, and two slots of the hash table for every fourth weight.
_WEIGHT_BYTES = 4.0 + 32.0 / 4.0
# On disk, a feature and a count for every fourth weight.
_SAVED_WEIGHT_BYTES = 4.0 + 6.0 / 4.0
# The fewest penalties that "auto" tries, see `NodeFit.best_penalties`.
_TRIES = 3
# The most weights per level of a random tree.
_MOST_WEIGHTS = 1 << 23


def needs(sizes: Sizes, n_threads: int) -> Needs:
    weights = _kept_weights(sizes)
    # Positions, numbers of nodes and biases; the order of the classes and its inverse.
    kept = _WEIGHT_BYTES * weights + 40.0 * sizes.classes
    # The sums of classes, their squares and a copy.
    ordering = 24.0 * sizes.nonzeros * sizes.rows + 16.0 * sizes.rows
    # The root is fitted first, alone or while other threads fit the rest. Then all nodes are
    # copied into common arrays. Rows are sorted by position all the time.
    nodes = _nodes_bytes(sizes, n_threads) + (kept if n_threads > 1 else 0.0)
    fitting = max(ordering, 24.0 * sizes.rows + max(nodes, 2.5 * kept))
    # Order and biases.
    saved = _SAVED_WEIGHT_BYTES * weights + 13.0 * sizes.classes
    return Needs(kept, fitting - kept, saved)


def _kept_weights(sizes: Sizes) -> float:
    """One weight per value and level, but no more than the nodes have."""
    shape = tree_shape(sizes.classes)
    children = np.bincount(shape.level, np.diff(shape.first))
    values = sizes.nonzeros * sizes.rows
    return float(np.minimum(values, float(sizes.features) * children).sum())


def _nodes_bytes(sizes: Sizes, n_threads: int) -> float:
    """Nodes fitted at the same time: the root, and one node below it on each other thread."""
    children = np.diff(tree_shape(sizes.classes).first)
    root = _node_bytes(sizes, min(sizes.rows, MOST_ROWS), int(children[0]))
    below = children[1:]
    if not len(below):
        return root
    rows_below = min(sizes.rows / int(children[0]), MOST_ROWS)
    others = min(n_threads - 1, len(below))
    return root + others * _node_bytes(sizes, rows_below, int(below.max()))


def _node_bytes(sizes: Sizes, rows: float, children: int) -> float:
    """α, the copied rows, W and a copy of W."""
    width = -(-children // 16) * 16
    alpha, values = 4.0 * rows * width, sizes.nonzeros * rows
    features = min(float(sizes.features), values)
    return alpha + 8.0 * values + 24.0 * rows + 8.0 * features * width


def fit_work(sizes: Sizes, n_threads: int, tries: bool) -> float:
    """rows × children along the critical path.

    One thread fits the root, while all threads share the nodes of other levels. Each penalty tried
    costs one fit to some rows of each level.
    """
    shape = tree_shape(sizes.classes)
    n_children = np.diff(shape.first)
    root, shared, tried = 0.0, 0.0, 0.0
    for level in range(shape.n_levels):
        nodes = n_children[shape.level == level]
        children = float(nodes.mean())
        work = min(sizes.rows, len(nodes) * MOST_ROWS) * children
        shared += work
        root = root or work
        if tries:
            threads = min(n_threads, len(nodes))
            tried += _TRIES * min(sizes.rows, TRIAL_ROWS) * children / threads
    return tried + max(root, shared / n_threads)


def random_state(n_features: int, n_classes: int, sizes: Sizes) -> dict[str, torch.Tensor]:
    """The state of a tree with random weights, as many as a fit to a problem of these sizes keeps.

    Features are as frequent as words, P(f) ∝ 1/f. All nodes of a level have the same features; a
    feature that occurs k times in the rows of a node has weights for k of its children.
    """
    random, shape = np.random.default_rng(0), tree_shape(n_classes)
    n_children = np.diff(shape.first)
    features, counts, child, features_of = [], [], [], []
    share = 1.0 / (np.arange(1, n_features + 1) * math.log(n_features + 1))
    for level in range(shape.n_levels):
        nodes = n_children[shape.level == level]
        values = min(sizes.nonzeros * sizes.rows, _MOST_WEIGHTS) / len(nodes)
        often = np.minimum(random.poisson(values * share), nodes.min())
        present = np.flatnonzero(often)
        children = np.concatenate([[0], *(np.arange(often[f]) for f in present)])[1:]
        features.append(np.tile(present, len(nodes)))
        counts.append(np.tile(often[present], len(nodes)))
        child.append(np.tile(children, len(nodes)))
        features_of += [len(present)] * len(nodes)
    all_children = np.concatenate(child)
    weight = random.standard_normal(len(all_children), dtype=np.float32) / 2
    arrays = {
        "order": random.permutation(n_classes),
        "bias": np.zeros(len(shape.position), np.float32),
        "features_of": np.array(features_of),
        "features": np.concatenate(features).astype(np.int32),
        "counts": np.concatenate(counts).astype(np.int16),
        "weights": packed(weight, all_children),
        "n_classes": np.array(n_classes),
        "n_features": np.array(n_features),
        "penalties": np.ones(shape.n_levels),
        "sharpness": np.ones(shape.n_levels),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
