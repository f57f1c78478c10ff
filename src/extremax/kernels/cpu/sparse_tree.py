"""A tree whose nodes are softmaxes over sparse rows: scores, walks and searches, in numba.

Leaves are the positions 0..C−1 of classes in an order of their own. A node is a range of them, cut
into children; a child of one position is a class, any other is a node. Weights are kept for the
features that say something in a node. Rows are CSR.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from extremax.kernels.cpu.random import row_state, uniform
from extremax.kernels.cpu.sparse_node import add_log_probs, softmax
from extremax.kernels.cpu.sparse_table import add, ask, find


class Tree(NamedTuple):
    """Nodes by number, parents first.

    first:     children of node n are first[n] .. first[n + 1] − 1.
    position:  where the range of a child begins.
    node:      the node that a child is, or −1 for a class.
    bias:      of each child.
    order:     the class of each position.
    slots:     a table from (node, feature) to weights (`extremax.kernels.cpu.sparse_table`).
    packed:    the weights with the numbers of their children in the last bits.
    weight:    the same memory as floats.
    """

    first: np.ndarray
    position: np.ndarray
    node: np.ndarray
    bias: np.ndarray
    order: np.ndarray
    slots: np.ndarray
    packed: np.ndarray
    weight: np.ndarray


@njit(nogil=True, cache=True)
def scores_of(tree, n, indices, values, first, stop, spans, out):
    """Scores of the children of node n for one row; returns how many they are. ``spans`` is a
    scratch as long as the row."""
    ask(tree.slots, n, indices, first, stop)
    find(tree.slots, tree.weight, n, indices, first, stop, spans)
    return _scores(tree, n, spans, values, first, stop, out)


@njit(nogil=True, cache=True)
def _scores(tree, n, spans, values, first, stop, out):
    begin = tree.first[n]
    size = tree.first[n + 1] - begin
    for j in range(size):
        out[j] = tree.bias[begin + j]
    add(tree.packed, tree.weight, spans, values, first, stop, out)
    return size


@njit(nogil=True, cache=True)
def _longest(indptr, start, stop):
    longest = 1
    for i in range(start, stop):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return longest


@njit(nogil=True, cache=True)
def _widest(tree):
    widest = 1
    for n in range(tree.first.size - 1):
        widest = max(widest, tree.first[n + 1] - tree.first[n])
    return widest


@njit(nogil=True, cache=True)
def sample(start, stop, tree, indptr, indices, values, key, rows, labels, log_q):
    """labels[i, j] ~ q(· | row i), log_q its log-probability.

    All draws of a row go down together, a level at a time, so that those which are at the same
    node share its probabilities.
    """
    widest, m = _widest(tree), labels.shape[1]
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    spans = np.empty(_longest(indptr, start, stop), np.int64)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    node, total = np.empty(m, np.int64), np.empty(m)
    here, below = np.empty(m, np.int64), np.empty(m, np.int64)
    for i in range(start, stop):
        state = row_state(key, rows[i])
        for j in range(m):
            node[j], total[j], here[j] = 0, 0.0, j
        n_here, level = m, 0
        while n_here:
            n, n_below = -1, 0
            for at in range(n_here):
                j = here[at]
                if node[j] != n:
                    n = node[j]
                    size = scores_of(
                        tree, n, indices, values, indptr[i], indptr[i + 1], spans, scores
                    )
                    softmax(scores, size, p, bits, powers)
                c = tree.first[n] + _inverse(p, size, uniform(state, j * 64 + level))
                total[j] += math.log(p[c - tree.first[n]])
                node[j] = tree.node[c]
                if node[j] < 0:
                    labels[i, j] = tree.order[tree.position[c]]
                    log_q[i, j] = total[j]
                    continue
                place = n_below
                while place > 0 and node[below[place - 1]] > node[j]:
                    below[place] = below[place - 1]
                    place -= 1
                below[place] = j
                n_below += 1
            here, below, n_here = below, here, n_below
            level += 1


@njit(nogil=True, cache=True)
def _inverse(p, size, u):
    """The child that u falls on; the likeliest if rounding leaves it beyond the last."""
    total, best = 0.0, 0
    for j in range(size):
        total += p[j]
        if u < total and p[j] > 0.0:
            return j
        if p[j] > p[best]:
            best = j
    return best


@njit(nogil=True, cache=True)
def level_log_probs(start, stop, tree, place, indptr, indices, values, labels, out):
    """out[i, j, l] = the part of log q(labels[i, j] | row i) that level l has; place[y] is the
    position of class y. Labels in the order of their positions share nodes."""
    widest, m = _widest(tree), labels.shape[1]
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    spans = np.empty(_longest(indptr, start, stop), np.int64)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    node = np.empty(m, np.int64)
    for i in range(start, stop):
        order = np.argsort(place[labels[i]])
        node[:] = 0
        for level in range(out.shape[2]):
            n, size, log_sum = -1, 0, np.float32(0.0)
            for j in order:
                if node[j] < 0:
                    out[i, j, level] = 0.0
                    continue
                if node[j] != n:
                    n = node[j]
                    size = scores_of(
                        tree, n, indices, values, indptr[i], indptr[i + 1], spans, scores
                    )
                    log_sum = softmax(scores, size, p, bits, powers)
                begin = tree.first[n]
                at = place[labels[i, j]]
                c = np.searchsorted(tree.position[begin : begin + size], at, side="right") - 1
                out[i, j, level] = scores[c] - log_sum
                node[j] = tree.node[begin + c]


@njit(nogil=True, cache=True)
def sharper_log_probs(start, stop, tree, place, indptr, indices, values, labels, sharpnesses, out):
    """out[i, l, k] = the part of log q(labels[i] | row i) that level l has, were its scores s_k
    times as large."""
    scores = np.empty(_widest(tree), np.float32)
    spans = np.empty(_longest(indptr, start, stop), np.int64)
    for i in range(start, stop):
        at, n, level = place[labels[i]], 0, 0
        while n >= 0:
            begin, end = tree.first[n], tree.first[n + 1]
            size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], spans, scores)
            c = np.searchsorted(tree.position[begin:end], at, side="right") - 1
            add_log_probs(scores, size, c, sharpnesses, out[i, level])
            n = tree.node[begin + c]
            level += 1


@njit(nogil=True, cache=True)
def log_prob_all(start, stop, tree, indptr, indices, values, weights, out):
    """out[i, y] = Σ_l weights[l] × the part of log q(y | row i) that level l has."""
    widest, n_nodes = _widest(tree), tree.first.size - 1
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    spans = np.empty(_longest(indptr, start, stop), np.int64)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    above, level = np.zeros(n_nodes), np.zeros(n_nodes, np.int64)
    for i in range(start, stop):
        for n in range(n_nodes):
            begin = tree.first[n]
            size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], spans, scores)
            log_sum = softmax(scores, size, p, bits, powers)
            for c in range(size):
                inner = tree.node[begin + c]
                log_q = above[n] + weights[level[n]] * (scores[c] - log_sum)
                if inner < 0:
                    out[i, tree.order[tree.position[begin + c]]] = log_q
                else:
                    above[inner], level[inner] = log_q, level[n] + 1


@njit(nogil=True, cache=True)
def search(start, stop, tree, indptr, indices, values, width, weights, labels, log_q, weighted):
    """The likeliest classes of each row, best first, among those under the ``width`` likeliest
    nodes of every level; −1 and −∞ where there are fewer. ``weighted`` is their Σ_l weights[l] ×
    the part of log q that level l has.

    All nodes of a level are looked up before the first is worked on.
    """
    widest, k = _widest(tree), labels.shape[1]
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    spans = np.empty((width, _longest(indptr, start, stop)), np.int64)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    beam, mass, weighed = np.empty(width, np.int64), np.empty(width), np.empty(width)
    below, below_mass, below_weighed = np.empty(width, np.int64), np.empty(width), np.empty(width)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        labels[i] = -1
        log_q[i] = weighted[i] = -np.inf
        n_beam, beam[0], mass[0], weighed[0], level = 1, 0, 0.0, 0.0, 0
        while n_beam:
            for b in range(n_beam):
                ask(tree.slots, beam[b], indices, first, end)
            for b in range(n_beam):
                find(tree.slots, tree.weight, beam[b], indices, first, end, spans[b])
            n_below = 0
            for b in range(n_beam):
                if mass[b] <= log_q[i, k - 1]:
                    # Nothing under it can be among the best.
                    break
                begin = tree.first[beam[b]]
                size = _scores(tree, beam[b], spans[b], values, first, end, scores)
                log_sum = softmax(scores, size, p, bits, powers)
                for c in range(size):
                    here = mass[b] + scores[c] - log_sum
                    if here <= log_q[i, k - 1]:
                        continue
                    more = weighed[b] + weights[level] * (scores[c] - log_sum)
                    inner = tree.node[begin + c]
                    if inner >= 0:
                        n_below = _keep(
                            below, below_mass, below_weighed, n_below, inner, here, more
                        )
                    else:
                        y = tree.order[tree.position[begin + c]]
                        _keep(labels[i], log_q[i], weighted[i], k, y, here, more)
            n_beam = n_below
            level += 1
            beam, mass, weighed, below, below_mass, below_weighed = (
                below, below_mass, below_weighed, beam, mass, weighed,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def _keep(numbers, values, others, n, number, value, other):
    """Insert into a list of n whose values fall, if it is among its best; returns the new n."""
    if n == numbers.size:
        if value <= values[n - 1]:
            return n
        n -= 1
    at = n
    while at > 0 and values[at - 1] < value:
        values[at], others[at], numbers[at] = values[at - 1], others[at - 1], numbers[at - 1]
        at -= 1
    values[at], others[at], numbers[at] = value, other, number
    return n + 1
