"""A tree whose nodes are softmaxes over sparse rows: scores, walks and searches, in numba.

Leaves are the positions 0..C−1 of classes in an order of their own. A node is a range of them, cut
into children; a child of one position is a class, any other is a node. The weights of a node are
kept for the features that say something in it: a list of features, rising, and for each of them the
children it speaks of. Rows are CSR with rising indices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from extremax.kernels.cpu.random import row_state, uniform
from extremax.kernels.cpu.sparse_node import add_log_probs, softmax


class Tree(NamedTuple):
    """Nodes by number, parents first.

    first:     children of node n are first[n] .. first[n + 1] − 1.
    position:  where the range of a child begins.
    node:      the node that a child is, or −1 for a class.
    bias:      of each child.
    starts:    features of node n are features[starts[n] .. starts[n + 1] − 1].
    entries:   and those of feature f speak of child[entries[f] .. entries[f + 1] − 1], numbered
               from 0 in the node, with weight.
    order:     the class of each position.
    """

    first: np.ndarray
    position: np.ndarray
    node: np.ndarray
    bias: np.ndarray
    starts: np.ndarray
    features: np.ndarray
    entries: np.ndarray
    child: np.ndarray
    weight: np.ndarray
    order: np.ndarray


@njit(nogil=True, cache=True)
def scores_of(tree, n, indices, values, first, stop, out):
    """Scores of the children of node n for one row; returns how many they are."""
    begin = tree.first[n]
    size = tree.first[n + 1] - begin
    for j in range(size):
        out[j] = tree.bias[begin + j]
    low, high = tree.starts[n], tree.starts[n + 1]
    for e in range(first, stop):
        # Both lists rise: the next feature is further on.
        low = _search(tree.features, low, high, indices[e])
        if low == high:
            break
        if tree.features[low] == indices[e]:
            for k in range(tree.entries[low], tree.entries[low + 1]):
                out[tree.child[k]] += values[e] * tree.weight[k]
    return size


@njit(nogil=True, cache=True, inline="always")
def _search(features, low, high, wanted):
    """The first place in low..high whose feature is at least the wanted one."""
    while low < high:
        middle = (low + high) // 2
        if features[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _widest(tree):
    widest = 1
    for n in range(tree.first.size - 1):
        widest = max(widest, tree.first[n + 1] - tree.first[n])
    return widest


@njit(nogil=True, cache=True)
def sample(start, stop, tree, indptr, indices, values, key, rows, labels, log_q):
    """labels[i, j] ~ q(· | row i), log_q its log-probability. All draws of a row share the root."""
    widest = _widest(tree)
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    root, p = np.empty(widest, np.float32), np.empty(widest, np.float32)
    powers = bits.view(np.float32)
    for i in range(start, stop):
        first, last = indptr[i], indptr[i + 1]
        state = row_state(key, rows[i])
        size = scores_of(tree, 0, indices, values, first, last, scores)
        softmax(scores, size, root, bits, powers)
        for j in range(labels.shape[1]):
            n, level, total = 0, 0, 0.0
            while True:
                begin = tree.first[n]
                if level:
                    size = scores_of(tree, n, indices, values, first, last, scores)
                    softmax(scores, size, p, bits, powers)
                    c = _inverse(p, size, uniform(state, j * 64 + level))
                    total += math.log(p[c])
                else:
                    size = tree.first[1]
                    c = _inverse(root, size, uniform(state, j * 64))
                    total += math.log(root[c])
                n = tree.node[begin + c]
                if n < 0:
                    labels[i, j] = tree.order[tree.position[begin + c]]
                    log_q[i, j] = total
                    break
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
def log_prob(start, stop, tree, place, indptr, indices, values, labels, out):
    """out[i, j] = log q(labels[i, j] | row i); place[y] is the position of class y."""
    widest = _widest(tree)
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    for i in range(start, stop):
        for j in range(labels.shape[1]):
            at, n, total = place[labels[i, j]], 0, 0.0
            while n >= 0:
                begin, end = tree.first[n], tree.first[n + 1]
                size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], scores)
                log_sum = softmax(scores, size, p, bits, powers)
                c = np.searchsorted(tree.position[begin:end], at, side="right") - 1
                total += scores[c] - log_sum
                n = tree.node[begin + c]
            out[i, j] = total


@njit(nogil=True, cache=True)
def level_log_probs(start, stop, tree, place, indptr, indices, values, labels, sharpnesses, out):
    """out[i, l, k] = the part of log q(labels[i] | row i) that level l has, were its scores s_k
    times as large."""
    scores = np.empty(_widest(tree), np.float32)
    for i in range(start, stop):
        at, n, level = place[labels[i]], 0, 0
        while n >= 0:
            begin, end = tree.first[n], tree.first[n + 1]
            size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], scores)
            c = np.searchsorted(tree.position[begin:end], at, side="right") - 1
            add_log_probs(scores, size, c, sharpnesses, out[i, level])
            n = tree.node[begin + c]
            level += 1


@njit(nogil=True, cache=True)
def log_prob_all(start, stop, tree, indptr, indices, values, out):
    """out[i, y] = log q(y | row i) for every class."""
    widest, n_nodes = _widest(tree), tree.first.size - 1
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    above = np.zeros(n_nodes)
    for i in range(start, stop):
        for n in range(n_nodes):
            begin = tree.first[n]
            size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], scores)
            log_sum = softmax(scores, size, p, bits, powers)
            for c in range(size):
                log_q = above[n] + scores[c] - log_sum
                inner = tree.node[begin + c]
                if inner < 0:
                    out[i, tree.order[tree.position[begin + c]]] = log_q
                else:
                    above[inner] = log_q


@njit(nogil=True, cache=True)
def search(start, stop, tree, indptr, indices, values, width, labels, log_q):
    """The likeliest classes of each row, best first, among those under the ``width`` likeliest
    nodes of every level; −1 and −∞ where there are fewer."""
    widest, k = _widest(tree), labels.shape[1]
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    beam, mass = np.empty(width, np.int64), np.empty(width)
    below, below_mass = np.empty(width, np.int64), np.empty(width)
    for i in range(start, stop):
        labels[i] = -1
        log_q[i] = -np.inf
        n_beam, beam[0], mass[0] = 1, 0, 0.0
        while n_beam:
            n_below = 0
            for b in range(n_beam):
                if mass[b] <= log_q[i, k - 1]:
                    # Nothing under it can be among the best.
                    break
                n = beam[b]
                begin = tree.first[n]
                size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], scores)
                log_sum = softmax(scores, size, p, bits, powers)
                for c in range(size):
                    here = mass[b] + scores[c] - log_sum
                    if tree.node[begin + c] >= 0:
                        n_below = _keep(below, below_mass, n_below, tree.node[begin + c], here)
                    elif here > log_q[i, k - 1]:
                        _keep(labels[i], log_q[i], k, tree.order[tree.position[begin + c]], here)
            n_beam = n_below
            beam, below, mass, below_mass = below, beam, below_mass, mass


@njit(nogil=True, cache=True)
def _keep(numbers, values, n, number, value):
    """Insert into a list of n that falls, if it is among its best; returns the new n."""
    if n == numbers.size:
        if value <= values[n - 1]:
            return n
        n -= 1
    at = n
    while at > 0 and values[at - 1] < value:
        values[at], numbers[at] = values[at - 1], numbers[at - 1]
        at -= 1
    values[at], numbers[at] = value, number
    return n + 1
