"""A tree whose nodes are softmaxes over sparse rows: scores and searches, in numba.

The leaves are positions 0..C−1 of classes in a certain order. A node is a range of positions, cut
into children; a child of one position is a class, any other is a node. Rows are CSR arrays
(indptr, indices, values).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.sorting import last_up_to, rising
from extremax.kernels.cpu.sparse_node import add_log_probs, scratch, softmax
from extremax.kernels.cpu.sparse_table import add_weights, find_spans, prefetch_slots


class SparseTree(NamedTuple):
    """Nodes by number, parents first.

    first:     children of node n are first[n] .. first[n + 1] − 1.
    position:  where the range of a child begins.
    node:      the node that a child is, or −1 for a class.
    bias:      of each child.
    order:     the class at each position.
    place:     the position of each class.
    slots:     a table from (node, feature) to weights (`extremax.kernels.cpu.sparse_table`).
    packed:    the weights with the numbers of their children in the last bits.
    weight:    the same memory as floats.
    """

    first: np.ndarray
    position: np.ndarray
    node: np.ndarray
    bias: np.ndarray
    order: np.ndarray
    place: np.ndarray
    slots: np.ndarray
    packed: np.ndarray
    weight: np.ndarray


@kernel
def score_children(tree, n, indices, values, first, stop, spans, out):
    """Score the children of node n for one row; returns their number.

    spans:  scratch memory as long as the row.
    """
    prefetch_slots(tree.slots, n, indices, first, stop)
    find_spans(tree.slots, tree.weight, n, indices, first, stop, spans)
    begin, end = tree.first[n], tree.first[n + 1]
    set_biases(tree.bias, begin, end, out)
    add_weights(tree.packed, tree.weight, spans, values, first, stop, out)
    return end - begin


@kernel(inline="always")
def set_biases(bias, begin, end, out):
    for j in range(end - begin):
        out[j] = bias[begin + j]


@kernel(inline="always")
def longest(indptr, start, stop):
    """Values of the longest of these rows, at least one."""
    longest = 1
    for i in range(start, stop):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return longest


@kernel(inline="always")
def widest(tree):
    """Children of the widest node."""
    widest = 1
    for n in range(tree.first.size - 1):
        widest = max(widest, tree.first[n + 1] - tree.first[n])
    return widest


@kernel
def level_log_probs(start, stop, tree, arrays, labels, out):
    """out[i, j, l] = log q_l(labels[i, j] | row i), the term of level l.

    Labels are visited in the order of their positions, so that neighbors share nodes.
    """
    indptr, indices, values = arrays
    memory = scratch(widest(tree))
    scores = memory.scores
    spans = np.empty(longest(indptr, start, stop), np.int64)
    node, places = np.empty(labels.shape[1], np.int64), np.empty(labels.shape[1])
    for i in range(start, stop):
        for j in range(places.size):
            places[j] = tree.place[labels[i, j]]
        order = rising(places, places.size)
        for j in range(places.size):
            node[j] = 0
        for level in range(out.shape[2]):
            n, size, log_sum = -1, 0, np.float32(0.0)
            for number in range(places.size):
                j = order[number]
                if node[j] < 0:
                    out[i, j, level] = 0.0
                    continue
                if node[j] != n:
                    n = node[j]
                    size = score_children(
                        tree, n, indices, values, indptr[i], indptr[i + 1], spans, scores
                    )
                    log_sum = softmax(memory, size)
                begin = tree.first[n]
                at = tree.place[labels[i, j]]
                c = last_up_to(tree.position, begin, begin + size, at)
                out[i, j, level] = scores[c] - log_sum
                node[j] = tree.node[begin + c]


@kernel
def sharper_log_probs(start, stop, tree, arrays, labels, sharpnesses, out):
    """out[i, l, k] = log q_l(labels[i] | row i) if the scores of level l were multiplied by s_k."""
    indptr, indices, values = arrays
    scores = np.empty(widest(tree), np.float32)
    spans = np.empty(longest(indptr, start, stop), np.int64)
    for i in range(start, stop):
        at, n, level = tree.place[labels[i]], 0, 0
        while n >= 0:
            begin, end = tree.first[n], tree.first[n + 1]
            size = score_children(tree, n, indices, values, indptr[i], indptr[i + 1], spans, scores)
            c = last_up_to(tree.position, begin, end, at)
            add_log_probs(scores, size, c, sharpnesses, out[i, level])
            n = tree.node[begin + c]
            level += 1


@kernel
def log_prob_all(start, stop, tree, arrays, weights, out):
    """out[i, y] = Σ_l weights[l] log q_l(y | row i)."""
    indptr, indices, values = arrays
    n_nodes, memory = tree.first.size - 1, scratch(widest(tree))
    scores = memory.scores
    spans = np.empty(longest(indptr, start, stop), np.int64)
    above, level = np.zeros(n_nodes), np.zeros(n_nodes, np.int64)
    for i in range(start, stop):
        for n in range(n_nodes):
            begin = tree.first[n]
            size = score_children(tree, n, indices, values, indptr[i], indptr[i + 1], spans, scores)
            log_sum = softmax(memory, size)
            for c in range(size):
                inner = tree.node[begin + c]
                log_q = above[n] + weights[level[n]] * (scores[c] - log_sum)
                if inner < 0:
                    out[i, tree.order[tree.position[begin + c]]] = log_q
                else:
                    above[inner], level[inner] = log_q, level[n] + 1


@kernel
def search(start, stop, tree, arrays, width, weights, found):
    """The likeliest classes of each row, best first, among those under the ``width`` likeliest
    nodes of every level; −1 and −∞ where there are fewer.

    found:  classes, log q, and Σ_l weights[l] log q_l, (n, k) each.

    All nodes of a level are looked up before the first one is scored. Classes gather in a list of
    twice the size, of which the better half is kept whenever it is full.
    """
    indptr, indices, values = arrays
    labels, log_q, weighted = found
    k, memory = labels.shape[1], scratch(widest(tree))
    scores = memory.scores
    spans = np.empty((width, longest(indptr, start, stop)), np.int64)
    beam, mass, weighed = np.empty(width, np.int64), np.empty(width), np.empty(width)
    below, below_mass, below_weighed = np.empty(width, np.int64), np.empty(width), np.empty(width)
    numbers, sums = np.empty(2 * k, np.int64), np.empty(2 * k, np.float32)
    reaches, keys = np.empty(2 * k, np.float32), np.empty(2 * k)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        n_beam, beam[0], mass[0], weighed[0], level = 1, 0, 0.0, 0.0, 0
        # A plain 0 would be a type of its own, for which `_best_first` is compiled once more.
        n, least = np.int64(0), np.float32(-np.inf)
        while n_beam:
            for b in range(n_beam):
                prefetch_slots(tree.slots, beam[b], indices, first, end)
            for b in range(n_beam):
                find_spans(tree.slots, tree.weight, beam[b], indices, first, end, spans[b])
            n_below = 0
            for b in range(n_beam):
                if mass[b] <= least:
                    # Nothing under this node or the next ones can be among the best.
                    break
                begin = tree.first[beam[b]]
                size = tree.first[beam[b] + 1] - begin
                set_biases(tree.bias, begin, begin + size, scores)
                add_weights(tree.packed, tree.weight, spans[b], values, first, end, scores)
                log_sum = softmax(memory, size)
                for c in range(size):
                    reached = mass[b] + scores[c] - log_sum
                    if reached <= least:
                        continue
                    sum_reached = weighed[b] + weights[level] * (scores[c] - log_sum)
                    inner = tree.node[begin + c]
                    if inner >= 0:
                        n_below = _insert(
                            below, below_mass, below_weighed, n_below, inner, reached, sum_reached
                        )
                        continue
                    if n == 2 * k:
                        _best_first(reaches, sums, numbers, n, k)
                        n, least = k, reaches[0]
                        for j in range(1, k):
                            least = min(least, reaches[j])
                        if reached <= least:
                            continue
                    numbers[n] = tree.order[tree.position[begin + c]]
                    reaches[n], sums[n] = reached, sum_reached
                    n += 1
            n_beam = n_below
            level += 1
            beam, mass, weighed, below, below_mass, below_weighed = (
                below, below_mass, below_weighed, beam, mass, weighed,
            )  # fmt: skip
        if n > k:
            _best_first(reaches, sums, numbers, n, k)
            n = k
        for j in range(n):
            keys[j] = -reaches[j]
        order = rising(keys, n)
        for j in range(k):
            labels[i, j], log_q[i, j], weighted[i, j] = -1, -np.inf, -np.inf
            if j < n:
                at = order[j]
                labels[i, j], log_q[i, j], weighted[i, j] = numbers[at], reaches[at], sums[at]


@kernel
def _best_first(values, others, numbers, n, k):
    """Reorder a list of n > k so that its k largest values come first, in no order (Hoare's
    selection)."""
    low, high = 0, n - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                others[i], others[j] = others[j], others[i]
                numbers[i], numbers[j] = numbers[j], numbers[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            return


@kernel(inline="always")
def _insert(numbers, values, others, n, number, value, other):
    """Insert into a list of n with falling values, if it is among the best; returns the new n."""
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
