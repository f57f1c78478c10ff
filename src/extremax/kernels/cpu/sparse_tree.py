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

# Features of a row that are looked up together.
_AT_ONCE = 64


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
    slots:     a hash table from (node, feature) to the place of the feature among all: (feature,
               place) or (_, −1).
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
    slots: np.ndarray


@njit(nogil=True, cache=True, inline="always")
def _slot(n, feature, mask):
    """Where in the hash table the search for a feature of node n begins."""
    mixed = np.uint64(n) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(feature)
    mixed = mixed * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64(mixed >> np.uint64(32)) & mask


@njit(nogil=True, cache=True)
def hashed(starts, features):
    """The hash table of a tree: open addressing, at most half full."""
    size = 2
    while size < 2 * features.size:
        size *= 2
    slots = np.full((size, 2), -1, np.int32)
    for n in range(starts.size - 1):
        for place in range(starts[n], starts[n + 1]):
            at = _slot(n, features[place], size - 1)
            while slots[at, 1] >= 0:
                at = (at + 1) & (size - 1)
            slots[at, 0], slots[at, 1] = features[place], place
    return slots


@njit(nogil=True, cache=True)
def scores_of(tree, n, indices, values, first, stop, places, out):
    """Scores of the children of node n for one row; returns how many they are.

    ``places`` is a scratch. All features of the row are looked up before any is used: misses of
    the cache are most of the time, and so they overlap.
    """
    begin = tree.first[n]
    size = tree.first[n + 1] - begin
    for j in range(size):
        out[j] = tree.bias[begin + j]
    low, high, mask = tree.starts[n], tree.starts[n + 1], tree.slots.shape[0] - 1
    for some in range(first, stop, places.size):
        last = min(some + places.size, stop)
        for e in range(some, last):
            at = _slot(n, indices[e], mask)
            place = tree.slots[at, 1]
            while place >= 0 and not (
                tree.slots[at, 0] == indices[e] and low <= place and place < high
            ):
                at = (at + 1) & mask
                place = tree.slots[at, 1]
            places[e - some] = place
        for e in range(some, last):
            place = places[e - some]
            if place >= 0:
                for k in range(tree.entries[place], tree.entries[place + 1]):
                    out[tree.child[k]] += values[e] * tree.weight[k]
    return size


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
    places = np.empty(_AT_ONCE, np.int64)
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
                        tree, n, indices, values, indptr[i], indptr[i + 1], places, scores
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
def log_prob(start, stop, tree, place, indptr, indices, values, labels, out):
    """out[i, j] = log q(labels[i, j] | row i); place[y] is the position of class y."""
    widest = _widest(tree)
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    places = np.empty(_AT_ONCE, np.int64)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    for i in range(start, stop):
        for j in range(labels.shape[1]):
            at, n, total = place[labels[i, j]], 0, 0.0
            while n >= 0:
                begin, end = tree.first[n], tree.first[n + 1]
                size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], places, scores)
                log_sum = softmax(scores, size, p, bits, powers)
                c = np.searchsorted(tree.position[begin:end], at, side="right") - 1
                total += scores[c] - log_sum
                n = tree.node[begin + c]
            out[i, j] = total


@njit(nogil=True, cache=True)
def level_log_probs(start, stop, tree, place, indptr, indices, values, labels, sharpnesses, out):
    """out[i, l, k] = the part of log q(labels[i] | row i) that level l has, were its scores s_k
    times as large."""
    scores, places = np.empty(_widest(tree), np.float32), np.empty(_AT_ONCE, np.int64)
    for i in range(start, stop):
        at, n, level = place[labels[i]], 0, 0
        while n >= 0:
            begin, end = tree.first[n], tree.first[n + 1]
            size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], places, scores)
            c = np.searchsorted(tree.position[begin:end], at, side="right") - 1
            add_log_probs(scores, size, c, sharpnesses, out[i, level])
            n = tree.node[begin + c]
            level += 1


@njit(nogil=True, cache=True)
def log_prob_all(start, stop, tree, indptr, indices, values, out):
    """out[i, y] = log q(y | row i) for every class."""
    widest, n_nodes = _widest(tree), tree.first.size - 1
    scores, bits = np.empty(widest, np.float32), np.empty(widest, np.int32)
    places = np.empty(_AT_ONCE, np.int64)
    p, powers = np.empty(widest, np.float32), bits.view(np.float32)
    above = np.zeros(n_nodes)
    for i in range(start, stop):
        for n in range(n_nodes):
            begin = tree.first[n]
            size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], places, scores)
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
    places = np.empty(_AT_ONCE, np.int64)
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
                size = scores_of(tree, n, indices, values, indptr[i], indptr[i + 1], places, scores)
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
