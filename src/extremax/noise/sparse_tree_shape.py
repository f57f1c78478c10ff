"""The shape of the sparse tree: which classes are under each node. It follows from the number of
classes alone, and where some were grafted on later, from the number of those."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

#: The most halvings per level: nodes have at most 256 children, so that the number of a child fits
#: in eight bits (`extremax.kernels.cpu.sparse_table`).
HALVINGS = 8


class Shape(NamedTuple):
    """Nodes by number and their children.

    first, position, node:  as in `extremax.kernels.cpu.sparse_tree`.
    level, stop:  the level of a node, and the end of its range of positions.
    """

    first: np.ndarray
    position: np.ndarray
    node: np.ndarray
    level: np.ndarray
    stop: np.ndarray

    @property
    def n_levels(self) -> int:
        return int(self.level.max()) + 1


def tree_shape(n_classes: int) -> Shape:
    """As few levels as possible with at most `HALVINGS` halvings each, spread evenly."""
    depth = max(1, math.ceil(math.log2(max(n_classes, 2))))
    n_levels = -(-depth // HALVINGS)
    node_low, node_high = np.array([0]), np.array([n_classes])
    sizes, position, node, level, stop = [], [], [], [], []
    n_nodes = 1
    for number in range(n_levels):
        low, high, parent = node_low, node_high, np.arange(len(node_low))
        for _ in range((depth * (number + 1)) // n_levels - (depth * number) // n_levels):
            low, high, parent = _halved(low, high, parent)
        is_node = high - low > 1
        child = np.full(len(low), -1)
        child[is_node] = n_nodes + np.arange(is_node.sum())
        n_nodes += int(is_node.sum())
        sizes.append(np.bincount(parent, minlength=len(node_low)))
        position.append(low)
        node.append(child)
        level.append(np.full(len(node_low), number))
        stop.append(node_high)
        node_low, node_high = low[is_node], high[is_node]
    first = np.concatenate([[0], *sizes]).cumsum()
    return Shape(first, *(np.concatenate(parts) for parts in (position, node, level, stop)))


def grafted_shape(n_classes: int, n_late: int) -> Shape:
    """A root with two children: the tree of the first classes, and the tree of the late ones."""
    old, late = tree_shape(n_classes), tree_shape(n_late)
    n_nodes = len(old.level)
    return Shape(
        np.concatenate([[0], 2 + old.first, 2 + old.first[-1] + late.first[1:]]),
        np.concatenate([[0, n_classes], old.position, n_classes + late.position]),
        np.concatenate([[1, 1 + n_nodes], _below(old.node, 1), _below(late.node, 1 + n_nodes)]),
        np.concatenate([[0], old.level + 1, late.level + 1]),
        np.concatenate([[n_classes + n_late], old.stop, n_classes + late.stop]),
    )


def _below(node: np.ndarray, first: int) -> np.ndarray:
    """Nodes numbered from ``first`` on; −1 is no node."""
    return np.where(node < 0, -1, node + first)


def _halved(
    low: np.ndarray, high: np.ndarray, parent: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ranges cut in half, except those of a single position."""
    middle = (low + high) // 2
    is_cut = middle > low
    copies = 1 + is_cut
    right = np.cumsum(copies)[is_cut] - 1
    low, high, parent = (np.repeat(array, copies) for array in (low, high, parent))
    low[right], high[right - 1] = middle[is_cut], middle[is_cut]
    return low, high, parent
