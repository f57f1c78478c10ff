"""Draws from a tree whose nodes are softmaxes over sparse rows, in numba."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.random import row_state, uniform
from extremax.kernels.cpu.sorting import last_up_to, rising
from extremax.kernels.cpu.sparse_node import scratch, softmax
from extremax.kernels.cpu.sparse_tree import longest, score_children, widest

# More levels than any tree has.
_DEEPEST = 63


@kernel
def sample(start, stop, tree, arrays, key, rows, labels, log_q):
    """labels[i, j] ~ q(· | row i), log_q its log-probability."""
    m, memory = labels.shape[1], scratch(widest(tree))
    spans = np.empty(longest(arrays[0], start, stop), np.int64)
    node, total = np.empty(m, np.int64), np.empty(m)
    nowhere = np.empty(m, np.int64)
    for i in range(start, stop):
        for j in range(m):
            node[j], total[j], nowhere[j] = 0, 0.0, -1
        _descend(
            tree, arrays, i, row_state(key, rows[i]), 0, node, total, nowhere, memory, spans,
            labels, log_q,
        )  # fmt: skip


@kernel
def sample_others(start, stop, tree, arrays, truth, key, rows, log_others, labels, log_q):
    """labels[i, j] ~ q(· | row i) given that it is not truth[i, 0], log_q its log-probability, and
    log_others[i, 0] = log(1 − q(truth[i, 0] | row i)). A truth of −1 is no class of the tree.

    A draw leaves the path to the true class at some node, with a probability in proportion to that
    of following the path to the node and of leaving it there. It takes one of the node's other
    children and continues at will.
    """
    m, memory = labels.shape[1], scratch(widest(tree))
    spans = np.empty(longest(arrays[0], start, stop), np.int64)
    node, total, avoided = np.empty(m, np.int64), np.empty(m), np.empty(m, np.int64)
    path = _path()
    for i in range(start, stop):
        state = row_state(key, rows[i])
        for j in range(m):
            node[j], total[j], avoided[j] = 0, 0.0, -1
        depth, log_others[i, 0] = 0, 0.0
        if truth[i, 0] >= 0:
            at = tree.place[truth[i, 0]]
            depth, log_others[i, 0] = _departures(tree, arrays, i, at, path, memory, spans)
        for j in range(m if depth else 0):
            u, d, below = uniform(state, j * 64), 0, 0.0
            while d < depth - 1:
                below += math.exp(path.log_leave[d] - log_others[i, 0])
                if u < below:
                    break
                d += 1
            node[j], avoided[j] = path.node[d], path.child[d]
            total[j] = path.log_leave[d] - log_others[i, 0]
        _descend(
            tree, arrays, i, state, 1, node, total, avoided, memory, spans, labels, log_q
        )  # fmt: skip


@kernel
def log_others(start, stop, tree, arrays, truth, out):
    """out[i, 0] = log(1 − q(truth[i, 0] | row i)); 0 where the truth is −1."""
    memory, path = scratch(widest(tree)), _path()
    spans = np.empty(longest(arrays[0], start, stop), np.int64)
    for i in range(start, stop):
        out[i, 0] = 0.0
        if truth[i, 0] >= 0:
            at = tree.place[truth[i, 0]]
            out[i, 0] = _departures(tree, arrays, i, at, path, memory, spans)[1]


class _Path(NamedTuple):
    """Nodes above a class: each node, the child toward the class, and the log-probability of
    leaving the path there."""

    node: np.ndarray
    child: np.ndarray
    log_leave: np.ndarray


@kernel
def _path():
    return _Path(np.empty(_DEEPEST, np.int64), np.empty(_DEEPEST, np.int64), np.empty(_DEEPEST))


@kernel
def _departures(tree, arrays, i, at, path, memory, spans):
    """Fill the path to the class at position ``at``. Returns its length and log Σ exp(log_leave),
    which is log(1 − q) of the class without cancellation; −∞ in a tree of one class."""
    indptr, indices, values = arrays
    n, depth, log_stay, top = 0, 0, 0.0, -np.inf
    while n >= 0:
        begin, end = tree.first[n], tree.first[n + 1]
        size = score_children(
            tree, n, indices, values, indptr[i], indptr[i + 1], spans, memory.scores
        )
        c = last_up_to(tree.position, begin, end, at)
        if size > 1:
            log_sum, score = softmax(memory, size), memory.scores[c]
            path.node[depth], path.child[depth] = n, c
            path.log_leave[depth] = log_stay + _softmax_without(memory, size, c) - log_sum
            top = max(top, path.log_leave[depth])
            log_stay += score - log_sum
            depth += 1
        n = tree.node[begin + c]
    total = 0.0
    for d in range(depth):
        total += math.exp(path.log_leave[d] - top)
    return depth, top + math.log(total) if depth else top


@kernel
def _softmax_without(memory, size, c):
    """`softmax` over all children but c, whose p is 0."""
    memory.scores[c] = -1e30
    log_sum = softmax(memory, size)
    memory.p[c] = 0.0
    return log_sum


@kernel
def _descend(tree, arrays, i, state, level, node, total, avoided, memory, spans, labels, log_q):
    """Descend from node[j], reached with log-probability total[j], to the classes of row i; write
    labels and log_q, with random numbers from ``level`` on.

    avoided:  a child of each first node that is not to be taken, or −1; ``total`` includes the
              probability of not taking it.

    All draws of a row descend together, one level at a time, so that draws at the same node share
    its probabilities.
    """
    indptr, indices, values = arrays
    m, p = labels.shape[1], memory.p
    keys, below = np.empty(m), np.empty(m, np.int64)
    for j in range(m):
        keys[j] = node[j]
    current = rising(keys, m)
    n_current, is_first = m, True
    while n_current:
        n, n_below = -1, 0
        for at in range(n_current):
            j = current[at]
            if node[j] != n:
                n = node[j]
                size = score_children(
                    tree, n, indices, values, indptr[i], indptr[i + 1], spans, memory.scores
                )
                if is_first and avoided[j] >= 0:
                    _softmax_without(memory, size, avoided[j])
                else:
                    softmax(memory, size)
            c = tree.first[n] + _inverse(p, size, uniform(state, j * 64 + level))
            total[j] += math.log(p[c - tree.first[n]])
            node[j] = tree.node[c]
            if node[j] < 0:
                labels[i, j] = tree.order[tree.position[c]]
                log_q[i, j] = total[j]
                continue
            # Draws at the same node become neighbors.
            place = n_below
            while place > 0 and node[below[place - 1]] > node[j]:
                below[place] = below[place - 1]
                place -= 1
            below[place] = j
            n_below += 1
        current, below, n_current = below, current, n_below
        level, is_first = level + 1, False


@kernel
def _inverse(p, size, u):
    """The child that u falls on; the likeliest one if rounding puts u beyond the last."""
    total, best = 0.0, 0
    for j in range(size):
        total += p[j]
        if u < total and p[j] > 0.0:
            return j
        if p[j] > p[best]:
            best = j
    return best
