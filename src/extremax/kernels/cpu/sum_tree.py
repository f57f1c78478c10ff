"""Walks through a tree of class sums, for noises q ∝ K(h, w_y), in numba.

With K(h, w) = ⟨φ(h), φ(w)⟩, a node is a range of classes and keeps z(node) = Σ φ(w_j) over them.
From a node a walk goes to a child with probability mass(child) / (mass(left) + mass(right)), where
the mass of a node depends on ⟨φ(h), z(node)⟩ and its number of classes; in a leaf, some dozens of
classes, every class is scored. h = [s x, 1] and w = [w_y, b_y], so that ⟨h, w⟩ is the head's score
ξ_y.

            ⟨φ(h), z(node)⟩      mass of n classes              score in a leaf
QUADRATIC   α Σ ξ²               Σ + n                          α ξ² + 1
QUARTIC     Σ ξ²                 Σ²/n + n ≤ Σ (ξ⁴ + 1)          ξ⁴ + 1
FOURIER     Σ k̂(h, w)            max(Σ, floor · n)              k = exp(−ν‖h/‖h‖ − w/‖w‖‖²/2)

log q sums the logarithms of the probabilities that a walk uses, and is therefore exact even where a
mass is only an estimate. `extremax.kernels.cpu.sum_tree_update` computes z.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.cpu.jit import kernel
from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.prefetch import prefetch
from extremax.kernels.cpu.random import row_state, uniform

QUADRATIC, QUARTIC, FOURIER = 0, 1, 2

# Draws of a row that descend together, so that memory for one arrives while the others move.
_WALKS = 16
# The draws of a row share results for this many nodes at the top.
_SHARED = 1024
# ⟨φ, z(right)⟩ is the parent's less the left one's, unless that cancels more digits than this.
_CANCELLED = 1e-4
# A running product of probabilities is folded into the logarithm before it can underflow.
_TINY = 1e-100
# Doubles in a cache line, and lines of a row to prefetch: the hardware streams the rest.
_LINE = 8
_AHEAD = 8


class SumTree(NamedTuple):
    """Nodes by number, parents first; the children of a node are child and child + 1.

    child:  −1 in a leaf.       first, stop:  a node's classes.       z:  Σ φ(w) of them.
    most:   the most classes in a leaf.
    """

    child: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    z: np.ndarray
    most: int


class FeatureMap(NamedTuple):
    """φ: QUADRATIC (strength α), QUARTIC or FOURIER (strength ν, frequencies Ω, floor)."""

    kind: int
    strength: float
    floor: float
    frequencies: np.ndarray


class ClassTable(NamedTuple):
    """Weights, the first ``width`` numbers of each row, and biases; classes beyond them count as
    zero."""

    table: np.ndarray
    width: int
    bias: np.ndarray
    scale: float


class SumModel(NamedTuple):
    """Everything that q depends on besides the row."""

    feature_map: FeatureMap
    tree: SumTree
    head: ClassTable


@kernel
def shape(n_fitted, n_classes, most):
    """child, first, stop of a balanced tree with leaves of at most ``most`` classes.

    Classes from n_fitted on form a second tree beside the first, under a common root.
    """
    size = 4 * (n_classes // (most + 1) + 2) + 1
    child = np.full(size, -1)
    first, stop = np.empty(size, np.int64), np.empty(size, np.int64)
    first[0], stop[0], n, node = 0, n_classes, 1, 0
    while node < n:
        lo, hi = first[node], stop[node]
        both = lo < n_fitted < hi
        mid = n_fitted if both else lo + (hi - lo) // 2
        if both or hi - lo > most:
            child[node] = n
            first[n], stop[n], first[n + 1], stop[n + 1] = lo, mid, mid, hi
            n += 2
        node += 1
    return child[:n].copy(), first[:n].copy(), stop[:n].copy()


@kernel(fastmath=FAST)
def waves(frequencies, v, out):
    """out = D^(−1/2) [cos Ωu, sin Ωu] with u = v/‖v‖, or u = 0 for v = 0."""
    n = len(frequencies)
    squares = 0.0
    for f in range(v.size):
        squares += v[f] * v[f]
    length = 1.0 / math.sqrt(squares) if squares > 0.0 else 0.0
    size = 1.0 / math.sqrt(n)
    for k in range(n):
        angle = 0.0
        for f in range(v.size):
            angle += frequencies[k, f] * v[f]
        angle *= length
        out[k] = size * math.cos(angle)
        out[n + k] = size * math.sin(angle)


@kernel(fastmath=FAST, inline="always")
def _dot(a, b):
    total = 0.0
    for f in range(a.size):
        total += a[f] * b[f]
    return total


@kernel
def _map(feature_map, scale, x, h, phi):
    """h = [s x, 1] and φ(h)."""
    last = x.size
    for f in range(last):
        h[f] = scale * x[f]
    h[last] = 1.0
    if feature_map.kind == FOURIER:
        waves(feature_map.frequencies, h, phi)
        return
    strength = feature_map.strength if feature_map.kind == QUADRATIC else 1.0
    at = 0
    for i in range(last + 1):
        # z holds each product of two different coordinates once.
        twice = 2.0 * strength * h[i]
        for j in range(i):
            phi[at + j] = twice * h[j]
        at += i + 1
        phi[at - 1] = strength * h[i] * h[i]


@kernel(inline="always")
def _mass(feature_map, dot, n):
    if feature_map.kind == FOURIER:
        return max(dot, feature_map.floor * n)
    dot = max(dot, 0.0)
    return dot + n if feature_map.kind == QUADRATIC else dot * dot / n + n


@kernel(fastmath=FAST, inline="always")
def _products(w, h, width):
    """w·h and w·w."""
    dot, squares = 0.0, 0.0
    for f in range(width):
        value = float(w[f])
        dot += value * h[f]
        squares += value * value
    return dot, squares


@kernel
def _score(feature_map, head, h, length, c):
    """K(h, w_c), up to a factor that all classes share; ``length`` is ‖h‖."""
    dot, squares = 0.0, 0.0
    if c < head.bias.size:
        bias = float(head.bias[c])
        dot, squares = _products(head.table[c], h, head.width)
        dot += bias
        squares += bias * bias
    if feature_map.kind == FOURIER:
        # ‖u − v‖² of unit vectors is 2 − 2 u·v; the zero vector is at distance 1 from all.
        closeness = dot / (length * math.sqrt(squares)) if squares > 0.0 else 0.5
        return math.exp(feature_map.strength * (closeness - 1.0))
    dot *= dot
    return feature_map.strength * dot + 1.0 if feature_map.kind == QUADRATIC else dot * dot + 1.0


@kernel(inline="always")
def _fold(total, product):
    """total + log product, with the product back in range."""
    return (total + math.log(product), 1.0) if product < _TINY else (total, product)


@kernel(inline="always")
def _children(feature_map, tree, phi, node, dot, i, stamps, lefts):
    """⟨φ, z⟩ and probability of the left child, then of the right one.

    Draws of row i share the products at the top of the tree, where stamps[node] = i.
    """
    left = tree.child[node]
    if left < _SHARED and stamps[left] == i:
        a = lefts[left]
    else:
        a = _dot(phi, tree.z[left])
        if left < _SHARED:
            stamps[left], lefts[left] = i, a
    b = dot - a
    if abs(b) < _CANCELLED * abs(a):
        b = _dot(phi, tree.z[left + 1])
    mass = _mass(feature_map, a, tree.stop[left] - tree.first[left])
    other = _mass(feature_map, b, tree.stop[left + 1] - tree.first[left + 1])
    return a, mass / (mass + other), b, other / (mass + other)


@kernel
def _prefetch_children(tree, node):
    left = tree.child[node]
    if left >= _SHARED:
        for line in range(min(_AHEAD, -(-tree.z.shape[1] // _LINE))):
            prefetch(tree.z, left, line * _LINE)


@kernel
def sample(start, stop, model, x, key, rows, labels, log_q):
    """labels[i, j] ~ q(· | x[i]), log_q its log-probability."""
    feature_map, tree, head = model
    h, phi = np.empty(x.shape[1] + 1), np.empty(tree.z.shape[1])
    stamps, lefts = np.full(_SHARED, -1), np.empty(_SHARED)
    nodes = np.empty(_WALKS, np.int64)
    dots, totals, products = np.empty(_WALKS), np.empty(_WALKS), np.empty(_WALKS)
    scores = np.empty(tree.most)
    m = labels.shape[1]
    for i in range(start, stop):
        _map(feature_map, head.scale, x[i], h, phi)
        length = math.sqrt(_dot(h, h))
        root = _dot(phi, tree.z[0])
        state = row_state(key, rows[i])
        for draw in range(0, m, _WALKS):
            n = min(_WALKS, m - draw)
            for w in range(n):
                nodes[w], dots[w], totals[w], products[w] = 0, root, 0.0, 1.0
            level, walking = 0, tree.child[0] >= 0
            while walking:
                walking = False
                for w in range(n):
                    node = nodes[w]
                    if tree.child[node] < 0:
                        continue
                    dots[w], p, b, p_right = _children(
                        feature_map, tree, phi, node, dots[w], i, stamps, lefts
                    )
                    node = tree.child[node]
                    if uniform(state, (draw + w) * 64 + level) >= p:
                        node, dots[w], p = node + 1, b, p_right
                    nodes[w] = node
                    totals[w], products[w] = _fold(totals[w], products[w] * p)
                    if tree.child[node] >= 0:
                        walking = True
                        _prefetch_children(tree, node)
                level += 1
            for w in range(n):
                first, last = tree.first[nodes[w]], tree.stop[nodes[w]]
                mass = 0.0
                for c in range(first, last):
                    scores[c - first] = _score(feature_map, head, h, length, c)
                    mass += scores[c - first]
                left = mass * uniform(state, (draw + w) * 64 + 63)
                c = first
                while c < last - 1 and left >= scores[c - first]:
                    left -= scores[c - first]
                    c += 1
                labels[i, draw + w] = c
                total = totals[w] + math.log(products[w])
                log_q[i, draw + w] = total + math.log(scores[c - first] / mass)


@kernel
def log_prob(start, stop, model, x, labels, out):
    """out[i, j] = log q(labels[i, j] | x[i]): one walk from the root to the class."""
    feature_map, tree, head = model
    h, phi = np.empty(x.shape[1] + 1), np.empty(tree.z.shape[1])
    stamps, lefts = np.full(_SHARED, -1), np.empty(_SHARED)
    for i in range(start, stop):
        _map(feature_map, head.scale, x[i], h, phi)
        length = math.sqrt(_dot(h, h))
        root = _dot(phi, tree.z[0])
        for j in range(labels.shape[1]):
            c = labels[i, j]
            node, dot, total, product = 0, root, 0.0, 1.0
            while tree.child[node] >= 0:
                dot, p, b, p_right = _children(feature_map, tree, phi, node, dot, i, stamps, lefts)
                node = tree.child[node]
                if c >= tree.stop[node]:
                    node, dot, p = node + 1, b, p_right
                total, product = _fold(total, product * p)
            mass = 0.0
            for other in range(tree.first[node], tree.stop[node]):
                mass += _score(feature_map, head, h, length, other)
            share = _score(feature_map, head, h, length, c) / mass
            out[i, j] = total + math.log(product) + math.log(share)


@kernel
def log_prob_all(start, stop, model, x, out):
    """out[i, y] = log q(y | x[i]), every node visited once."""
    feature_map, tree, head = model
    h, phi = np.empty(x.shape[1] + 1), np.empty(tree.z.shape[1])
    stamps, lefts = np.full(_SHARED, -1), np.empty(_SHARED)
    dots, logs = np.empty(tree.child.size), np.empty(tree.child.size)
    scores = np.empty(tree.most)
    for i in range(start, stop):
        _map(feature_map, head.scale, x[i], h, phi)
        length = math.sqrt(_dot(h, h))
        dots[0], logs[0] = _dot(phi, tree.z[0]), 0.0
        for node in range(tree.child.size):
            left = tree.child[node]
            if left >= 0:
                a, p, b, p_right = _children(
                    feature_map, tree, phi, node, dots[node], i, stamps, lefts
                )
                dots[left], logs[left] = a, logs[node] + math.log(p)
                dots[left + 1], logs[left + 1] = b, logs[node] + math.log(p_right)
                continue
            first, last = tree.first[node], tree.stop[node]
            mass = 0.0
            for c in range(first, last):
                scores[c - first] = _score(feature_map, head, h, length, c)
                mass += scores[c - first]
            for c in range(first, last):
                out[i, c] = logs[node] + math.log(scores[c - first] / mass)
