"""Compute and update the sums z(node) = Σ φ(w) of a tree of classes, in numba.

z of a leaf is summed anew from its classes; z of a node is z of its left child plus z of its right
one. So z depends on the classes as they are and not on earlier updates: it does not drift, it is
the same after updates as after a rebuild, bit for bit, and need not be saved. A changed class costs
the sum over its leaf and one sum of two rows for each node above.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.sum_tree import waves

# Sums run over a multiple of this many classes: remainders of vectors are slow.
_STEP = 16


@kernel
def relations(child):
    """The parent of every node, −1 for the root, and the leaves in the order of their classes."""
    parent = np.full(child.size, -1)
    leaves = np.empty((child.size + 1) // 2, np.int64)
    for node in range(child.size):
        if child[node] >= 0:
            parent[child[node]] = parent[child[node] + 1] = node
    node, n = 0, 0
    while True:
        while child[node] >= 0:
            node = child[node]
        leaves[n] = node
        n += 1
        while node > 0 and child[parent[node]] != node:
            node = parent[node]
        if node == 0:
            return parent, leaves
        node += 1


@kernel
def products(start, stop, leaves, tree, head):
    """z of leaves: Σ w wᵀ over their classes, the lower triangle row after row."""
    n_features, most = head.width, -(-tree.most // _STEP) * _STEP
    # One coordinate per row, the classes of the leaf in columns.
    columns = np.empty((n_features + 1, most))
    for item in range(start, stop):
        node = leaves[item]
        first = tree.first[node]
        n = max(0, min(tree.stop[node], head.bias.size) - first)
        full = -(-n // _STEP) * _STEP
        columns[:, n:full] = 0.0
        for c in range(n):
            for f in range(n_features):
                columns[f, c] = head.table[first + c, f]
            columns[n_features, c] = head.bias[first + c]
        _triangle(columns[:, :full], tree.z[node])


@kernel(fastmath=FAST)
def _triangle(columns, z):
    """z = columns · columnsᵀ; four sums at a time share the row that they read."""
    n, at = columns.shape[1], 0
    for i in range(len(columns)):
        row, j = columns[i], 0
        while j + 3 <= i:
            one, two, three, four = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
            a = b = c = d = 0.0
            for k in range(n):
                value = row[k]
                a += value * one[k]
                b += value * two[k]
                c += value * three[k]
                d += value * four[k]
            z[at + j], z[at + j + 1], z[at + j + 2], z[at + j + 3] = a, b, c, d
            j += 4
        while j <= i:
            one, a = columns[j], 0.0
            for k in range(n):
                a += row[k] * one[k]
            z[at + j] = a
            j += 1
        at += i + 1


@kernel
def class_waves(start, stop, classes, frequencies, head, out):
    """out[c] = φ(w_c), random Fourier features, for some classes."""
    last = head.width
    v, phi = np.empty(last + 1), np.empty(out.shape[1])
    for item in range(start, stop):
        c = classes[item]
        v[:] = 0.0
        if c < head.bias.size:
            for f in range(last):
                v[f] = head.table[c, f]
            v[last] = head.bias[c]
        waves(frequencies, v, phi)
        for k in range(phi.size):
            out[c, k] = phi[k]


@kernel
def wave_sums(start, stop, leaves, tree, features):
    """z of leaves: the sum of the features of their classes."""
    for item in range(start, stop):
        node = leaves[item]
        z = tree.z[node]
        z[:] = 0.0
        for c in range(tree.first[node], tree.stop[node]):
            for k in range(z.size):
                z[k] += features[c, k]


@kernel
def _add(tree, node):
    left = tree.child[node]
    z, one, two = tree.z[node], tree.z[left], tree.z[left + 1]
    for k in range(z.size):
        z[k] = one[k] + two[k]


@kernel
def climb(start, stop, bounds, leaves, parent, tree):
    """z of the nodes above leaves[bounds[t]:bounds[t + 1]] and above no other of the leaves.

    Leaves are in the order of their classes, so a node is summed when the last of its leaves is
    done. Nodes that several tasks t share are left to `meet`.
    """
    for task in range(start, stop):
        before = tree.first[leaves[bounds[task] - 1]] if bounds[task] else -1
        for item in range(bounds[task], bounds[task + 1]):
            after = tree.first[leaves[item + 1]] if item + 1 < leaves.size else tree.stop[0]
            node = parent[leaves[item]]
            while node >= 0 and before < tree.first[node] and tree.stop[node] <= after:
                _add(tree, node)
                node = parent[node]


@kernel
def meet(bounds, leaves, parent, tree):
    """z of the nodes above the leaves of more than one task of `climb`."""
    shared = np.empty(64 * bounds.size, np.int64)
    n = 0
    for bound in bounds[1:-1]:
        node, other = parent[leaves[bound - 1]], tree.first[leaves[bound]]
        while node >= 0:
            if tree.stop[node] > other:
                shared[n] = node
                n += 1
            node = parent[node]
    # Children have higher numbers than their parents.
    shared = np.sort(shared[:n])
    for item in range(n - 1, -1, -1):
        if item == n - 1 or shared[item] != shared[item + 1]:
            _add(tree, shared[item])
