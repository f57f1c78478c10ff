"""The greedy fit of tree nodes, in numba: Newton steps on (w, b), sorting for the split.

Bamler & Mandt 2020, section 3. At a node with classes Y, maximize over θ = (w, b) and over
ζ ∈ {±1} with equal halves

    L = Σ_{(x,y): y∈Y} log σ(ζ_y (w·z + b)) − ½ λ_w‖w‖² − ½ λ_b b²

(`extremax.kernels.cpu.newton`). A node with more than ``cap`` examples fits θ on an even subsample,
weighted up: fitting k + 1 numbers to that many examples loses about (k + 1)/(2·cap) nat. The split
always sees every example, through the class sums.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from extremax.kernels.cpu.lines import FAST
from extremax.kernels.cpu.newton import Node, ascend, bound, evaluate, newton

_RIGHT = np.int8(1)
_LEFT = np.int8(-1)
# Steps under the bound between two splits.
_ASCENTS = 3


class SortedExamples(NamedTuple):
    """Examples sorted by class.

    z:        (n, k) float32; those of class c are z[offsets[c]:offsets[c + 1]].
    offsets:  (C + 1,).
    sums:     Σ z of each class, (C, k) float64.
    cap:      the most examples that θ of one node is fitted to.
    """

    z: np.ndarray
    offsets: np.ndarray
    sums: np.ndarray
    cap: int


@njit(nogil=True, cache=True)
def split_nodes(start, stop, splits, order, examples, penalties, rounds, nodes):
    """Fit nodes start..stop − 1 from scratch: write their rows of ``nodes`` and sort ``order`` into
    halves.

    splits:  (lo, mid, hi) of each node, as in `extremax.kernels.cpu.tree`.
    """
    z, offsets, sums, cap = examples
    k = z.shape[1]
    for s in range(start, stop):
        lo, mid, hi = splits[s]
        classes = order[lo:hi].copy()
        rows, owner, weight = gather(classes, offsets, cap)
        sides = np.empty(hi - lo, np.int8)
        node = Node(transposed(z, rows), owner, sides, weight, penalties)
        factor = np.empty((k + 1, k + 1))
        theta = np.zeros(k + 1)
        principal_direction(classes, sums, theta)
        halve(classes, offsets, sums, theta, hi - mid, sides)
        if hi - lo > 2:
            bound(node, factor)
            for _ in range(rounds):
                ascend(node, theta, factor, _ASCENTS)
                if not halve(classes, offsets, sums, theta, hi - mid, sides):
                    break
        newton(node, theta, factor, True)
        # A split that was stable on the way may not be at the optimum. The curvature depends on
        # ζ only through θ, which moves little: the factor still serves.
        for _ in range(rounds):
            if not halve(classes, offsets, sums, theta, hi - mid, sides):
                break
            newton(node, theta, factor, False)
        left, right = lo, mid
        for c in range(hi - lo):
            if sides[c] == _RIGHT:
                order[right] = classes[c]
                right += 1
            else:
                order[left] = classes[c]
                left += 1
        nodes[mid, :] = theta


@njit(nogil=True, cache=True)
def refit_nodes(start, stop, splits, order, examples, penalties, nodes):
    """Newton under other penalties on nodes that are already split, from their current rows."""
    z, offsets, _, cap = examples
    for s in range(start, stop):
        lo, mid, hi = splits[s]
        rows, owner, weight = gather(order[lo:hi], offsets, cap)
        sides = np.full(hi - lo, _LEFT)
        sides[mid - lo :] = _RIGHT
        theta = nodes[mid].astype(np.float64)
        factor = np.empty((theta.size, theta.size))
        newton(Node(transposed(z, rows), owner, sides, weight, penalties), theta, factor, True)
        nodes[mid, :] = theta


@njit(nogil=True, cache=True)
def held_out_likelihood(start, stop, splits, order, examples, penalties, nodes, out):
    """out[s, j] = held-out log-likelihood of node s fitted under penalties[j]; out[s, −1] = count.

    Every fifth example is held out. The split is redone with the class sums of the others: a class
    whose side was chosen with the help of a held-out example would favor weak penalties.
    """
    z, offsets, _, cap = examples
    k = z.shape[1]
    for s in range(start, stop):
        lo, mid, hi = splits[s]
        rows, owner, _ = gather(order[lo:hi], offsets, cap)
        held = np.arange(rows.size) % 5 == 4
        kept_columns, kept_owner = transposed(z, rows[~held]), owner[~held]
        held_columns, held_owner = transposed(z, rows[held]), owner[held]
        n_kept = np.zeros(hi - lo + 1, np.int64)
        kept_sums = np.zeros((hi - lo, k), np.float64)
        for i in range(kept_owner.size):
            n_kept[kept_owner[i] + 1] += 1
            for f in range(k):
                kept_sums[kept_owner[i], f] += kept_columns[f, i]
        theta = nodes[mid].astype(np.float64)
        factor = np.empty((k + 1, k + 1))
        sides = np.empty(hi - lo, np.int8)
        halve(np.arange(hi - lo), np.cumsum(n_kept), kept_sums, theta, hi - mid, sides)
        slack = np.empty(held_owner.size, np.float32)
        gradient = np.empty(k + 1)
        unpenalized = Node(held_columns, held_owner, sides, 1.0, np.zeros(2))
        for j in range(penalties.shape[0]):
            node = Node(kept_columns, kept_owner, sides, 1.0, penalties[j])
            newton(node, theta, factor, True)
            out[s, j] = evaluate(unpenalized, theta, gradient, slack)
        out[s, penalties.shape[0]] = held_owner.size


@njit(nogil=True, cache=True)
def gather(classes, offsets, cap):
    """The rows of the classes (every n-th one if over ``cap``), the position of each row's class in
    ``classes``, and how many rows each one stands for."""
    n = 0
    for c in classes:
        n += offsets[c + 1] - offsets[c]
    stride = max(1, -(-n // cap))
    size = -(-n // stride)
    rows = np.empty(size, np.int64)
    owner = np.empty(size, np.int64)
    seen, taken = 0, 0
    for j in range(classes.size):
        first, last = offsets[classes[j]], offsets[classes[j] + 1]
        for i in range(first, last):
            if seen % stride == 0:
                rows[taken] = i
                owner[taken] = j
                taken += 1
            seen += 1
    return rows, owner, n / max(size, 1)


@njit(nogil=True, cache=True)
def transposed(z, rows):
    """z[rows] transposed, with unused columns at the end.

    They make each row of the result an odd number of cache lines long: with a power of two, all
    features of an example would compete for the same few places of the cache.
    """
    k = z.shape[1]
    lines = (rows.size + 15) // 16
    columns = np.empty((k, 16 * (lines + 1 - lines % 2)), np.float32)
    for first in range(0, rows.size, 16):
        for f in range(k):
            column = columns[f]
            for i in range(first, min(first + 16, rows.size)):
                column[i] = z[rows[i], f]
    return columns


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def principal_direction(classes, sums, theta):
    """w = dominant eigenvector of the covariance of the class sums (power iteration), b = 0."""
    k = sums.shape[1]
    n = classes.size
    mean = np.zeros(k)
    for c in classes:
        for f in range(k):
            mean[f] += sums[c, f]
    mean /= n
    # Start from the class sum farthest from the mean, which cannot be orthogonal to all others.
    farthest, largest = classes[0], -1.0
    for c in classes:
        distance = 0.0
        for f in range(k):
            distance += (sums[c, f] - mean[f]) ** 2
        if distance > largest:
            farthest, largest = c, distance
    w = np.empty(k)
    for f in range(k):
        w[f] = sums[farthest, f] - mean[f]
    for _ in range(12 if n > 2 else 1):
        norm = math.sqrt((w * w).sum())
        if norm < 1e-12:
            break
        w /= norm
        image = np.zeros(k)
        for c in classes:
            dot = 0.0
            for f in range(k):
                dot += (sums[c, f] - mean[f]) * w[f]
            for f in range(k):
                image[f] += dot * (sums[c, f] - mean[f])
        w[:] = image
    norm = math.sqrt((w * w).sum())
    for f in range(k):
        theta[f] = w[f] / norm if norm > 1e-12 else 0.0
    theta[k] = 0.0


@njit(nogil=True, cache=True)
def halve(classes, offsets, sums, theta, n_right, sides):
    """Send the n_right classes with the largest Δ_y = w·S_y + n_y b to the right.

    Returns whether any class changed sides.
    """
    k = sums.shape[1]
    delta = np.empty(classes.size)
    for j in range(classes.size):
        c = classes[j]
        d = theta[k] * (offsets[c + 1] - offsets[c])
        for f in range(k):
            d += theta[f] * sums[c, f]
        delta[j] = d
    ranked = np.argsort(delta, kind="mergesort")
    moved = False
    for r in range(classes.size):
        side = _RIGHT if r >= classes.size - n_right else _LEFT
        if sides[ranked[r]] != side:
            sides[ranked[r]] = side
            moved = True
    return moved
