"""Walks through the noise tree, in numba.

The tree has no pointers and no padding. Its leaves are the positions 0..C−1; a node is a range
[lo, hi) of positions, split at mid = lo + (hi − lo)//2, so both halves hold as many classes as
possible and the shape follows from C alone. Each mid in 1..C−1 belongs to exactly one node:
row mid of ``nodes`` (C, k+1) holds that node's weights and, last, its bias. Row 0 is unused.
Ranges that are close in the tree are close in memory, so the deep levels share cache lines.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from extremax.kernels.cpu.head import FAST
from extremax.kernels.cpu.random import row_state, uniform

# A running product of probabilities is folded into the logarithm before it can underflow, and
# a probability is taken while float32, in which activations are, still holds its exponential.
_TINY = 1e-30


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def activation(node, z):
    total = node[z.size]
    for f in range(z.size):
        total += node[f] * z[f]
    return total


@njit(nogil=True, cache=True, inline="always")
def sigmoid(a):
    """σ(a), with full relative precision in both tails."""
    e = math.exp(-abs(a))
    return 1.0 / (1.0 + e) if a >= 0.0 else e / (1.0 + e)


@njit(nogil=True, cache=True, inline="always")
def _times(total, product, a):
    """total + log product, times σ(a): a logarithm now and then instead of one a level."""
    probability = sigmoid(a)
    if probability < _TINY:
        # Here log σ(a) is a itself.
        return total + a, product
    product *= probability
    if product < _TINY:
        return total + math.log(product), 1.0
    return total, product


@njit(nogil=True, cache=True)
def sample(start, stop, nodes, order, z, key, rows, labels, log_q):
    """Ancestral sampling: labels[i, j] ~ q(· | z[i]), log_q its log-probability."""
    n_classes = order.size
    m = labels.shape[1]
    for i in range(start, stop):
        state = row_state(key, rows[i])
        for j in range(m):
            lo, hi, level = 0, n_classes, 0
            total, product = 0.0, 1.0
            while hi - lo > 1:
                mid = lo + (hi - lo) // 2
                a = float(activation(nodes[mid], z[i]))
                if uniform(state, j * 64 + level) < sigmoid(a):
                    lo = mid
                    total, product = _times(total, product, a)
                else:
                    hi = mid
                    total, product = _times(total, product, -a)
                level += 1
            labels[i, j] = order[lo]
            log_q[i, j] = total + math.log(product)


@njit(nogil=True, cache=True)
def log_prob(start, stop, nodes, position, z, labels, out):
    """out[i, j] = log q(labels[i, j] | z[i]): one walk from the root to the leaf."""
    n_classes = position.size
    for i in range(start, stop):
        for j in range(labels.shape[1]):
            leaf = position[labels[i, j]]
            lo, hi = 0, n_classes
            total, product = 0.0, 1.0
            while hi - lo > 1:
                mid = lo + (hi - lo) // 2
                a = float(activation(nodes[mid], z[i]))
                if leaf >= mid:
                    lo = mid
                    total, product = _times(total, product, a)
                else:
                    hi = mid
                    total, product = _times(total, product, -a)
            out[i, j] = total + math.log(product)


@njit(nogil=True, cache=True)
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
            here = leaf[lo]
            right = log_right[i, mid]
            leaf[mid] = here + right
            leaf[lo] = here + right - activations[i, mid]
        for p in range(n_classes):
            out[i, order[p]] = leaf[p]


@njit(nogil=True, cache=True, inline="always")
def log_sigmoids(a):
    """log σ(a) and log σ(−a) from one exponential."""
    rest = math.log1p(math.exp(-abs(a)))
    return min(a, 0.0) - rest, min(-a, 0.0) - rest


@njit(nogil=True, cache=True)
def beam(start, stop, nodes, sharpness, order, z, width, labels, log_q):
    """The ``width`` leaves that a beam search finds most probable; unused slots get label −1.

    The search goes by σ(a); log_q is what a path has under σ(sharpness · a).
    """
    n_classes = order.size
    los = np.empty(2 * width, np.int64)
    his = np.empty(2 * width, np.int64)
    lps = np.empty(2 * width, np.float64)
    softs = np.empty(2 * width, np.float64)
    for i in range(start, stop):
        n = 1
        los[0], his[0], lps[0], softs[0] = 0, n_classes, 0.0, 0.0
        deepest = n_classes
        while deepest > 1:
            deepest = 0
            count = n
            for b in range(n):
                lo, hi = los[b], his[b]
                if hi - lo > 1:
                    mid = lo + (hi - lo) // 2
                    a = float(activation(nodes[mid], z[i]))
                    right, left = log_sigmoids(a)
                    soft_right, soft_left = right, left
                    if sharpness != 1.0:
                        soft_right, soft_left = log_sigmoids(sharpness * a)
                    los[count], his[count] = mid, hi
                    lps[count], softs[count] = lps[b] + right, softs[b] + soft_right
                    his[b] = mid
                    lps[b] += left
                    softs[b] += soft_left
                    count += 1
                    deepest = max(deepest, hi - mid)
            n = count
            if n > width:
                threshold = np.partition(lps[:n], n - width)[n - width]
                ties = width - (lps[:n] > threshold).sum()
                kept = 0
                for b in range(n):
                    if lps[b] == threshold:
                        ties -= 1
                    if lps[b] > threshold or (lps[b] == threshold and ties >= 0):
                        los[kept], his[kept] = los[b], his[b]
                        lps[kept], softs[kept] = lps[b], softs[b]
                        kept += 1
                n = kept
        for b in range(width):
            if b < n:
                labels[i, b] = order[los[b]]
                log_q[i, b] = softs[b]
            else:
                labels[i, b] = -1
                log_q[i, b] = -np.inf


@njit(nogil=True, cache=True)
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
