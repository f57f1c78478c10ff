"""Memory of training on rows that stay sparse, for `extremax.planning.memory`.

What the rows and the head take is counted from their shapes. What the tree takes depends on the
data: by trial on titles it keeps 0.7 to 1.6 weights a value and level, and one is assumed. Fitting
it needs most for the root, whose α are one number for each row and child
(`extremax.kernels.cpu.sparse_node`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from extremax.kernels.cpu.threads import resolve
from extremax.planning.memory import probed, rows_apart
from extremax.planning.problem import Problem, csr_bytes

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.noise import Noise

# A weight of the tree; two places of the table that leads there, for every fourth weight.
_WEIGHT_BYTES = 4.0 + 32.0 / 4.0
# Saved, there is a feature and a count for every fourth weight.
_SAVED_WEIGHT_BYTES = 4.0 + 6.0 / 4.0


def needs(
    problem: Problem, model: ExtremeClassifier, noise: Noise
) -> tuple[dict[str, float], dict[str, float]]:
    """What is made and stays, and what passing phases need beside it."""
    head, tree = _head_bytes(problem, model) / 2.0, _noise_bytes(noise, problem)
    objective = model._parts(problem.rows, problem.width, problem.classes, True)[0]
    # The vectors of features by chance, before they are in the head; or where class and feature
    # met, by class and by feature, and the class means.
    starting = 4.0 * problem.features * model.bag_size
    if not objective.samples:
        starting = 32.0 * problem.nonzeros * problem.rows
    made = {
        "sparse rows": problem.rows * _row_bytes(problem),
        "head": head,
        "Adagrad accumulators": head,
        "noise": tree,
        "draws": _kept_draws(problem, model, noise),
    }
    phases = {
        # Nothing of what is made is there yet.
        "hashing the texts": _hashing(problem) - sum(made.values()),
        # The head is not there yet, and of the tree this counts every part.
        "fitting the noise": _fitting(noise, problem, resolve(model.n_jobs)) - 2.0 * head - tree,
        "starting the head": starting,
        "weighing head and noise": _weighing(problem, model, noise),
    }
    return made, phases


def saved_bytes(problem: Problem, model: ExtremeClassifier, noise: Noise) -> float:
    """The size of the saved model."""
    # Names, and how often each came.
    labels = 24.0 * problem.classes
    encoder = 12.0 * problem.features if problem.kind == "text" else 0.0
    tree = _noise_bytes(noise, problem)
    if _is_tree(noise):
        tree -= (_WEIGHT_BYTES - _SAVED_WEIGHT_BYTES) * _kept_weights(problem)
    return _head_bytes(problem, model) + labels + encoder + tree


def _head_bytes(problem: Problem, model: ExtremeClassifier) -> float:
    """Vectors of classes and features with their biases, and the accumulators of all; with exact
    softmax a weight, its accumulator, slope and class for each value at most."""
    objective = model._parts(problem.rows, problem.width, problem.classes, True)[0]
    if not objective.samples:
        return 24.0 * problem.nonzeros * problem.rows + 8.0 * problem.classes
    return 8.0 * (problem.classes + problem.features) * (model.bag_size + 1)


def _kept_draws(problem: Problem, model: ExtremeClassifier, noise: Noise) -> float:
    """Classes and log q of every row, where they are drawn once (`extremax.training.loop`)."""
    from extremax.training.loop import _KEPT_BYTES

    size = 12.0 * problem.rows * (1 + model._n_negatives)
    return size if noise.draws_once and size <= _KEPT_BYTES else 0.0


def _row_bytes(problem: Problem) -> float:
    """What a row takes besides what was read: its place as an int64, or all of it."""
    copied = problem.kind == "text" or problem.several
    return 8.0 + (csr_bytes(problem.nonzeros) if copied else 0.0)


def _is_tree(noise: Noise) -> bool:
    from extremax.noise import SparseTreeNoise

    return isinstance(noise, SparseTreeNoise)


def _noise_bytes(noise: Noise, problem: Problem) -> float:
    if not _is_tree(noise):
        # Whatever the features, it does not look at them.
        return probed(noise, 1)[0] * problem.classes
    # Positions, numbers of nodes and biases; the order of the classes and its inverse.
    return _WEIGHT_BYTES * _kept_weights(problem) + 40.0 * problem.classes


def _kept_weights(problem: Problem) -> float:
    """One a value and level, but no more than the node models have."""
    from extremax.noise.sparse_tree_shape import tree_shape

    shape = tree_shape(problem.classes)
    children = np.bincount(shape.level, np.diff(shape.first))
    values = problem.nonzeros * problem.rows
    return float(np.minimum(values, float(problem.features) * children).sum())


def _hashing(problem: Problem) -> float:
    """Counts, the buckets of them that are filled, and their squares."""
    if problem.kind != "text":
        return 0.0
    return 3.0 * csr_bytes(problem.nonzeros) * problem.rows


def _fitting(noise: Noise, problem: Problem, threads: int) -> float:
    if not _is_tree(noise):
        return 24.0 * problem.rows
    values = problem.nonzeros * problem.rows
    # The sums of classes, their squares and a copy.
    ordering = 24.0 * values + 16.0 * problem.rows
    tree = _noise_bytes(noise, problem)
    # The root comes first: alone, or while other threads make the rest. Then all nodes are put
    # together in arrays of their own.
    nodes = _nodes_bytes(problem, threads) + (tree if threads > 1 else 0.0)
    # Rows by the position of their class.
    return max(ordering, 24.0 * problem.rows + max(nodes, 2.5 * tree))


def _nodes_bytes(problem: Problem, threads: int) -> float:
    """Fits of nodes at the same time: the root, and on each other thread one below it."""
    from extremax.noise.sparse_tree_fit import _MOST_ROWS
    from extremax.noise.sparse_tree_shape import tree_shape

    shape = tree_shape(problem.classes)
    children = np.diff(shape.first)
    root = _node_bytes(problem, min(problem.rows, _MOST_ROWS), int(children[0]))
    below = children[1:]
    if not len(below):
        return root
    each = min(problem.rows / children[0], _MOST_ROWS)
    others = min(threads - 1, len(below))
    return root + others * _node_bytes(problem, each, int(below.max()))


def _node_bytes(problem: Problem, rows: float, children: int) -> float:
    """α; the rows by themselves; W and a copy of it."""
    width = -(-children // 16) * 16
    alpha, values = 4.0 * rows * width, problem.nonzeros * rows
    features = min(float(problem.features), values)
    return alpha + 8.0 * values + 24.0 * rows + 8.0 * features * width


def _weighing(problem: Problem, model: ExtremeClassifier, noise: Noise) -> float:
    """What is known of some classes of held-out rows, as in `extremax.prediction.blending`: all in
    float32, and a block of it three times in float64."""
    from extremax.noise.sparse_tree_shape import tree_shape
    from extremax.prediction.blending import _BLOCK, _DRAWN, _FOUND, blends

    objective = model._parts(problem.rows, problem.width, problem.classes, True)[0]
    if not blends(noise, objective):
        return 0.0
    rows, levels = rows_apart(problem, model), tree_shape(problem.classes).n_levels
    classes = 1 + min(problem.classes, _FOUND + _DRAWN)
    return classes * (4.0 * (levels + 3) * rows + 24.0 * (levels + 2) * min(rows, _BLOCK))
