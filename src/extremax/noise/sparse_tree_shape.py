"""The shape of the sparse tree: which classes each node has under it. It follows from C alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# Halvings that one level takes at most: its nodes have 256 children, and the number of a child fits
# in eight bits (`extremax.kernels.cpu.sparse_table`).
_HALVINGS = 8


class Shape(NamedTuple):
    """The positions and children of nodes, as in `extremax.kernels.cpu.sparse_tree`."""

    first: np.ndarray
    position: np.ndarray
    node: np.ndarray
    level: np.ndarray
    stop: np.ndarray

    @property
    def n_levels(self) -> int:
        return int(self.level.max()) + 1


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
