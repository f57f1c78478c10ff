"""Walks through the noise tree, in numba.

The tree has no pointers and no padding. Its leaves are the positions 0..C−1; a node is a range
[lo, hi) of positions, split at mid = lo + (hi − lo)//2, so both halves hold as many classes as
possible and the shape follows from C alone. Each mid in 1..C−1 belongs to exactly one node:
row mid of ``nodes`` (C, k+1) holds that node's weights and, last, its bias. Row 0 is unused.
Ranges close in the tree are close in memory, so the deep levels share cache lines.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.prefetch import prefetch
from extremax.kernels.cpu.random import row_state, uniform

# A running product of probabilities is folded into the logarithm before it can underflow. Below
# this, log σ(a) = a to float32 precision.
_TINY = 1e-30
# Walks that descend together: with 8, a draw from 10⁶ classes took a tenth longer; 32 gained
# nothing.
_WALKS = 16
# From here on, σ(a) = 1 and σ(−a) = e^−a to double precision.
_SURE = 37.0
# More levels than any tree has.
_DEEPEST = 63
# Floats in a cache line, and in the cache of one core (1 MiB).
_LINE = 16
_NEAR = 1 << 18


@kernel(fastmath=FAST, inline="always")
def activation(node, z):
    """w·z + b."""
    total = node[z.size]
    for f in range(z.size):
        total += node[f] * z[f]
    return total


@kernel(inline="always")
def _sigmoid(a, e):
    """σ(a) given e = exp(−|a|), with full relative precision in both tails."""
    return (1.0 if a >= 0.0 else e) / (1.0 + e)


@kernel(inline="always")
def _times(total, product, a, e):
    """Multiply exp(total) · product by σ(a): an occasional logarithm instead of one per level."""
    probability = _sigmoid(a, e)
    if probability < _TINY:
        # Here log σ(a) is a itself.
        return total + a, product
    product *= probability
    if product < _TINY:
        return total + math.log(product), 1.0
    return total, product


@kernel(inline="always")
def _prefetch_node(nodes, mid):
    for column in range(0, nodes.shape[1], _LINE):
        prefetch(nodes, mid, column)


@kernel
def _prefetch_path(nodes, leaf):
    """Start loading all nodes above a leaf."""
    lo, hi = 0, len(nodes)
    while hi - lo > 1:
        mid = lo + (hi - lo) // 2
        _prefetch_node(nodes, mid)
        lo, hi = (mid, hi) if leaf >= mid else (lo, mid)


@kernel
def sample(start, stop, nodes, order, z, key, rows, labels, log_q):
    """Ancestral sampling: labels[i, j] ~ q(· | z[i]), log_q its log-probability."""
    m = labels.shape[1]
    walks = _walks()
    for first in range(start * m, stop * m, _WALKS):
        n = min(_WALKS, stop * m - first)
        for w in range(n):
            i, j = divmod(first + w, m)
            _begin(walks, w, i, j, row_state(key, rows[i]), 0, order.size, 0.0)
        _descend(walks, n, 0, nodes, order, z, labels, log_q)


@kernel
def sample_others(
    start, stop, nodes, order, position, z, truth, key, rows, log_others, labels, log_q
):
    """labels[i, j] ~ q(· | z[i]) given that it is not truth[i, 0], log_q its log-probability, and
    log_others[i, 0] = log(1 − q(truth[i, 0] | z[i])). A truth of −1 is no class of the tree.

    A walk leaves the path to the true class at some node, with a probability in proportion to that
    of following the path to the node and of leaving it there. It takes the node's other child and
    continues at will.
    """
    m = labels.shape[1]
    walks, path = _walks(), _path()
    i, depth, total, state = -1, 0, 0.0, np.uint64(0)
    for first in range(start * m, stop * m, _WALKS):
        n = min(_WALKS, stop * m - first)
        for w in range(n):
            if (first + w) // m != i:
                i = (first + w) // m
                state = row_state(key, rows[i])
                depth, log_others[i, 0] = 0, 0.0
                if truth[i, 0] >= 0:
                    depth, total, log_others[i, 0] = _departures(
                        nodes, z[i], position[truth[i, 0]], path
                    )
            j = first + w - i * m
            if depth == 0:
                _begin(walks, w, i, j, state, 0, order.size, 0.0)
                continue
            target, d = uniform(state, j * 64) * total, 0
            while target >= path.weight[d] and d < depth - 1:
                target -= path.weight[d]
                d += 1
            log_share = math.log(path.weight[d] / total)
            _begin(walks, w, i, j, state, path.lo[d], path.hi[d], log_share)
        _descend(walks, n, 1, nodes, order, z, labels, log_q)


@kernel
def log_others(start, stop, nodes, position, z, truth, out):
    """out[i, 0] = log(1 − q(truth[i, 0] | z[i])); 0 where the truth is −1."""
    path = _path()
    for i in range(start, stop):
        out[i, 0] = 0.0
        if truth[i, 0] >= 0:
            out[i, 0] = _departures(nodes, z[i], position[truth[i, 0]], path)[2]


class _Path(NamedTuple):
    """Where a walk can leave the path to a leaf: at depth d to the range lo[d]..hi[d] − 1, with a
    probability in proportion to weight[d]."""

    lo: np.ndarray
    hi: np.ndarray
    activation: np.ndarray
    weight: np.ndarray


@kernel
def _path():
    return _Path(
        np.empty(_DEEPEST, np.int64), np.empty(_DEEPEST, np.int64), np.empty(_DEEPEST),
        np.empty(_DEEPEST),
    )  # fmt: skip


@kernel
def _departures(nodes, z, leaf, path):
    """Fill the path to a leaf. Returns its length, the sum of its weights, and log(1 − q) of the
    leaf without cancellation; −∞ in a tree of one class."""
    if nodes.size > _NEAR:
        _prefetch_path(nodes, leaf)
    lo, hi, depth, stay, total, least = 0, len(nodes), 0, 1.0, 0.0, math.inf
    while hi - lo > 1:
        mid = lo + (hi - lo) // 2
        a = float(activation(nodes[mid], z))
        if leaf >= mid:
            path.lo[depth], path.hi[depth] = lo, mid
            lo = mid
        else:
            path.lo[depth], path.hi[depth] = mid, hi
            hi, a = mid, -a
        e = math.exp(-abs(a))
        path.activation[depth], path.weight[depth] = a, stay * _sigmoid(-a, e)
        total += path.weight[depth]
        stay *= _sigmoid(a, e)
        least = min(least, a)
        depth += 1
    if depth == 0:
        return depth, total, -math.inf
    if least < _SURE:
        return depth, total, math.log(total)
    # The weights may underflow; here they are e^−a to double precision.
    total = 0.0
    for d in range(depth):
        path.weight[d] = math.exp(least - path.activation[d])
        total += path.weight[d]
    return depth, total, math.log(total) - least


class _Walks(NamedTuple):
    """Walks that descend together: the draw each is for, its random numbers, the range it has
    reached, and its probability so far, exp(total) · product."""

    example: np.ndarray
    draw: np.ndarray
    state: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    total: np.ndarray
    product: np.ndarray


@kernel
def _walks():
    return _Walks(
        np.empty(_WALKS, np.int64), np.empty(_WALKS, np.int64), np.empty(_WALKS, np.uint64),
        np.empty(_WALKS, np.int64), np.empty(_WALKS, np.int64), np.empty(_WALKS), np.empty(_WALKS),
    )  # fmt: skip


@kernel(inline="always")
def _begin(walks, w, example, draw, state, lo, hi, total):
    """Start a walk at a range, with the log-probability of being there."""
    walks.example[w], walks.draw[w], walks.state[w] = example, draw, state
    walks.lo[w], walks.hi[w], walks.total[w], walks.product[w] = lo, hi, total, 1.0


@kernel
def _descend(walks, n, level, nodes, order, z, labels, log_q):
    """Descend to the leaves and write labels and log_q, with random numbers from ``level`` on.

    Several walks descend together, one level at a time: in a large tree each level waits for
    memory, and the row that one walk needs next arrives while the others move.
    """
    example, draw, state, los, his, totals, products = walks
    order = order.reshape((order.size, 1))
    walking = True
    while walking:
        walking = False
        for w in range(n):
            lo, hi = los[w], his[w]
            if hi - lo < 2:
                continue
            mid = lo + (hi - lo) // 2
            a = float(activation(nodes[mid], z[example[w]]))
            e = math.exp(-abs(a))
            if uniform(state[w], draw[w] * 64 + level) < _sigmoid(a, e):
                lo = mid
            else:
                hi, a = mid, -a
            los[w], his[w] = lo, hi
            mid = lo + (hi - lo) // 2
            _prefetch_node(nodes, mid)
            if hi - lo <= 8:
                # A cache line holds eight numbers of ``order``: prefetch it early.
                prefetch(order, mid, 0)
            totals[w], products[w] = _times(totals[w], products[w], a, e)
            walking |= hi - lo > 1
        level += 1
    for w in range(n):
        labels[example[w], draw[w]] = order[los[w], 0]
        log_q[example[w], draw[w]] = totals[w] + math.log(products[w])


@kernel
def log_prob(start, stop, nodes, position, z, labels, out):
    """out[i, j] = log q(labels[i, j] | z[i]): one walk from the root to the leaf."""
    n_classes = position.size
    for i in range(start, stop):
        for j in range(labels.shape[1]):
            leaf = position[labels[i, j]]
            if nodes.size > _NEAR:
                _prefetch_path(nodes, leaf)
            lo, hi = 0, n_classes
            total, product = 0.0, 1.0
            while hi - lo > 1:
                mid = lo + (hi - lo) // 2
                a = float(activation(nodes[mid], z[i]))
                if leaf >= mid:
                    lo = mid
                else:
                    hi, a = mid, -a
                total, product = _times(total, product, a, math.exp(-abs(a)))
            out[i, j] = total + math.log(product)


@kernel
def spread(start, stop, order, splits, activations, log_right, out):
    """out[i, order[p]] = log-probability of leaf p, from all node activations of example i.

    ``splits`` lists (lo, mid) of every node, parents first; ``log_right`` = log σ(activations).
    """
    n_classes = order.size
    leaf = np.empty(n_classes, np.float32)
    for i in range(start, stop):
        leaf[0] = 0.0
        for s in range(splits.shape[0]):
            lo, mid = splits[s, 0], splits[s, 1]
            above = leaf[lo]
            right = log_right[i, mid]
            leaf[mid] = above + right
            leaf[lo] = above + right - activations[i, mid]
        for p in range(n_classes):
            out[i, order[p]] = leaf[p]


@kernel
def all_splits(n_classes):
    """(lo, mid, hi) of every node, level by level, and the depth of each."""
    n_nodes = max(n_classes - 1, 0)
    splits = np.empty((n_nodes, 3), np.int64)
    depth = np.empty(n_nodes, np.int64)
    n = 0
    if n_classes > 1:
        splits[0, 0], splits[0, 2], depth[0], n = 0, n_classes, 0, 1
    for done in range(n_nodes):
        lo, hi = splits[done, 0], splits[done, 2]
        mid = lo + (hi - lo) // 2
        splits[done, 1] = mid
        if mid - lo > 1:
            splits[n, 0], splits[n, 2], depth[n] = lo, mid, depth[done] + 1
            n += 1
        if hi - mid > 1:
            splits[n, 0], splits[n, 2], depth[n] = mid, hi, depth[done] + 1
            n += 1
    return splits, depth
